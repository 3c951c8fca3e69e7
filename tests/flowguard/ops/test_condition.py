"""The sentence about the node's condition."""

from typing import Any

import pytest

from flowguard.flow.load.signals import Pressure, Signal
from flowguard.flow.policy import Grant
from flowguard.ops.condition import condition_of
from flowguard.ops.status import Status, status_of
from tests.support.stage import Stage


def status(stage: Stage, **changes: Any) -> Status:
    """The status of a stage; `window__limit=14` changes a part of it."""
    shown: dict[str, Any] = dict(status_of(stage.node, stage.now_s))
    for place, value in changes.items():
        section, _, key = place.partition("__")
        if key:
            shown[section] = {**shown[section], key: value}
        else:
            shown[section] = value
    return shown  # type: ignore[return-value]


def pressed(signal: Signal, value: float) -> Stage:
    stage = Stage()
    stage.node.guard.grant = Grant(14.0, Pressure(value, signal, {signal: value}), "cut")
    return stage


BUFFERED = {"used": 4_000, "limit": 10_000}


def test_a_calm_node_tells_of_its_clients_and_its_window() -> None:
    stage = Stage()
    stage.connect("a")
    assert condition_of(status(stage)) == ("calm", "calm: 1 client, window 100")


@pytest.mark.parametrize(
    ("signal", "value", "words"),
    [
        (Signal.QUEUE, 2.0, "packets wait 50 ms"),
        (Signal.LOOP, 30.0, "the event loop is 1.5 s late"),
        (Signal.STORE, 1.6, "store commits take 80 ms"),
        (Signal.MEMORY, 2.0, "memory is 80 % full"),
    ],
)
def test_a_busy_node_names_the_cause_with_its_value(
    signal: Signal, value: float, words: str
) -> None:
    stage = pressed(signal, value)
    now = status(stage, window__limit=14, window__granted=14.0)
    now["pressure"]["observed"].update(store=0.08, memory=0.8)
    assert condition_of(now) == ("busy", f"busy: {words}, window 14")


def test_a_crowd_at_the_gate_is_busy_though_windows_are_whole() -> None:
    now = status(Stage(), gate__buffered=BUFFERED)
    assert condition_of(now) == ("busy", "busy: 4,000 CONNECTs waiting, window 100")


def test_a_window_that_grows_again_has_no_cause_any_more() -> None:
    now = status(Stage(), window__limit=60, window__granted=60.0)
    assert condition_of(now) == ("busy", "busy: the window is growing again, window 60")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"window__granted": 0.5, "window__limit": 1}, "overloaded: clients take turns"),
        (
            {"window__closed": True},
            "overloaded: the journal is full, no packets are processed, window 100",
        ),
        ({"gate__rung": "close"}, "overloaded: new sockets are closed, window 100"),
        (
            {"store__read_only": True},
            "read-only: the store is full: durable messages and new durable sessions are rejected, "
            "window 100",
        ),
        (
            {"store__kind": "redis", "store__away_s": 12.3, "window__closed": True},
            "stalled: Redis has accepted no writes for 12 s, "
            "the journal is full, no packets are processed, window 100",
        ),
        (
            {"store__kind": "rocks", "store__away_s": 4.0},
            "stalled: the disk has completed no writes for 4 s, window 100",
        ),
        (
            {"applications__away_s": 61.0},
            "busy: Kafka has accepted no messages for 61 s, window 100",
        ),
        (
            {"draining": True, "drain": {"clients": 1_000, "gone": 400, "rest_s": 59.6}},
            "draining: 400 of 1,000 clients disconnected, 60 s left, window 100",
        ),
        ({"draining": True}, "draining: 0 clients still connected, window 100"),
    ],
)
def test_what_is_worse_than_busy_is_said_as_such(changes: dict[str, Any], sentence: str) -> None:
    assert condition_of(status(Stage(), **changes))[1] == sentence
