"""A full queue: what gives way, over a store in memory and over one that pages."""

from typing import Any

import pytest

from flowguard.codec.packets import Puback
from flowguard.flow import Reason
from flowguard.records import DELIVERY_BYTES
from flowguard.session import backlog
from flowguard.stores import MemoryStore
from flowguard.types import Publish
from tests.flowguard.node.ledger import check_budgets, check_store
from tests.support.stage import Client, Stage, StoreOnDisk

KIB = 1024
MIB = 1024 * KIB


def stage_with(store: MemoryStore, policy: str, **session: Any) -> Stage:
    return Stage({"session": {"queue_policy": policy, **session}}, store=store)


def reopened(stage: Stage, **session: Any) -> Stage:
    """After a restart with other limits."""
    policy = stage.node.settings.session.queue_policy
    settings = {"session": {"queue_policy": policy, **session}}
    return Stage(settings, store=stage.store, now_s=stage.now_s)


def absent(stage: Stage) -> None:
    """The subscriber has been there and is away."""
    client = stage.connect_durable("s")
    client.subscribe("a", qos=1)
    client.close()


def numbered(*numbers: int, size_bytes: int = 0) -> list[bytes]:
    return [b"%d " % number + bytes(size_bytes) for number in numbers]


def numbers(client: Client) -> list[int]:
    return [int(message.payload.split(b" ")[0]) for message in client.publishes()]


def publish(stage: Stage, *payloads: bytes, together: bool = False) -> None:
    """One by one, or in one chunk, so that one commit has them all."""
    publisher = stage.connect("p")
    packets = [Publish("a", payload, 1, packet_id=n) for n, payload in enumerate(payloads, 1)]
    if together:
        publisher.send(*packets)
    else:
        for packet in packets:
            publisher.send(packet)
    assert [packet.packet_id for packet in publisher.take() if isinstance(packet, Puback)] == [
        packet.packet_id for packet in packets
    ], "a full queue is no matter of the publisher"


def check(stage: Stage) -> None:
    check_budgets(stage.node, [])
    check_store(stage.node, stage.store)


# --- by count and by bytes -----------------------------------------------------------------------


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
@pytest.mark.parametrize(
    ("policy", "left"), [("drop-new", [1, 2, 3, 4]), ("drop-oldest", [7, 8, 9, 10])]
)
def test_a_full_queue_keeps_the_first_or_the_last(
    store: MemoryStore, policy: str, left: list[int], together: bool
) -> None:
    stage = stage_with(store, policy, queue_messages_max=4)
    absent(stage)
    publish(stage, *numbered(*range(1, 8)), together=together)
    publish(stage, *numbered(*range(8, 11)), together=together)
    assert stage.node.counters.dropped == {Reason.QUEUE_MESSAGES: 6}
    check(stage)
    assert numbers(stage.connect_durable("s")) == left
    check(stage)


@pytest.mark.parametrize(("policy", "left"), [("drop-new", [1, 2, 6]), ("drop-oldest", [4, 5, 6])])
def test_the_same_by_bytes(store: MemoryStore, policy: str, left: list[int]) -> None:
    size_bytes = KIB - DELIVERY_BYTES - len("a") - len("1 ")
    limit_bytes = 2 * KIB + KIB // 2
    stage = stage_with(store, policy, queue_bytes_max=limit_bytes, packet_size_max=limit_bytes)
    absent(stage)
    publish(stage, *numbered(1, 2, 3, 4, 5, size_bytes=size_bytes), b"6 ")
    assert stage.node.counters.dropped == {Reason.QUEUE_BYTES: 3}
    check(stage)
    assert numbers(stage.connect_durable("s")) == left


def test_a_large_message_makes_as_many_small_ones_give_way_as_it_needs(store: MemoryStore) -> None:
    limit_bytes = 4 * KIB
    stage = stage_with(
        store, "drop-oldest", queue_bytes_max=limit_bytes, packet_size_max=limit_bytes
    )
    absent(stage)
    publish(stage, *numbered(*range(1, 17)))
    small_bytes = DELIVERY_BYTES + len("a") + len("1 ")
    assert stage.node.counters.dropped == {}
    publish(stage, *numbered(17, size_bytes=2 * KIB))
    dropped = stage.node.counters.dropped[Reason.QUEUE_BYTES]
    assert dropped * small_bytes >= 2 * KIB - (limit_bytes - 16 * small_bytes)
    check(stage)
    assert numbers(stage.connect_durable("s")) == list(range(1 + dropped, 18))


@pytest.mark.parametrize("policy", ["drop-new", "drop-oldest"])
def test_a_message_larger_than_the_queue_makes_nobody_give_way(
    store: MemoryStore, policy: str
) -> None:
    stage = stage_with(store, policy, queue_bytes_max=4 * KIB, packet_size_max=4 * KIB)
    absent(stage)
    publish(stage, b"1 ", b"2 ", *numbered(3, size_bytes=4 * KIB - DELIVERY_BYTES))
    assert stage.node.counters.dropped == {Reason.QUEUE_BYTES: 1}
    check(stage)
    assert numbers(stage.connect_durable("s")) == [1, 2]


def test_a_node_full_of_others_is_not_helped_by_dropping_what_is_old() -> None:
    stage = Stage(
        {
            "session": {"queue_policy": "drop-oldest", "queue_bytes_max": MIB},
            "node": {"queue_bytes_max": MIB},
        }
    )
    absent(stage)
    other = stage.connect_durable("other")
    other.subscribe("b", qos=1)
    other.close()
    stage.connect("p2").publish("b", bytes(700 * KIB), qos=1)
    publish(stage, *numbered(1), *numbered(2, size_bytes=400 * KIB))
    assert stage.node.counters.dropped == {Reason.NODE_QUEUE_BYTES: 1}
    assert numbers(stage.connect_durable("s")) == [1]


def test_who_fills_the_node_makes_room_of_its_own_oldest(store: MemoryStore) -> None:
    stage = Stage(
        {
            "session": {"queue_policy": "drop-oldest", "queue_bytes_max": MIB},
            "node": {"queue_bytes_max": MIB, "disk_queue_bytes_max": MIB},
        },
        store=store,
    )
    absent(stage)
    publish(stage, *numbered(*range(20), size_bytes=100 * KIB))
    on_disk = stage.node.state.spills
    reason = Reason.NODE_DISK_QUEUE_BYTES if on_disk else Reason.NODE_QUEUE_BYTES
    assert stage.node.counters.dropped == {reason: 13}
    check(stage)
    assert numbers(stage.connect_durable("s")) == list(range(13, 20))


# --- what was sent never gives way ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "left"), [("drop-new", [3, 4, 5]), ("drop-oldest", [10, 11, 12])]
)
def test_what_is_in_flight_is_untouched(store: MemoryStore, policy: str, left: list[int]) -> None:
    stage = stage_with(store, policy, queue_messages_max=3)
    client = stage.connect_durable("s", receive_maximum=2)
    client.subscribe("a", qos=1)
    publish(stage, *numbered(*range(1, 13)))
    assert stage.node.counters.dropped == {Reason.QUEUE_MESSAGES: 7}
    session = client.connection.session
    assert session is not None
    assert len(session.inflight.messages) == 2
    check(stage)
    assert numbers(client) == [1, 2, *left]
    check(stage)


@pytest.mark.parametrize(
    ("policy", "left"), [("drop-new", [3, 4, 5]), ("drop-oldest", [10, 11, 12])]
)
def test_the_bound_holds_while_the_client_is_away_or_the_broker_restarts(
    store: MemoryStore, policy: str, left: list[int]
) -> None:
    stage = stage_with(store, policy, queue_messages_max=3)
    client = stage.connect_durable("s", receive_maximum=2)
    client.subscribe("a", qos=1)
    publish(stage, *numbered(*range(1, 6)))
    client.close()
    publish(stage, *numbered(6, 7))
    stage.restart()
    publish(stage, *numbered(*range(8, 13)))
    check(stage)
    got = numbers(stage.connect_durable("s"))
    assert got[:5] == [1, 2, *left]
    # Until a page has been looked at, its messages may have expired: see `admit_message`.
    assert len(got) <= 5 + (backlog.PAGE_MAX if policy == "drop-new" and store.on_disk else 0)
    check(stage)


def test_retained_messages_come_between_live_ones_each_once_and_none_gives_way(
    store: MemoryStore,
) -> None:
    """They are owed, and take free places only."""
    stage = stage_with(store, "drop-oldest", queue_messages_max=3)
    publisher = stage.connect("r")
    for number in range(1, 5):
        publisher.publish(f"r/{number}", b"%d " % number, qos=1, retain=True)
    client = stage.connect_durable("s", receive_maximum=2)
    client.subscribe("a", qos=1)
    client.subscribe("r/#", qos=1)
    first, _ = client.publishes(acknowledge=False)
    other = stage.connect("p2")
    stage.hold_commits = True
    other.publish("a", b"5 ", qos=1)
    client.send(Puback(first.packet_id))
    stage.release_commits()
    assert len(client.publishes(acknowledge=False)) == 1
    client.close()
    publish(stage, b"6 ")
    check(stage)
    again = stage.connect_durable("s", receive_maximum=2)
    got = numbers(again)
    assert got == [2, 5, 3, 6, 4]
    check(stage)


# --- on its way to the store, and on disk --------------------------------------------------------


def test_what_is_on_its_way_to_the_store_gives_way_when_it_arrives(store: MemoryStore) -> None:
    """A page of it at most is above the limits; what comes then is refused."""
    stage = stage_with(store, "drop-oldest", queue_messages_max=4)
    absent(stage)
    publisher = stage.connect("p")
    queue = stage.node.registry.sessions["s"].queue
    stage.hold_commits = True
    for number in range(1, 11):
        publisher.publish("a", b"%d " % number, qos=1)
        assert queue.count <= 4 + backlog.PAGE_MAX
    assert stage.node.counters.dropped == {Reason.QUEUE_MESSAGES: 10 - 4 - backlog.PAGE_MAX}
    stage.release_commits()
    assert stage.node.counters.dropped == {Reason.QUEUE_MESSAGES: 10 - 4}
    check(stage)
    assert numbers(stage.connect_durable("s")) == [4, 5, 6, 7]


def test_bytes_too_are_above_their_limit_by_a_page_and_a_message_at_most(
    store: MemoryStore,
) -> None:
    limit_bytes = 4 * KIB
    stage = stage_with(
        store, "drop-oldest", queue_bytes_max=limit_bytes, packet_size_max=limit_bytes
    )
    absent(stage)
    publisher = stage.connect("p")
    queue = stage.node.registry.sessions["s"].queue
    stage.hold_commits = True
    for number in range(1, 11):
        publisher.publish("a", b"%d " % number + bytes(KIB), qos=1)
        assert queue.size_bytes <= limit_bytes + backlog.PAGE_BYTES_MAX + KIB + DELIVERY_BYTES + 3
    stage.release_commits()
    assert set(stage.node.counters.dropped) == {Reason.QUEUE_BYTES}
    assert queue.size_bytes <= limit_bytes
    check(stage)


def test_the_oldest_of_a_backlog_on_disk_are_fetched_to_be_dropped(
    small_pages: None,
) -> None:
    """No more of them than has to go; until they are there a page is above the limits."""
    stage = stage_with(StoreOnDisk(), "drop-oldest", queue_messages_max=10)
    absent(stage)
    publish(stage, *numbered(*range(1, 11)))
    node = stage.node
    queue = node.registry.sessions["s"].queue
    publisher = stage.connect("p2")
    stage.hold_fetches = True
    for number in range(11, 20):
        publisher.publish("a", b"%d " % number, qos=1)
    assert queue.count == 10 + backlog.PAGE_MAX
    assert node.counters.dropped == {Reason.QUEUE_MESSAGES: 9 - backlog.PAGE_MAX}
    (fetch,) = node.state.fetches
    assert fetch.count_max == 1, "one message was above the limits when it was asked for"
    stage.release_fetches()
    assert queue.count == 10
    assert node.counters.dropped == {Reason.QUEUE_MESSAGES: 9}
    check(stage)
    assert numbers(stage.connect_durable("s")) == list(range(4, 14))


# --- lower limits after a restart ----------------------------------------------------------------


def test_what_was_accepted_under_higher_limits_is_kept_and_nothing_new(store: MemoryStore) -> None:
    stage = stage_with(store, "drop-new")
    absent(stage)
    publish(stage, *numbered(*range(1, 11)))
    stage = reopened(stage, queue_messages_max=4)
    publish(stage, *numbered(11, 12))
    assert stage.node.counters.dropped == {Reason.QUEUE_MESSAGES: 2}
    check(stage)
    assert numbers(stage.connect_durable("s")) == list(range(1, 11))
    check(stage)


def test_with_drop_oldest_it_gives_way_to_the_next_message(store: MemoryStore) -> None:
    stage = stage_with(store, "drop-oldest")
    absent(stage)
    publish(stage, *numbered(*range(1, 31)))
    stage = reopened(stage, queue_messages_max=4)
    assert stage.node.counters.dropped == {}
    publish(stage, *numbered(31, 32, 33))
    check(stage)
    assert stage.node.registry.sessions["s"].queue.count == 4
    publish(stage, *numbered(34, 35))
    assert numbers(stage.connect_durable("s"))[-2:] == [34, 35]
    assert set(stage.node.counters.dropped) == {Reason.QUEUE_MESSAGES}
    check(stage)


def test_what_was_accepted_is_kept_though_the_node_has_less_room_for_it(
    store: MemoryStore,
) -> None:
    stage = stage_with(store, "drop-new")
    absent(stage)
    publish(stage, *numbered(*range(1, 9), size_bytes=200 * KIB))
    settings = {"session": {"queue_bytes_max": MIB}, "node": {"queue_bytes_max": MIB}}
    stage = Stage(settings, store=store, now_s=stage.now_s)
    assert numbers(stage.connect_durable("s")) == list(range(1, 9))
    assert stage.node.queue_budget.used_bytes == 0
