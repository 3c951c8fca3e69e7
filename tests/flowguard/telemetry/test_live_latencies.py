"""A live run's latencies beside those that `flowguard storm` measured from outside.

The latency of a client includes the broker's own measurement. So a percentile of the broker's is
not above the next one of the clients', except by a bucket and by the time between the broker's look
at the clock and its read. It includes the commit, which takes COMMIT_S at least in this store.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import trio

from flowguard.broker.server import unix_clock
from flowguard.flow.load.observer import BUCKET_RATIO
from flowguard.records import StoreOp
from flowguard.stores import Fenced, MemoryStore
from flowguard.telemetry.recorder import Recorder
from flowguard.telemetry.runs import Runs
from tests.support.real import broker

COMMIT_S = 0.05
STORM_BUCKET = 1.02
AWAY_S = 0.1
"""Longer than a machine with four times as many busy programs as cores keeps one waiting."""
HIGHER = {50: "p90", 90: "p99", 99: "max"}


class SlowDisk(MemoryStore):
    """Every commit takes COMMIT_S, in the thread that commits."""

    def __init__(self) -> None:
        super().__init__()
        self.immediate = False

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        time.sleep(COMMIT_S)
        return super().commit(ops)


async def stormed(folder: Path, store: MemoryStore, *words: str) -> dict[str, Any]:
    """Return the result of a storm at a broker that records below `folder`."""
    settings = {"telemetry": {"record_dir": str(folder)}, "node": {"sys_interval_s": 0.2}}
    async with broker(settings, store=store, calm=True) as running:
        runs = Runs(folder, running.node.settings.telemetry)
        async with trio.open_nursery() as nursery:
            recorder = Recorder(running, unix_clock(), runs)
            await nursery.start(recorder.run)
            place = "{}:{}".format(*running.address)
            command = [sys.executable, "-m", "flowguard", "storm", place, *words, "--json", "-"]
            done = await trio.run_process(command, capture_stdout=True)
            nursery.cancel_scope.cancel()
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def histogram(folder: Path, kind: str) -> dict[float, int]:
    """Counts by upper bound, of the one run in `folder`."""
    (directory,) = folder.glob("live-*")
    counts: dict[float, int] = {}
    for part in sorted(directory.glob("latencies-*.parquet")):
        for row in pq.read_table(part).to_pylist():
            if row["kind"] == kind:
                counts[row["bound_s"]] = counts.get(row["bound_s"], 0) + row["count"]
    return counts


def percentile_s(counts: dict[float, int], percent: int) -> float:
    """The upper bound of its bucket."""
    rank, seen = sum(counts.values()) * percent / 100, 0
    for bound_s in sorted(counts):
        seen += counts[bound_s]
        if seen >= rank:
            return bound_s
    raise AssertionError("nothing was observed")


def assert_agreed(live: dict[float, int], measured_ms: dict[str, float], least_s: float) -> None:
    for percent, higher in HIGHER.items():
        live_s = percentile_s(live, percent)
        most_s = (measured_ms[higher] / 1e3 + AWAY_S) * BUCKET_RATIO * STORM_BUCKET
        assert least_s <= live_s <= most_s, (percent, live_s, measured_ms)


@pytest.mark.slow
async def test_a_publish_that_waits_for_a_commit(tmp_path: Path) -> None:
    words = ("pairs", "--pairs", "8", "--outstanding", "2", "--seconds", "2", "--durable")
    seen = await stormed(tmp_path, SlowDisk(), *words)
    live = histogram(tmp_path, "acknowledgement")
    assert seen["acknowledged"] <= sum(live.values()) <= seen["sent"]
    assert_agreed(live, seen["acknowledgement_ms"], COMMIT_S)


@pytest.mark.slow
@pytest.mark.parametrize("qos", ["1", "2"])
async def test_a_publish_that_is_answered_at_once(tmp_path: Path, qos: str) -> None:
    """Clean sessions: nothing has to be stored, and each is observed all the same."""
    words = ("pairs", "--pairs", "8", "--outstanding", "2", "--seconds", "1", "--qos", qos)
    seen = await stormed(tmp_path, SlowDisk(), *words)
    live = histogram(tmp_path, "acknowledgement")
    assert seen["acknowledged"] > 0
    assert seen["acknowledged"] <= sum(live.values()) <= seen["sent"]
    assert_agreed(live, seen["acknowledgement_ms"], 0.0)


@pytest.mark.slow
async def test_where_nobody_publishes_nothing_is_acknowledged(tmp_path: Path) -> None:
    """Durable sessions, and `$SYS` topics, wait for commits, too."""
    seen = await stormed(tmp_path, SlowDisk(), "connect", "--clients", "20", "--durable")
    assert histogram(tmp_path, "acknowledgement") == {}
    live = histogram(tmp_path, "connect")
    assert sum(live.values()) == seen["connected"] == 20
    assert_agreed(live, seen["answer_ms"], COMMIT_S)


@pytest.mark.slow
async def test_messages_of_qos_0_are_not_acknowledged(tmp_path: Path) -> None:
    words = ("pairs", "--pairs", "2", "--seconds", "0.5", "--qos", "0")
    seen = await stormed(tmp_path, SlowDisk(), *words)
    assert seen["received"] > 0
    assert histogram(tmp_path, "acknowledgement") == {}
