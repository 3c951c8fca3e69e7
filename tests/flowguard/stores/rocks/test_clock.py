"""Unique ids: rising, never given out twice, whatever the wall clock does."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from flowguard.config import StoreSettings
from flowguard.records import NEVER_S, Append, Delivery, PutSession
from flowguard.stores.rocks import RocksStore
from flowguard.stores.rocks.clock import COUNTER_BITS, EPOCH_S, UidClock
from flowguard.stores.rocks.layouts.keys import NODE_KEY
from flowguard.types import Publish


def test_an_id_is_the_time_in_milliseconds_and_a_counter() -> None:
    clock = UidClock(7, 0, lambda: EPOCH_S + 12.345)
    assert clock.hlc == 12_345 << COUNTER_BITS


@given(
    wall=st.lists(st.integers(-5_000, 30_000), min_size=1, max_size=20),
    taken=st.integers(1, 200_000),
)
def test_ids_rise_whatever_the_wall_clock_does(wall: list[int], taken: int) -> None:
    """A restart after each commit: the clock knows only what was recorded."""
    last = 0
    for millisecond in wall:
        clock = UidClock(7, last, lambda now=millisecond: EPOCH_S + now / 1_000)
        for _ in range(2):
            clock.begin()
            first = clock.hlc + 1
            clock.hlc += taken
            assert last < first
            last = clock.hlc


def uids_of(store: RocksStore) -> list[bytes]:
    rows = store._engine.queues.scan(b"", b"\xff" * 9, 2**40, 2**40)
    return [value[6:18] for key, value in rows if key[8] == 3]


def test_a_store_repeats_no_id_when_the_wall_clock_is_set_back(tmp_path: Path) -> None:
    now_s, nodes = 1_700_000_000.0, [0, 99]
    settings = StoreSettings(durability="os", disk_reserve_bytes=0)

    def open_store() -> RocksStore:
        return RocksStore(tmp_path, settings, wall_s=lambda: now_s, random_node=nodes.pop)

    delivery = Delivery(Publish("t", b"", 1), 1, False, (), NEVER_S)
    store = open_store()
    store.commit([PutSession("c", 9, None)])
    for pos in range(1, 9):
        store.commit([Append("c", pos, delivery)])
        now_s -= 3_600
        if pos % 2:
            store.close()
            store = open_store()
    uids = uids_of(store)
    assert len(set(uids)) == 8
    assert uids == sorted(uids)
    assert {uid[8:] for uid in uids} == {(99).to_bytes(4, "big")}
    assert nodes == [0]
    assert (store._engine.meta.get(NODE_KEY) or b"")[:4] == (99).to_bytes(4, "big")
    store.close()
