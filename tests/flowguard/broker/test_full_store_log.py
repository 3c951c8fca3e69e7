"""Log events of a full store."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from flowguard.broker.logs.full_store_log import FullStoreLog
from flowguard.broker.logs.overload_log import INTERVAL_S
from tests.support.stage import Stage


def ticked(stage: Stage, log: FullStoreLog, *, full: bool, after_s: float = 0.1) -> list[Any]:
    stage.now_s += after_s
    stage.node.state.read_only = full
    with capture_logs() as lines:
        log.tick(stage.now_s)
    return lines


def test_each_change_is_told_once_with_what_makes_room() -> None:
    stage = Stage()
    log = FullStoreLog(stage.node)
    assert ticked(stage, log, full=False) == []
    stage.node.store_load.free_bytes = 7
    stage.node.store_load.reserve_bytes = 8
    (line,) = ticked(stage, log, full=True)
    assert line["log_level"] == "warning"
    assert line["event"] == "store full; durable messages and new durable sessions are rejected"
    assert line["free_bytes"] == 7
    assert line["full_below_bytes"] == 8
    assert "store.disk_reserve_bytes" in line["hint"]
    assert ticked(stage, log, full=True) == []
    (line,) = ticked(stage, log, full=False)
    assert line == {"event": "store writable again", "log_level": "info", "free_bytes": 7}
    assert ticked(stage, log, full=False) == []


def test_line_has_no_free_bytes_when_they_are_unknown() -> None:
    stage = Stage()
    log = FullStoreLog(stage.node)
    ticked(stage, log, full=True)
    assert ticked(stage, log, full=False) == [
        {"event": "store writable again", "log_level": "info"}
    ]


def test_a_store_that_has_no_room_from_its_first_moment_is_told() -> None:
    stage = Stage()
    assert len(ticked(stage, FullStoreLog(stage.node), full=True, after_s=0)) == 1


@pytest.mark.parametrize(("kind", "hint"), [("redis", "maxmemory"), ("rocks", "disk")])
def test_the_hint_is_for_the_store_there_is(kind: str, hint: str) -> None:
    stage = Stage({"store": {"kind": kind}})
    (line,) = ticked(stage, FullStoreLog(stage.node), full=True)
    assert hint in line["hint"]


def test_a_disk_at_the_edge_of_its_reserve_does_not_fill_the_log() -> None:
    stage = Stage()
    log = FullStoreLog(stage.node)
    lines = []
    for number in range(300):
        lines += ticked(stage, log, full=number % 2 == 0, after_s=INTERVAL_S / 100)
    assert len(lines) == 6
    assert len(ticked(stage, log, full=True, after_s=INTERVAL_S)) == 1
