"""Stages where `session.queue_policy = "block"` holds, and queues there that are full."""

from typing import Any

from flowguard.codec.packets import Puback, Pubrec
from flowguard.stores import MemoryStore
from tests.flowguard.node.ledger import check_budgets, check_store
from tests.support.stage import Client, Stage

KIB = 1024
BLOCK_S = 30


def blocking(store: MemoryStore | None = None, messages_max: int = 2, **session: Any) -> Stage:
    limits = {"queue_policy": "block", "queue_messages_max": messages_max, **session}
    return Stage({"session": limits}, store=store)


def slow(stage: Stage, client_id: str = "s", **properties: Any) -> Client:
    """A subscriber to `a` with one message in flight, its maximum, and an empty queue."""
    client = stage.connect_durable(client_id, receive_maximum=1, **properties)
    client.subscribe("a", f"for/{client_id}", qos=2)
    stage.connect("first").publish(f"for/{client_id}", b"first", qos=1)
    return client


def fill(stage: Stage) -> None:
    """Fill the queue of the subscriber to `a` with two messages."""
    publisher = stage.connect("filler")
    for number in (1, 2):
        publisher.publish("a", b"full %d" % number, qos=1)
    assert len(acknowledged(publisher)) == 2


def take_one(client: Client) -> bytes:
    """Receive and acknowledge the message that is in flight."""
    (message,) = client.publishes(acknowledge=False)
    client.send(Puback(message.packet_id))
    return message.payload


def acknowledged(client: Client) -> list[int]:
    return [packet.packet_id for packet in client.take() if isinstance(packet, Puback | Pubrec)]


def check(stage: Stage) -> None:
    check_budgets(stage.node, [])
    check_store(stage.node, stage.store)


def waiting(stage: Stage, **properties: Any) -> Client:
    """A publisher whose message waits."""
    fill(stage)
    publisher = stage.connect("p")
    publisher.publish("a", b"new", qos=1, **properties)
    assert acknowledged(publisher) == []
    return publisher
