"""Unread bytes of clients are bounded in memory, objects included, for all of them together."""

from flowguard.types import Publish
from tests.support.stage import Stage

KIB = 1024


def test_a_large_message_for_many_is_there_once() -> None:
    """With a frame for each 5.0 client it would be a hundred times as much, before it is sent."""
    stage = Stage()
    clients = [stage.connect(f"c{number}") for number in range(100)]
    for client in clients:
        client.subscribe("t")
    tails = set()
    publisher = stage.connect("p").connection.inbound
    assert publisher is not None
    stage.node.packets.publish(publisher, Publish("t", bytes(100 * KIB)), stage.now_s)
    for client in clients:
        tails |= {
            id(frame) for frame in client.connection.outbound.outbox.frames if len(frame) > KIB
        }
    assert len(tails) == 1
    stage.settle()
    assert all(len(client.publishes()[0].payload) == 100 * KIB for client in clients)
