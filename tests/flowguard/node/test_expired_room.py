"""Messages that expire in a queue free capacity before a new one is rejected or an old one dropped.

With a store in memory that happens at once. On disk the queue searches for them page by page, and
only while one of them may have expired; until then it is at most a page above its limits.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowguard.config import StoreSettings
from flowguard.flow import Reason
from flowguard.stores import MemoryStore, Store
from flowguard.stores.rocks import RocksStore
from tests.flowguard.node.ledger import check_budgets, check_store
from tests.support.on_disk import CountingStore
from tests.support.readings import numbers
from tests.support.stage import Stage, StoreOnDisk

TTL_S = 5


def full_stage(
    store: MemoryStore, *messages: tuple[int, int | None], policy: str = "drop-new"
) -> Stage:
    """A stage with an offline client whose queue is full of these messages.

    Each has its expiry interval or none.
    """
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


def check(stage: Stage) -> None:
    check_budgets(stage.node, [])
    check_store(stage.node, stage.store)


def dropped(stage: Stage) -> dict[Reason, int]:
    return stage.node.counters.dropped


# --- events that free capacity -------------------------------------------------------------------


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


# --- how much is done for it ---------------------------------------------------------------------


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
