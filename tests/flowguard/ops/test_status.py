"""The status is complete JSON of the node's state."""

import json
from collections import deque

import pytest

from flowguard.flow import Reason
from flowguard.flow.load.signals import Pressure, Signal
from flowguard.flow.policy import Grant
from flowguard.flow.verdict import Cut
from flowguard.ops.common.measurement import MemoryStatus
from flowguard.ops.pressure import DECISIONS_SHOWN, decisions_of
from flowguard.ops.status import Status, status_of
from tests.support.stage import Stage


def status(stage: Stage) -> Status:
    memory = MemoryStatus(held_bytes=900, resident_bytes=1_000, limit_bytes=4_000)
    return status_of(stage.node, stage.now_s, memory)


def decided(stage: Stage, *grants: Grant) -> None:
    stage.node.guard.decisions = deque(
        (stage.now_s + number, grant) for number, grant in enumerate(grants)
    )


def test_it_survives_json() -> None:
    stage = Stage()
    decided(stage, Grant(50.0, Pressure(2.0, Signal.STORE, {Signal.STORE: 2.0}), "cut"))
    shown = status(stage)
    assert json.loads(json.dumps(shown)) == shown


def test_an_idle_node_is_calm() -> None:
    shown = status(Stage({"flow": {"window_max": 40}}))
    assert shown["window"]["limit"] == shown["window"]["limit_max"] == 40
    assert shown["window"]["closed"] is False
    assert shown["pressure"]["value"] == 0.0
    assert shown["pressure"]["cause"] is None
    assert set(shown["pressure"]["signals"]) == set(Signal)
    assert shown["gate"]["rung"] == "buffer"
    assert shown["gate"]["refused"] == shown["dropped"] == {}
    assert shown["decisions"] == []


def test_clients_sessions_and_traffic_are_counted() -> None:
    stage = Stage()
    stage.connect_durable("away").close()
    client = stage.connect("here")
    client.subscribe("t", "u")
    client.publish("t", b"12345")
    shown = status(stage)
    assert shown["clients"]["connected"] == 1
    assert shown["clients"]["sessions"] == 2
    assert shown["clients"]["subscriptions"] == 2
    assert shown["traffic"]["publish_received"] == shown["traffic"]["publish_sent"] == 1
    assert shown["traffic"]["publish_received_bytes"] == 5
    assert shown["traffic"]["connects_accepted"] == 2


def test_what_is_in_process_is_seen_until_it_is_durable() -> None:
    stage = Stage()
    subscriber = stage.connect_durable("s")
    subscriber.subscribe("t", qos=1)
    publisher = stage.connect("p")
    stage.hold_commits = True
    publisher.publish("t", b"x", qos=1)
    stage.now_s += 2
    shown = status(stage)
    assert shown["unfinished"]["packets"]["used"] == 1
    assert shown["journal"]["operations"]["used"] >= 1
    assert shown["journal"]["bytes"]["used"] > 0
    assert shown["journal"]["committing_s"] == pytest.approx(2)
    stage.release_commits()
    shown = status(stage)
    assert shown["unfinished"]["packets"]["used"] == 0
    assert shown["journal"]["operations"]["used"] == 0


def test_waiting_messages_show_in_their_budget() -> None:
    stage = Stage()
    subscriber = stage.connect_durable("s")
    subscriber.subscribe("t", qos=1)
    subscriber.close()
    stage.connect("p").publish("t", bytes(1_000), qos=1)
    budget = status(stage)["budgets"]["queue"]
    assert budget["used"] >= 1_000
    assert budget["limit"] == stage.node.settings.node.queue_bytes_max


def test_refusals_and_drops_carry_their_reasons() -> None:
    stage = Stage({"session": {"queue_messages_max": 1}})
    subscriber = stage.connect_durable("s")
    subscriber.subscribe("t", qos=1)
    subscriber.close()
    publisher = stage.connect("p")
    for _ in range(3):
        publisher.publish("t", b"x", qos=1)
    stage.node.guard.gate.refused[Reason.GATE_DEADLINE] = 7
    stage.node.guard.gate.cuts[Cut.PRESSURE] = 2
    shown = status(stage)
    assert shown["dropped"] == {"queue_messages": 2}
    assert shown["gate"]["refused"] == {"gate_deadline": 7}
    assert shown["gate"]["cuts"] == {"pressure": 2}


def test_draining_is_seen() -> None:
    stage = Stage()
    stage.node.drain(stage.now_s)
    assert status(stage)["draining"] is True


def test_what_may_be_in_process_is_shown_unless_it_is_unlimited() -> None:
    unfinished = status(Stage({"flow": {"unfinished_bytes_max": 2**20}}))["unfinished"]
    assert unfinished["bytes"]["limit"] == 2**20
    unfinished = status(Stage({"flow": {"policy": "unlimited"}}))["unfinished"]
    assert unfinished["bytes"]["limit"] is unfinished["packets"]["limit"] is None


def test_a_policy_that_decides_nothing_is_shown_beside() -> None:
    shadow = status(Stage({"flow": {"shadow_policy": "static-10"}}))["shadow"]
    assert shadow is not None
    assert shadow["policy"] == "static-10"
    assert json.loads(json.dumps(shadow)) == shadow
    assert shadow["limits"] == {}
    assert status(Stage())["shadow"] is None


@pytest.mark.parametrize(
    ("signal", "part", "value", "threshold", "unit"),
    [
        (Signal.QUEUE, 3.0, 0.075, 0.025, "s"),
        (Signal.LOOP, 0.5, 0.025, 0.050, "s"),
        (Signal.STORE, 2.0, 0.150, 0.075, "s"),
        (Signal.REPLICATION, 1.0, 0.100, 0.100, "s"),
        (Signal.MEMORY, 1.0, 0.70, 0.70, "share"),
        (Signal.MEMORY, 4.0, 0.90, 0.70, "share"),
    ],
)
def test_a_decision_carries_signal_value_and_threshold_in_their_own_unit(
    signal: Signal, part: float, value: float, threshold: float, unit: str
) -> None:
    stage = Stage()
    decided(stage, Grant(7.5, Pressure(part, signal, {signal: part}), "because"))
    (decision,) = decisions_of(stage.node)
    assert decision["signal"] == signal
    assert decision["value"] == pytest.approx(value)
    assert decision["threshold"] == pytest.approx(threshold)
    assert decision["unit"] == unit
    assert decision["window"] == 7.5
    assert decision["at_s"] == stage.now_s
    assert decision["why"] == "because"


def test_the_gate_says_what_rejected_clients_are_told() -> None:
    stage = Stage()
    told_s = stage.node.guard.gate.retry_after_s(0.5)
    assert status(stage)["gate"]["retry_after_s"] == told_s > 0


def test_a_decision_without_a_cause_has_no_signal() -> None:
    stage = Stage()
    decided(stage, Grant(10.0, why="grown"))
    (decision,) = decisions_of(stage.node)
    assert decision["signal"] is decision["value"] is decision["threshold"] is None


def test_the_latest_decisions_are_shown_oldest_first() -> None:
    stage = Stage()
    decided(stage, *(Grant(float(window)) for window in range(1, 3 * DECISIONS_SHOWN)))
    windows = [decision["window"] for decision in status(stage)["decisions"]]
    assert windows == [float(w) for w in range(2 * DECISIONS_SHOWN, 3 * DECISIONS_SHOWN)]
