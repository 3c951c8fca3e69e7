"""Messages that expire while they wait make room, before a new one is refused or an old one goes.

Over a store in memory that happens at once. On disk they are looked for page by page, and only
while one of them may have expired; until then the queue is a page above its limits at most.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowguard.codec.packets import Puback
from flowguard.config import StoreSettings
from flowguard.flow import Reason
from flowguard.records import QueueEntry
from flowguard.session import backlog
from flowguard.stores import MemoryStore, Store
from flowguard.stores.rocks import RocksStore
from tests.flowguard.node.ledger import check_budgets, check_store
from tests.support.stage import Client, Stage, StoreOnDisk

TTL_S = 5


class CountingStore(StoreOnDisk):
    """Knows how often it was asked for a page."""

    pages = 0

    def fetch(self, *page: Any, **limits: Any) -> list[QueueEntry]:
        self.pages += 1
        return super().fetch(*page, **limits)


def full_stage(
    store: MemoryStore, *messages: tuple[int, int | None], policy: str = "drop-new"
) -> Stage:
    """These, each with its expiry interval or none, fill the queue of a client that is away."""
    limits = {"session": {"queue_policy": policy, "queue_messages_max": len(messages)}}
    stage = Stage(limits, store=store)
    client = stage.connect_durable("s")
    client.subscribe("a", qos=1)
    client.close()
    publish(stage, *messages)
    assert not stage.node.counters.dropped
    return stage


def publish(stage: Stage, *messages: tuple[int, int | None]) -> None:
    publisher = stage.connect("p")
    for number, interval_s in messages:
        properties = {} if interval_s is None else {"message_expiry_interval": interval_s}
        publisher.publish("a", b"%d" % number, qos=1, **properties)


def numbers(client: Client, *, acknowledge: bool = True) -> list[int]:
    return [int(message.payload) for message in client.publishes(acknowledge=acknowledge)]


def check(stage: Stage) -> None:
    check_budgets(stage.node, [])
    check_store(stage.node, stage.store)


def dropped(stage: Stage) -> dict[Reason, int]:
    return stage.node.counters.dropped


# --- who makes room ------------------------------------------------------------------------------

FIRST = [(1, TTL_S), (2, TTL_S), (3, None), (4, None)]
LAST = [(1, None), (2, None), (3, TTL_S), (4, TTL_S)]
MIXED = [(1, None), (2, TTL_S), (3, 60), (4, TTL_S)]


@pytest.mark.parametrize("messages", [FIRST, LAST, MIXED], ids=["first", "last", "mixed"])
def test_expired_messages_make_room_wherever_they_wait(
    messages: list[tuple[int, int | None]],
) -> None:
    stage = full_stage(MemoryStore(), *messages)
    stage.advance(TTL_S + 1)
    publish(stage, (5, None), (6, None), (7, None))
    assert dropped(stage) == {Reason.MESSAGE_EXPIRED: 2, Reason.QUEUE_MESSAGES: 1}
    check(stage)
    live = [number for number, interval_s in messages if interval_s != TTL_S]
    assert numbers(stage.connect_durable("s")) == [*live, 5, 6]


@pytest.mark.parametrize("messages", [FIRST, LAST, MIXED], ids=["first", "last", "mixed"])
def test_on_disk_they_do_as_well_and_the_queue_is_a_page_above_its_limit_at_most(
    messages: list[tuple[int, int | None]], small_pages: None
) -> None:
    stage = full_stage(StoreOnDisk(), *messages)
    stage.advance(TTL_S + 1)
    publish(stage, *((number, None) for number in range(5, 15)))
    assert dropped(stage)[Reason.MESSAGE_EXPIRED] == 2
    check(stage)
    live = [number for number, interval_s in messages if interval_s != TTL_S]
    got = numbers(stage.connect_durable("s"))
    assert got[:4] == [*live, 5, 6]
    assert len(got) <= 4 + backlog.PAGE_MAX


def test_the_oldest_gives_way_only_when_nothing_has_expired(store: MemoryStore) -> None:
    stage = full_stage(store, *MIXED, policy="drop-oldest")
    stage.advance(TTL_S + 1)
    publish(stage, (5, None), (6, None), (7, None))
    assert dropped(stage) == {Reason.MESSAGE_EXPIRED: 2, Reason.QUEUE_MESSAGES: 1}
    check(stage)
    assert numbers(stage.connect_durable("s")) == [3, 5, 6, 7]


def memory_store(folder: Path) -> Store:
    return MemoryStore()


def store_on_disk(folder: Path) -> Store:
    return StoreOnDisk()


def rocks_store(folder: Path) -> Store:
    memory = StoreSettings(durability="memory")
    return RocksStore(folder / "s", memory, wall_s=lambda: 1.7e9, random_node=lambda: 7)


@pytest.mark.parametrize("make_store", [memory_store, store_on_disk, rocks_store])
@pytest.mark.parametrize("policy", ["drop-new", "drop-oldest", "block"])
@pytest.mark.parametrize("filter", ["a", "$share/g/a"])
@pytest.mark.parametrize("left", ["before", "restarted"])
@given(expire=st.lists(st.booleans(), min_size=1, max_size=12), data=st.data())
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_valid_message_is_dropped_while_expired_ones_wait(
    make_store: Callable[[Path], Store],
    policy: str,
    filter: str,
    left: str,
    small_pages: None,
    tmp_path_factory: pytest.TempPathFactory,
    expire: list[bool],
    data: st.DataObject,
) -> None:
    limits = {"session": {"queue_policy": policy, "queue_messages_max": len(expire)}}
    store = make_store(tmp_path_factory.mktemp("store"))
    stage = Stage(limits, store=store)
    client = stage.connect_durable("s")
    client.subscribe(filter, qos=1)
    client.close()
    publish(stage, *((number, TTL_S if each else None) for number, each in enumerate(expire)))
    if left == "restarted":
        stage.restart()
    stage.advance(TTL_S + 1)
    new_count = data.draw(st.integers(0, sum(expire)))
    publish(stage, *((100 + number, None) for number in range(new_count)))
    assert set(dropped(stage)) <= {Reason.MESSAGE_EXPIRED}
    check_budgets(stage.node, [])
    live = [number for number, each in enumerate(expire) if not each]
    assert numbers(stage.connect_durable("s")) == [*live, *range(100, 100 + new_count)]
    store.close()


def test_a_client_that_acknowledges_nothing_has_room_again_when_its_messages_expire(
    store: MemoryStore,
) -> None:
    stage = Stage({"session": {"queue_messages_max": 4}}, store=store)
    client = stage.connect_durable("s", receive_maximum=1)
    client.subscribe("a", qos=1)
    publish(stage, (0, TTL_S), *((number, TTL_S) for number in range(1, 5)))
    (sent,) = client.publishes(acknowledge=False)
    stage.advance(TTL_S + 1)
    publish(stage, *((number, None) for number in range(5, 15)))
    assert dropped(stage)[Reason.MESSAGE_EXPIRED] == 4
    check(stage)
    client.send(Puback(sent.packet_id))
    assert numbers(client)[:4] == [5, 6, 7, 8]
    check(stage)


def test_a_session_without_a_store_makes_room_as_well() -> None:
    stage = Stage({"session": {"queue_messages_max": 2}})
    client = stage.connect("s", receive_maximum=1)
    client.subscribe("a", qos=1)
    publish(stage, (1, None), (2, TTL_S), (3, None))
    stage.advance(TTL_S + 1)
    publish(stage, (4, None))
    assert dropped(stage) == {Reason.MESSAGE_EXPIRED: 1}
    assert numbers(client) == [1, 3, 4]


def test_expired_messages_of_a_client_make_room_in_the_node() -> None:
    mib = 1024 * 1024
    limits = {"session": {"queue_bytes_max": mib}, "node": {"queue_bytes_max": mib}}
    stage = Stage(limits)
    client = stage.connect_durable("s")
    client.subscribe("a", qos=1)
    client.close()
    publisher = stage.connect("p")
    publisher.publish("a", bytes(700_000), qos=1, message_expiry_interval=TTL_S)
    stage.node.queue_budget.limit_bytes = 800_000
    stage.advance(TTL_S + 1)
    publisher.publish("a", bytes(200_000), qos=1)
    assert dropped(stage) == {Reason.MESSAGE_EXPIRED: 1}
    check(stage)


# --- how much is done for it ---------------------------------------------------------------------


def test_one_message_makes_a_page_of_them_go_at_most(small_pages: None) -> None:
    stage = full_stage(MemoryStore(), *((number, TTL_S) for number in range(10)))
    stage.advance(TTL_S + 1)
    publish(stage, (10, None))
    assert dropped(stage) == {Reason.MESSAGE_EXPIRED: backlog.PAGE_MAX}
    check(stage)


def test_on_disk_one_page_is_looked_through_for_one_message(small_pages: None) -> None:
    store = CountingStore()
    stage = full_stage(store, *((number, TTL_S) for number in range(10)))
    stage.advance(TTL_S + 1)
    publish(stage, (10, None))
    assert store.pages == 1
    assert dropped(stage) == {Reason.MESSAGE_EXPIRED: backlog.PAGE_MAX}
    check(stage)


def test_all_pages_are_looked_through_sooner_or_later(small_pages: None) -> None:
    live = [(number, None) for number in range(10)]
    stage = full_stage(StoreOnDisk(), *live, (10, TTL_S))
    stage.advance(TTL_S + 1)
    publish(stage, *((number, None) for number in range(11, 17)))
    assert dropped(stage)[Reason.MESSAGE_EXPIRED] == 1
    check(stage)
    assert len(numbers(stage.connect_durable("s"))) == 11


def test_nobody_looks_where_nothing_can_have_expired(small_pages: None) -> None:
    store = CountingStore()
    stage = full_stage(store, *((number, None) for number in range(9)), (9, 60))
    publish(stage, *((number, None) for number in range(10, 20)))
    assert store.pages == 0
    assert dropped(stage) == {Reason.QUEUE_MESSAGES: 10}


def test_nobody_looks_twice_before_the_next_one_expires(small_pages: None) -> None:
    store = CountingStore()
    stage = full_stage(store, (0, TTL_S), (1, 60), *((number, None) for number in range(2, 10)))
    stage.advance(TTL_S + 1)
    publish(stage, *((number, None) for number in range(10, 30)))
    assert dropped(stage)[Reason.MESSAGE_EXPIRED] == 1
    pages = store.pages
    publish(stage, *((number, None) for number in range(30, 50)))
    assert store.pages == pages, "all pages have been seen"
    stage.advance(60)
    publish(stage, *((number, None) for number in range(50, 60)))
    assert dropped(stage)[Reason.MESSAGE_EXPIRED] == 2
    check(stage)


def test_after_a_restart_each_page_is_looked_through_once(small_pages: None) -> None:
    store = CountingStore()
    stage = full_stage(store, *((number, None) for number in range(9)), (9, TTL_S))
    stage.restart()
    stage.advance(TTL_S + 1)
    store.pages = 0
    publish(stage, *((number, None) for number in range(10, 40)))
    assert dropped(stage)[Reason.MESSAGE_EXPIRED] == 1
    assert store.pages <= 5
    check(stage)


def test_a_whole_queue_that_expired_takes_its_turns(store: MemoryStore) -> None:
    """A page per turn, and then what is left."""
    stage = full_stage(store, *((number, TTL_S) for number in range(1, 20)), (20, None))
    stage.advance(TTL_S + 1)
    client = stage.connect_durable("s")
    assert numbers(client) == [20]
    assert dropped(stage) == {Reason.MESSAGE_EXPIRED: 19}
    check(stage)


# --- while pages and commits are on their way ----------------------------------------------------


def comes_back(stage: Stage) -> None:
    stage.connect_durable("s")


def comes_back_and_leaves(stage: Stage) -> None:
    stage.connect_durable("s", receive_maximum=1).close()


@pytest.mark.parametrize("event", [comes_back, comes_back_and_leaves])
def test_a_page_is_looked_through_whatever_its_client_does_meanwhile(
    event: Callable[[Stage], None], small_pages: None
) -> None:
    stage = full_stage(StoreOnDisk(), (1, None), (2, TTL_S), (3, None), (4, TTL_S))
    stage.advance(TTL_S + 1)
    stage.hold_fetches = True
    publish(stage, (5, None))
    event(stage)
    stage.release_fetches()
    session = stage.node.registry.sessions["s"]
    client = session.outbound and session.outbound.connection.transport
    if client is None:
        client = stage.connect_durable("s")
    assert isinstance(client, Client)
    assert numbers(client) == [1, 3, 5]
    assert dropped(stage) == {Reason.MESSAGE_EXPIRED: 2}
    check(stage)


def test_what_expired_is_not_found_again_before_it_is_settled(small_pages: None) -> None:
    """The store may be asked for a page before it has committed that."""
    stage = Stage({"session": {"queue_messages_max": 4}}, store=StoreOnDisk())
    client = stage.connect_durable("s", receive_maximum=1)
    client.subscribe("a", qos=1)
    publish(stage, (1, None), (2, None), (3, None), (4, TTL_S), (5, None))
    stage.advance(TTL_S + 1)
    publisher = stage.connect("p")
    stage.hold_commits = True
    publisher.publish("a", b"6", qos=1)
    assert dropped(stage) == {Reason.MESSAGE_EXPIRED: 1}
    assert numbers(client) == [1, 2, 3], "the rest is behind what is not settled yet"
    stage.release_commits()
    assert numbers(client) == [5, 6]
    assert dropped(stage) == {Reason.MESSAGE_EXPIRED: 1}
    check(stage)
