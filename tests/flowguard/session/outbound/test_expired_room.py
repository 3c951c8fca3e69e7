"""Messages that expire in a queue free capacity before a new one is rejected or an old one dropped.

With a store in memory that happens at once. On disk the queue searches for them page by page, and
only while one of them may have expired; until then it is at most a page above its limits.
"""

from collections.abc import Callable

import pytest

from flowguard.codec.packets import Puback
from flowguard.flow import Reason
from flowguard.session.outbound import backlog
from flowguard.stores import MemoryStore
from tests.flowguard.session.sessions import Client, Sessions, StoreOnDisk
from tests.support.on_disk import CountingStore
from tests.support.readings import numbers

TTL_S = 5


def full_stage(
    store: MemoryStore, *messages: tuple[int, int | None], policy: str = "drop-new"
) -> Sessions:
    """Sessions with an offline client whose queue is full of these messages.

    Each has its expiry interval or none.
    """
    limits = {"session": {"queue_policy": policy, "queue_messages_max": len(messages)}}
    sessions = Sessions(limits, store=store)
    client = sessions.connect_durable("s")
    client.subscribe("a", qos=1)
    client.close()
    publish(sessions, *messages)
    assert not sessions.node.counters.dropped
    return sessions


def publish(sessions: Sessions, *messages: tuple[int, int | None]) -> None:
    publisher = sessions.connect("p")
    for number, interval_s in messages:
        properties = {} if interval_s is None else {"message_expiry_interval": interval_s}
        publisher.publish("a", b"%d" % number, qos=1, **properties)


def check(sessions: Sessions) -> None:
    sessions.check()
    sessions.check_store()


def dropped(sessions: Sessions) -> dict[Reason, int]:
    return sessions.node.counters.dropped


# --- events that free capacity -------------------------------------------------------------------

FIRST = [(1, TTL_S), (2, TTL_S), (3, None), (4, None)]
LAST = [(1, None), (2, None), (3, TTL_S), (4, TTL_S)]
MIXED = [(1, None), (2, TTL_S), (3, 60), (4, TTL_S)]


@pytest.mark.parametrize("messages", [FIRST, LAST, MIXED], ids=["first", "last", "mixed"])
def test_expired_messages_make_room_wherever_they_wait(
    messages: list[tuple[int, int | None]],
) -> None:
    sessions = full_stage(MemoryStore(), *messages)
    sessions.advance(TTL_S + 1)
    publish(sessions, (5, None), (6, None), (7, None))
    assert dropped(sessions) == {Reason.MESSAGE_EXPIRED: 2, Reason.QUEUE_MESSAGES: 1}
    check(sessions)
    live = [number for number, interval_s in messages if interval_s != TTL_S]
    assert numbers(sessions.connect_durable("s")) == [*live, 5, 6]


@pytest.mark.parametrize("messages", [FIRST, LAST, MIXED], ids=["first", "last", "mixed"])
def test_on_disk_they_do_as_well_and_the_queue_is_a_page_above_its_limit_at_most(
    messages: list[tuple[int, int | None]], small_pages: None
) -> None:
    sessions = full_stage(StoreOnDisk(), *messages)
    sessions.advance(TTL_S + 1)
    publish(sessions, *((number, None) for number in range(5, 15)))
    assert dropped(sessions)[Reason.MESSAGE_EXPIRED] == 2
    check(sessions)
    live = [number for number, interval_s in messages if interval_s != TTL_S]
    got = numbers(sessions.connect_durable("s"))
    assert got[:4] == [*live, 5, 6]
    assert len(got) <= 4 + backlog.PAGE_MAX


def test_the_oldest_gives_way_only_when_nothing_has_expired(store: MemoryStore) -> None:
    sessions = full_stage(store, *MIXED, policy="drop-oldest")
    sessions.advance(TTL_S + 1)
    publish(sessions, (5, None), (6, None), (7, None))
    assert dropped(sessions) == {Reason.MESSAGE_EXPIRED: 2, Reason.QUEUE_MESSAGES: 1}
    check(sessions)
    assert numbers(sessions.connect_durable("s")) == [3, 5, 6, 7]


def test_a_client_that_acknowledges_nothing_has_room_again_when_its_messages_expire(
    store: MemoryStore,
) -> None:
    sessions = Sessions({"session": {"queue_messages_max": 4}}, store=store)
    client = sessions.connect_durable("s", receive_maximum=1)
    client.subscribe("a", qos=1)
    publish(sessions, (0, TTL_S), *((number, TTL_S) for number in range(1, 5)))
    (sent,) = client.publishes(acknowledge=False)
    sessions.advance(TTL_S + 1)
    publish(sessions, *((number, None) for number in range(5, 15)))
    assert dropped(sessions)[Reason.MESSAGE_EXPIRED] == 4
    check(sessions)
    client.send(Puback(sent.packet_id))
    assert numbers(client)[:4] == [5, 6, 7, 8]
    check(sessions)


def test_a_session_without_a_store_makes_room_as_well() -> None:
    sessions = Sessions({"session": {"queue_messages_max": 2}})
    client = sessions.connect("s", receive_maximum=1)
    client.subscribe("a", qos=1)
    publish(sessions, (1, None), (2, TTL_S), (3, None))
    sessions.advance(TTL_S + 1)
    publish(sessions, (4, None))
    assert dropped(sessions) == {Reason.MESSAGE_EXPIRED: 1}
    assert numbers(client) == [1, 3, 4]


def test_expired_messages_of_a_client_make_room_in_the_node() -> None:
    mib = 1024 * 1024
    limits = {"session": {"queue_bytes_max": mib}, "node": {"queue_bytes_max": mib}}
    sessions = Sessions(limits)
    client = sessions.connect_durable("s")
    client.subscribe("a", qos=1)
    client.close()
    publisher = sessions.connect("p")
    publisher.publish("a", bytes(700_000), qos=1, message_expiry_interval=TTL_S)
    sessions.node.queue_budget.limit_bytes = 800_000
    sessions.advance(TTL_S + 1)
    publisher.publish("a", bytes(200_000), qos=1)
    assert dropped(sessions) == {Reason.MESSAGE_EXPIRED: 1}
    check(sessions)


# --- how much is done for it ---------------------------------------------------------------------


def test_one_message_makes_a_page_of_them_go_at_most(small_pages: None) -> None:
    sessions = full_stage(MemoryStore(), *((number, TTL_S) for number in range(10)))
    sessions.advance(TTL_S + 1)
    publish(sessions, (10, None))
    assert dropped(sessions) == {Reason.MESSAGE_EXPIRED: backlog.PAGE_MAX}
    check(sessions)


def test_on_disk_one_page_is_looked_through_for_one_message(small_pages: None) -> None:
    store = CountingStore()
    sessions = full_stage(store, *((number, TTL_S) for number in range(10)))
    sessions.advance(TTL_S + 1)
    publish(sessions, (10, None))
    assert store.pages == 1
    assert dropped(sessions) == {Reason.MESSAGE_EXPIRED: backlog.PAGE_MAX}
    check(sessions)


def test_all_pages_are_looked_through_sooner_or_later(small_pages: None) -> None:
    live = [(number, None) for number in range(10)]
    sessions = full_stage(StoreOnDisk(), *live, (10, TTL_S))
    sessions.advance(TTL_S + 1)
    publish(sessions, *((number, None) for number in range(11, 17)))
    assert dropped(sessions)[Reason.MESSAGE_EXPIRED] == 1
    check(sessions)
    assert len(numbers(sessions.connect_durable("s"))) == 11


def test_nobody_looks_where_nothing_can_have_expired(small_pages: None) -> None:
    store = CountingStore()
    sessions = full_stage(store, *((number, None) for number in range(9)), (9, 60))
    publish(sessions, *((number, None) for number in range(10, 20)))
    assert store.pages == 0
    assert dropped(sessions) == {Reason.QUEUE_MESSAGES: 10}


def test_nobody_looks_twice_before_the_next_one_expires(small_pages: None) -> None:
    store = CountingStore()
    sessions = full_stage(store, (0, TTL_S), (1, 60), *((number, None) for number in range(2, 10)))
    sessions.advance(TTL_S + 1)
    publish(sessions, *((number, None) for number in range(10, 30)))
    assert dropped(sessions)[Reason.MESSAGE_EXPIRED] == 1
    pages = store.pages
    publish(sessions, *((number, None) for number in range(30, 50)))
    assert store.pages == pages, "all pages have been seen"
    sessions.advance(60)
    publish(sessions, *((number, None) for number in range(50, 60)))
    assert dropped(sessions)[Reason.MESSAGE_EXPIRED] == 2
    check(sessions)


def test_a_whole_queue_that_expired_takes_its_turns(store: MemoryStore) -> None:
    """A page per turn, and then what is left."""
    sessions = full_stage(store, *((number, TTL_S) for number in range(1, 20)), (20, None))
    sessions.advance(TTL_S + 1)
    client = sessions.connect_durable("s")
    assert numbers(client) == [20]
    assert dropped(sessions) == {Reason.MESSAGE_EXPIRED: 19}
    check(sessions)


# --- while pages and commits are on their way ----------------------------------------------------


def comes_back(sessions: Sessions) -> None:
    sessions.connect_durable("s")


def comes_back_and_leaves(sessions: Sessions) -> None:
    sessions.connect_durable("s", receive_maximum=1).close()


@pytest.mark.parametrize("event", [comes_back, comes_back_and_leaves])
def test_a_page_is_looked_through_whatever_its_client_does_meanwhile(
    event: Callable[[Sessions], None], small_pages: None
) -> None:
    sessions = full_stage(StoreOnDisk(), (1, None), (2, TTL_S), (3, None), (4, TTL_S))
    sessions.advance(TTL_S + 1)
    sessions.hold_fetches = True
    publish(sessions, (5, None))
    event(sessions)
    sessions.release_fetches()
    session = sessions.sessions["s"]
    client = session.outbound and session.outbound.connection.transport
    if client is None:
        client = sessions.connect_durable("s")
    assert isinstance(client, Client)
    assert numbers(client) == [1, 3, 5]
    assert dropped(sessions) == {Reason.MESSAGE_EXPIRED: 2}
    check(sessions)


def test_what_expired_is_not_found_again_before_it_is_settled(small_pages: None) -> None:
    """The store may be asked for a page before it has committed that."""
    sessions = Sessions({"session": {"queue_messages_max": 4}}, store=StoreOnDisk())
    client = sessions.connect_durable("s", receive_maximum=1)
    client.subscribe("a", qos=1)
    publish(sessions, (1, None), (2, None), (3, None), (4, TTL_S), (5, None))
    sessions.advance(TTL_S + 1)
    publisher = sessions.connect("p")
    sessions.hold_commits = True
    publisher.publish("a", b"6", qos=1)
    assert dropped(sessions) == {Reason.MESSAGE_EXPIRED: 1}
    assert numbers(client) == [1, 2, 3], "the rest is behind what is not settled yet"
    sessions.release_commits()
    assert numbers(client) == [5, 6]
    assert dropped(sessions) == {Reason.MESSAGE_EXPIRED: 1}
    check(sessions)
