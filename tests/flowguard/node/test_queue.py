"""Bounds on the way to a slow client: what does not fit is dropped, counted and forgotten."""

import pytest

from flowguard.flow import Reason
from tests.support.stage import Client, Stage

KIB = 1024


def slow(stage: Stage, version: int = 5, client_id: str = "s") -> Client:
    """A subscriber that has not acknowledged as many messages as it may be sent: one."""
    client = stage.connect_durable(client_id, version=version)
    client.subscribe("a", qos=1)
    stage.connect("first").publish("a", b"first", qos=1)
    client.publishes(acknowledge=False)
    return client


def publish(stage: Stage, *payloads: bytes, qos: int = 1) -> None:
    publisher = stage.connect("p")
    for payload in payloads:
        publisher.publish("a", payload, qos=qos)


@pytest.mark.parametrize("end", ["clean start", "expiry"])
def test_an_ended_session_gives_the_bytes_of_its_queue_back(end: str) -> None:
    stage = Stage()
    client = stage.connect_durable("s", session_expiry_interval=5)
    client.subscribe("a", qos=1)
    client.close()
    publish(stage, bytes(1_000))
    assert stage.node.state.queue_budget.used_bytes > 1_000
    if end == "expiry":
        stage.advance(6)
    else:
        stage.connect("s")
    assert stage.node.state.queue_budget.used_bytes == 0


def test_what_was_dropped_does_not_come_back_after_a_restart(version: int) -> None:
    stage = Stage({"session": {"inflight_max": 1, "queue_messages_max": 1}})
    slow(stage, version)
    publish(stage, b"one", b"two")
    assert stage.node.counters.dropped == {Reason.QUEUE_MESSAGES: 1}
    stage = Stage(store=stage.store, now_s=stage.now_s)  # with a large queue
    client = stage.connect_durable("s", version=version)
    assert [message.payload for message in client.publishes()] == [b"first", b"one"]


@pytest.mark.parametrize("excess_bytes", [0, 5_000])
def test_one_qos_0_message_is_always_possible_however_large(
    version: int, excess_bytes: int
) -> None:
    """All receivers share the end of the message, or it is sent as a frame of its own."""
    stage = Stage({"session": {"outbox_bytes_max": 16 * KIB}})
    client = stage.connect("s", version=version)
    client.subscribe("a")
    publish(stage, bytes(16 * KIB + excess_bytes), qos=0)
    (message,) = client.publishes()
    assert len(message.payload) == 16 * KIB + excess_bytes
    assert stage.node.counters.dropped == {}
