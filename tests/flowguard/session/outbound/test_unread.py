"""Unread bytes of clients are bounded in memory, objects included, for all of them together."""

import sys

import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists

from flowguard.codec.packets import Pingreq, Pingresp
from flowguard.session.outbound.outbox import FRAME_BYTES
from flowguard.types import Publish
from tests.flowguard.session.sessions import Client, Sessions

KIB = 1024
LIMIT_BYTES = 1024 * KIB


def deaf(sessions: Sessions, name: str) -> Client:
    """A client whose socket takes nothing more, with a byte left from before."""
    client = sessions.connect(name, version=4)
    client.reads = False
    client.send(Pingreq())
    return client


def outbox_objects_bytes(client: Client) -> int:
    """Return the size of its outbox, objects included."""
    outbox = client.connection.outbound.outbox.frames
    return sys.getsizeof(outbox) + sum(map(sys.getsizeof, outbox))


def test_small_answers_are_no_objects_of_their_own() -> None:
    sessions = Sessions()
    client = deaf(sessions, "c")
    client.send(*[Pingreq()] * 100_000)
    outbound = client.connection.outbound
    assert outbound.outbox.size_bytes == 2 * 100_001
    assert outbox_objects_bytes(client) < 1.2 * outbound.outbox.size_bytes
    assert sessions.node.outbox_budget.used_bytes == outbound.outbox.size_bytes
    client.read_again()
    assert client.take() == [Pingresp()] * 100_001
    assert sessions.node.outbox_budget.used_bytes == 0


@pytest.mark.slow
def test_who_reads_no_answers_is_not_read_once_the_node_has_no_room_for_them() -> None:
    sessions = Sessions({"node": {"outbox_bytes_max": LIMIT_BYTES}})
    clients = [deaf(sessions, f"c{number}") for number in range(50)]
    for client in clients:
        for _ in range(10):
            if client.connection.wants_read:
                client.send(*[Pingreq()] * 5_000)
    assert sessions.node.outbox_budget.used_bytes <= LIMIT_BYTES + 10_000
    assert not clients[-1].connection.wants_read
    clients[-1].read_again()
    assert clients[-1].connection.wants_read
    for client in clients:
        client.close()
    assert sessions.node.outbox_budget.used_bytes == 0


@given(sizes=lists(integers(0, 8 * KIB), min_size=1, max_size=60))
def test_what_waits_for_a_socket_takes_no_more_than_it_counts(sizes: list[int]) -> None:
    """Messages of any size, between answers."""
    sessions = Sessions()
    client = sessions.connect("c", version=4)
    client.subscribe("t")
    client.reads = False
    client.send(Pingreq())
    publisher = sessions.connect("p", version=4)
    for size in sizes:
        publisher.publish("t", bytes(size))
        client.send(Pingreq())
    counted_bytes = sessions.node.outbox_budget.used_bytes
    assert outbox_objects_bytes(client) <= counted_bytes + 10 * FRAME_BYTES
    client.read_again()
    assert [len(m.payload) for m in client.take() if isinstance(m, Publish)] == sizes
    assert sessions.node.outbox_budget.used_bytes == 0
