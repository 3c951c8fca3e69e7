"""What the log says of overload protection."""

from typing import Any

from structlog.testing import capture_logs

from flowguard.broker.overload_log import INTERVAL_S, OverloadLog
from tests.support.stage import Stage


def ticked(stage: Stage, log: OverloadLog, after_s: float = 0.0) -> list[Any]:
    stage.now_s += after_s
    with capture_logs() as lines:
        log.tick(stage.now_s)
    return lines


def test_a_calm_node_says_nothing() -> None:
    stage = Stage()
    log = OverloadLog(stage.node, stage.now_s)
    stage.connect("c").publish("t", b"x", qos=1)
    assert ticked(stage, log) == []


def test_what_was_dropped_is_named_with_its_reason() -> None:
    stage = Stage({"session": {"queue_messages_max": 1}})
    log = OverloadLog(stage.node, stage.now_s)
    subscriber = stage.connect_durable("s")
    subscriber.subscribe("t", qos=1)
    subscriber.close()
    publisher = stage.connect("p")
    for _ in range(3):
        publisher.publish("t", b"x", qos=1)
    (line,) = ticked(stage, log)
    assert line["event"] == "rejections, drops or errors"
    assert line["dropped_queue_messages"] == 2


def test_a_storm_makes_one_line_per_interval_and_loses_no_count() -> None:
    stage = Stage()
    log = OverloadLog(stage.node, stage.now_s)
    lines = []
    for _ in range(30):
        stage.node.counters.malformed += 1
        lines += ticked(stage, log, INTERVAL_S / 10)
    lines += ticked(stage, log, INTERVAL_S)
    assert len(lines) == 4
    assert sum(line["protocol_errors"] for line in lines) == 30


def test_a_shrunken_window_is_told_with_its_cause() -> None:
    stage = Stage()
    log = OverloadLog(stage.node, stage.now_s)
    for _ in range(2):
        stage.node.guard.observer.drift(1.0, stage.now_s)
        stage.advance(0.1)
    (line,) = ticked(stage, log)
    assert line["event"] == "overload"
    assert line["window_min"] < stage.node.window.limit_max
    assert line["cause"] != "None"
