"""A full queue: what gives way, over a store in memory and over one that pages."""

from typing import Any

import pytest

from flowguard.codec.packets import Puback
from flowguard.flow import Reason
from flowguard.records import DELIVERY_BYTES
from flowguard.session.outbound import backlog
from flowguard.stores import MemoryStore
from flowguard.types import Publish
from tests.flowguard.session.sessions import Sessions, StoreOnDisk
from tests.support.readings import first_numbers
from tests.support.sendings import numbered

KIB = 1024
MIB = 1024 * KIB


def stage_with(store: MemoryStore, policy: str, **session: Any) -> Sessions:
    return Sessions({"session": {"queue_policy": policy, **session}}, store=store)


def absent(sessions: Sessions) -> None:
    """Connect the subscriber once and disconnect it."""
    client = sessions.connect_durable("s")
    client.subscribe("a", qos=1)
    client.close()


def publish(sessions: Sessions, *payloads: bytes, together: bool = False) -> None:
    """One by one, or in one chunk, so that one commit has them all."""
    publisher = sessions.connect("p")
    packets = [Publish("a", payload, 1, packet_id=n) for n, payload in enumerate(payloads, 1)]
    if together:
        publisher.send(*packets)
    else:
        for packet in packets:
            publisher.send(packet)
    assert [packet.packet_id for packet in publisher.take() if isinstance(packet, Puback)] == [
        packet.packet_id for packet in packets
    ], "a full queue is no matter of the publisher"


def check(sessions: Sessions) -> None:
    sessions.check()
    sessions.check_store()


# --- by count and by bytes -----------------------------------------------------------------------


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
@pytest.mark.parametrize(
    ("policy", "left"), [("drop-new", [1, 2, 3, 4]), ("drop-oldest", [7, 8, 9, 10])]
)
def test_a_full_queue_keeps_the_first_or_the_last(
    store: MemoryStore, policy: str, left: list[int], together: bool
) -> None:
    sessions = stage_with(store, policy, queue_messages_max=4)
    absent(sessions)
    publish(sessions, *numbered(*range(1, 8)), together=together)
    publish(sessions, *numbered(*range(8, 11)), together=together)
    assert sessions.node.counters.dropped == {Reason.QUEUE_MESSAGES: 6}
    check(sessions)
    assert first_numbers(sessions.connect_durable("s")) == left
    check(sessions)


@pytest.mark.parametrize(("policy", "left"), [("drop-new", [1, 2, 6]), ("drop-oldest", [4, 5, 6])])
def test_the_same_by_bytes(store: MemoryStore, policy: str, left: list[int]) -> None:
    size_bytes = KIB - DELIVERY_BYTES - len("a") - len("1 ")
    limit_bytes = 2 * KIB + KIB // 2
    sessions = stage_with(store, policy, queue_bytes_max=limit_bytes, packet_size_max=limit_bytes)
    absent(sessions)
    publish(sessions, *numbered(1, 2, 3, 4, 5, size_bytes=size_bytes), b"6 ")
    assert sessions.node.counters.dropped == {Reason.QUEUE_BYTES: 3}
    check(sessions)
    assert first_numbers(sessions.connect_durable("s")) == left


def test_a_large_message_makes_as_many_small_ones_give_way_as_it_needs(store: MemoryStore) -> None:
    limit_bytes = 4 * KIB
    sessions = stage_with(
        store, "drop-oldest", queue_bytes_max=limit_bytes, packet_size_max=limit_bytes
    )
    absent(sessions)
    publish(sessions, *numbered(*range(1, 17)))
    small_bytes = DELIVERY_BYTES + len("a") + len("1 ")
    assert sessions.node.counters.dropped == {}
    publish(sessions, *numbered(17, size_bytes=2 * KIB))
    dropped = sessions.node.counters.dropped[Reason.QUEUE_BYTES]
    assert dropped * small_bytes >= 2 * KIB - (limit_bytes - 16 * small_bytes)
    check(sessions)
    assert first_numbers(sessions.connect_durable("s")) == list(range(1 + dropped, 18))


@pytest.mark.parametrize("policy", ["drop-new", "drop-oldest"])
def test_a_message_larger_than_the_queue_makes_nobody_give_way(
    store: MemoryStore, policy: str
) -> None:
    sessions = stage_with(store, policy, queue_bytes_max=4 * KIB, packet_size_max=4 * KIB)
    absent(sessions)
    publish(sessions, b"1 ", b"2 ", *numbered(3, size_bytes=4 * KIB - DELIVERY_BYTES))
    assert sessions.node.counters.dropped == {Reason.QUEUE_BYTES: 1}
    check(sessions)
    assert first_numbers(sessions.connect_durable("s")) == [1, 2]


def test_a_node_full_of_others_is_not_helped_by_dropping_what_is_old() -> None:
    sessions = Sessions(
        {
            "session": {"queue_policy": "drop-oldest", "queue_bytes_max": MIB},
            "node": {"queue_bytes_max": MIB},
        }
    )
    absent(sessions)
    other = sessions.connect_durable("other")
    other.subscribe("b", qos=1)
    other.close()
    sessions.connect("p2").publish("b", bytes(700 * KIB), qos=1)
    publish(sessions, *numbered(1), *numbered(2, size_bytes=400 * KIB))
    assert sessions.node.counters.dropped == {Reason.NODE_QUEUE_BYTES: 1}
    assert first_numbers(sessions.connect_durable("s")) == [1]


def test_who_fills_the_node_makes_room_of_its_own_oldest(store: MemoryStore) -> None:
    sessions = Sessions(
        {
            "session": {"queue_policy": "drop-oldest", "queue_bytes_max": MIB},
            "node": {"queue_bytes_max": MIB, "disk_queue_bytes_max": MIB},
        },
        store=store,
    )
    absent(sessions)
    publish(sessions, *numbered(*range(20), size_bytes=100 * KIB))
    on_disk = sessions.node.spills
    reason = Reason.NODE_DISK_QUEUE_BYTES if on_disk else Reason.NODE_QUEUE_BYTES
    assert sessions.node.counters.dropped == {reason: 13}
    check(sessions)
    assert first_numbers(sessions.connect_durable("s")) == list(range(13, 20))


# --- what was sent never gives way ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "left"), [("drop-new", [3, 4, 5]), ("drop-oldest", [10, 11, 12])]
)
def test_what_is_in_flight_is_untouched(store: MemoryStore, policy: str, left: list[int]) -> None:
    sessions = stage_with(store, policy, queue_messages_max=3)
    client = sessions.connect_durable("s", receive_maximum=2)
    client.subscribe("a", qos=1)
    publish(sessions, *numbered(*range(1, 13)))
    assert sessions.node.counters.dropped == {Reason.QUEUE_MESSAGES: 7}
    session = client.connection.session
    assert session is not None
    assert len(session.inflight.messages) == 2
    check(sessions)
    assert first_numbers(client) == [1, 2, *left]
    check(sessions)


# --- on its way to the store, and on disk --------------------------------------------------------


def test_what_is_on_its_way_to_the_store_gives_way_when_it_arrives(store: MemoryStore) -> None:
    """A page of it at most is above the limits; what comes then is refused."""
    sessions = stage_with(store, "drop-oldest", queue_messages_max=4)
    absent(sessions)
    publisher = sessions.connect("p")
    queue = sessions.sessions["s"].queue
    sessions.hold_commits = True
    for number in range(1, 11):
        publisher.publish("a", b"%d " % number, qos=1)
        assert queue.count <= 4 + backlog.PAGE_MAX
    assert sessions.node.counters.dropped == {Reason.QUEUE_MESSAGES: 10 - 4 - backlog.PAGE_MAX}
    sessions.release_commits()
    assert sessions.node.counters.dropped == {Reason.QUEUE_MESSAGES: 10 - 4}
    check(sessions)
    assert first_numbers(sessions.connect_durable("s")) == [4, 5, 6, 7]


def test_bytes_too_are_above_their_limit_by_a_page_and_a_message_at_most(
    store: MemoryStore,
) -> None:
    limit_bytes = 4 * KIB
    sessions = stage_with(
        store, "drop-oldest", queue_bytes_max=limit_bytes, packet_size_max=limit_bytes
    )
    absent(sessions)
    publisher = sessions.connect("p")
    queue = sessions.sessions["s"].queue
    sessions.hold_commits = True
    for number in range(1, 11):
        publisher.publish("a", b"%d " % number + bytes(KIB), qos=1)
        assert queue.size_bytes <= limit_bytes + backlog.PAGE_BYTES_MAX + KIB + DELIVERY_BYTES + 3
    sessions.release_commits()
    assert set(sessions.node.counters.dropped) == {Reason.QUEUE_BYTES}
    assert queue.size_bytes <= limit_bytes
    check(sessions)


def test_the_oldest_of_a_backlog_on_disk_are_fetched_to_be_dropped(
    small_pages: None,
) -> None:
    """No more of them are dropped than necessary; until then a page is above the limits."""
    sessions = stage_with(StoreOnDisk(), "drop-oldest", queue_messages_max=10)
    absent(sessions)
    publish(sessions, *numbered(*range(1, 11)))
    node = sessions.node
    queue = sessions.sessions["s"].queue
    publisher = sessions.connect("p2")
    sessions.hold_fetches = True
    for number in range(11, 20):
        publisher.publish("a", b"%d " % number, qos=1)
    assert queue.count == 10 + backlog.PAGE_MAX
    assert node.counters.dropped == {Reason.QUEUE_MESSAGES: 9 - backlog.PAGE_MAX}
    (fetch,) = node.fetches
    assert fetch.count_max == 1, "one message was above the limits when it was asked for"
    sessions.release_fetches()
    assert queue.count == 10
    assert node.counters.dropped == {Reason.QUEUE_MESSAGES: 9}
    check(sessions)
    assert first_numbers(sessions.connect_durable("s")) == list(range(4, 14))
