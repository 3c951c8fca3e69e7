"""Log events of overload protection."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from flowguard.broker.logs.overload_log import INTERVAL_S, OverloadLog
from flowguard.codec.packets import Puback
from flowguard.flow import Reason
from flowguard.flow.load.signals import Pressure, Signal
from flowguard.flow.policy import Grant
from flowguard.node.connect.accept_state import Rest
from flowguard.types import Publish
from tests.support.real import Wire, broker, connect, offline_subscriber, until
from tests.support.stage import Stage


def ticked(stage: Stage, log: OverloadLog, after_s: float = 0.0) -> list[Any]:
    stage.now_s += after_s
    with capture_logs() as lines:
        log.tick(stage.now_s)
    return lines


def other_counts(counts_of_last_s: float, **counts: int) -> dict[str, Any]:
    """Return the line of counts that have other reasons than overload."""
    return {
        "event": "counts of rejections, drops and errors",
        "log_level": "warning",
        "counts_of_last_s": counts_of_last_s,
        **counts,
    }


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
    assert line == other_counts(0.0, dropped_queue_messages=2)


def test_line_names_rejected_connects_and_paused_listeners() -> None:
    stage = Stage()
    log = OverloadLog(stage.node, stage.now_s)
    stage.node.guard.gate.refused[Reason.GATE_WAIT] = 3
    stage.node.door.rests[Rest.HANDSHAKES] = 2
    (line,) = ticked(stage, log)
    assert line["rejected_gate_wait"] == 3
    assert line["times_accepting_paused_for_waiting_handshakes"] == 2


def test_every_reason_to_accept_no_connections_has_words() -> None:
    stage = Stage()
    log = OverloadLog(stage.node, stage.now_s)
    for reason in Rest:
        stage.node.door.rests[reason] = 1
    (line,) = ticked(stage, log)
    assert sum(name.startswith("times_accepting_paused_") for name in line) == len(Rest)


def test_count_of_a_rejected_packet_is_named_rejected() -> None:
    stage = Stage()
    log = OverloadLog(stage.node, stage.now_s)
    stage.node.counters.drop(Reason.STORE_FULL)
    stage.node.counters.drop(Reason.OFFLINE_QOS_0, 2)
    (line,) = ticked(stage, log)
    assert line["rejected_store_full"] == 1
    assert line["dropped_offline_qos_0"] == 2


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
    assert line["event"] == "overload began"
    assert line["window_lowest_packets"] < stage.node.guard.window.limit_max
    assert line["window_packets"] == round(stage.node.guard.grant.window, 3)
    assert line["cause"] == "event loop delay at 16.0 times its objective or more"
    assert line["window"].startswith("each client's window (packets in process) held after a cut: ")
    assert "event loop delay at " in line["window"]
    assert "counts_of_last_s" not in line


def test_window_of_a_line_is_of_now_and_its_lowest_is_apart() -> None:
    stage = Stage()
    log = OverloadLog(stage.node, stage.now_s)
    ticks = []
    for pressed in [True] * 5 + [False] * 60 + [True] * 2 + [False] * 60:
        if pressed:
            stage.node.guard.observer.drift(1.0, stage.now_s)
        stage.advance(0.1)
        ticks.append(ticked(stage, log))
    (_, line) = [line for lines in ticks[:-20] for line in lines]
    assert line["event"] == "overload continues"
    assert line["cause"] == "event loop delay at 16.0 times its objective or more"
    assert line["window"] == "each client's window (packets in process) at its maximum of 100"
    assert line["window_packets"] == 100
    assert line["window_lowest_packets"] < 100


def test_overload_line_counts_only_what_overload_rejected_or_dropped() -> None:
    stage = Stage()
    log = OverloadLog(stage.node, stage.now_s)
    stage.node.counters.drop(Reason.QUEUE_MESSAGES, 2)
    assert len(ticked(stage, log)) == 1
    stage.node.counters.drop(Reason.QUEUE_MESSAGES, 5)
    assert ticked(stage, log) == []
    stage.node.guard.observer.drift(1.0, stage.now_s)
    stage.advance(0.1)
    before, began = ticked(stage, log)
    assert began["event"] == "overload began"
    assert "dropped_queue_messages" not in began
    assert before == other_counts(0.1, dropped_queue_messages=5)
    stage.node.counters.drop(Reason.QUEUE_MESSAGES, 7)
    stage.node.counters.drop(Reason.NOT_AUTHORIZED, 3)
    stage.node.guard.observer.drift(1.0, stage.now_s)
    stage.advance(0.1)
    assert ticked(stage, log) == []
    others, continues = ticked(stage, log, INTERVAL_S)
    assert continues["event"] == "overload continues"
    assert (continues["dropped_queue_messages"], continues["counts_of_last_s"]) == (7, 10.1)
    assert "rejected_not_authorized" not in continues
    assert others == other_counts(10.1, rejected_not_authorized=3)
    lines = []
    for _ in range(600):
        stage.advance(0.1)
        lines += ticked(stage, log)
    assert lines[-1]["event"] == "overload ended"
    assert lines[-1]["dropped_queue_messages"] == 7
    assert lines[-1]["counts_of_last_s"] > lines[-1]["lasted_s"], "until this line"
    assert "rejected_not_authorized" not in lines[-1]


def test_counts_do_not_delay_the_line_of_an_overload_that_begins() -> None:
    stage = Stage()
    log = OverloadLog(stage.node, stage.now_s)
    stage.node.counters.drop(Reason.NOT_AUTHORIZED)
    (line,) = ticked(stage, log)
    assert line["rejected_not_authorized"] == 1
    lines = []
    for _ in range(50):
        stage.node.guard.observer.drift(1.0, stage.now_s)
        stage.advance(0.1)
        lines += ticked(stage, log)
    assert [line["event"] for line in lines] == ["overload began"]


def test_drops_of_one_tick_begin_an_overload_though_windows_are_not_cut() -> None:
    stage = Stage()
    log = OverloadLog(stage.node, stage.now_s)
    assert ticked(stage, log) == []
    stage.node.guard.grant = Grant(100.0, Pressure(2.0, Signal.LOOP, {Signal.LOOP: 2.0}))
    for _ in range(3):
        assert ticked(stage, log, INTERVAL_S) == []
    stage.node.counters.drop(Reason.QUEUE_MESSAGES, 7)
    (line,) = ticked(stage, log, 0.1)
    assert line["event"] == "overload began"
    assert line["dropped_queue_messages"] == 7


def test_errors_without_overload_do_not_begin_one() -> None:
    stage = Stage()
    log = OverloadLog(stage.node, stage.now_s)
    stage.node.guard.grant = Grant(100.0, Pressure(2.0, Signal.LOOP, {Signal.LOOP: 2.0}))
    stage.node.counters.malformed += 1
    (line,) = ticked(stage, log)
    assert line["event"] == "counts of rejections, drops and errors"


def test_the_end_of_an_overload_is_told_with_what_it_cost() -> None:
    stage = Stage()
    log = OverloadLog(stage.node, stage.now_s)
    for _ in range(2):
        stage.node.guard.observer.drift(1.0, stage.now_s)
        stage.advance(0.1)
    (line,) = ticked(stage, log)
    assert line["event"] == "overload began"
    stage.node.counters.drop(Reason.QUEUE_MESSAGES, 7)
    lines, pressed_ticks = [], 1
    for _ in range(600):
        stage.advance(0.1)
        pressed_ticks += stage.node.guard.grant.pressure.value > 1.2
        lines += ticked(stage, log)
    assert lines[-1]["event"] == "overload ended"
    assert lines[-1]["dropped_queue_messages"] == 7
    assert lines[-1]["lasted_s"] == pytest.approx((pressed_ticks - 1) / 10)
    assert lines[-1]["lasted_s"] < INTERVAL_S / 2, "not the time without overload that ends it"
    events = [line["event"] for line in lines]
    assert events.count("overload ended") == 1
    assert "overload began" not in events, "it goes on; it does not begin again"


def test_overload_that_lasts_is_told_as_one_that_continues() -> None:
    stage = Stage()
    log = OverloadLog(stage.node, stage.now_s)
    lines = []
    for _ in range(250):
        stage.node.guard.observer.drift(1.0, stage.now_s)
        stage.advance(0.1)
        lines += ticked(stage, log)
    events = [line["event"] for line in lines]
    assert events == ["overload began", "overload continues", "overload continues"]


async def publish(writer: Wire, *packet_ids: int) -> None:
    for packet_id in packet_ids:
        await writer.send(Publish("t", b"x", 1, packet_id=packet_id))
        await writer.expect(Puback)


async def test_drops_after_the_last_line_are_told_before_the_broker_ends() -> None:
    """They come within the interval, in which there is no other line."""
    with capture_logs() as lines:
        async with broker({"session": {"queue_messages_max": 1}}) as running:
            await offline_subscriber(running, "t")
            writer = await connect(running, "writer")
            await publish(writer, 1, 2)
            await until(lambda: any("dropped_queue_messages" in line for line in lines))
            await publish(writer, 3, 4, 5, 6, 7, 8)
            await writer.close()
    told = [line for line in lines if "dropped_queue_messages" in line]
    (drained,) = [line for line in lines if line["event"] == "drained"]
    dropped = [line["dropped_queue_messages"] for line in told]
    assert dropped == [1, 6]
    assert drained["messages_dropped_or_rejected_since_start"] == 7
    assert lines.index(told[-1]) < lines.index(drained)
