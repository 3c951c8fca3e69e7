"""A store on RocksDB that stalls, fails, or finds the disk full: nothing changes or is lost."""

import threading
import time
from pathlib import Path

import pytest

from flowguard.config import MIB, StoreSettings
from flowguard.errors import NoSpaceError, StallError, StoreError
from flowguard.flow.load.signals import StoreState
from flowguard.records import (
    Append,
    DropInbound,
    DropSession,
    PutInbound,
    PutSession,
    PutWill,
    Release,
    Sent,
    Settle,
    StoreOp,
    WillRecord,
    packet_id_of,
)
from flowguard.stores.rocks import RocksStore
from flowguard.stores.rocks.database.engine import RocksEngine
from flowguard.stores.rocks.disk import used_bytes_of
from flowguard.stores.rocks.layouts.status import StatusQueue
from flowguard.types import Publish
from tests.flowguard.stores.rocks.limits import file_size_limit
from tests.flowguard.stores.rocks.rows import (
    CLIENTS,
    SETTINGS,
    Open,
    delivery,
    everything,
    payloads_of,
)
from tests.flowguard.stores.test_contract import queue_of, session_of
from tests.support.patience import HANG_S

# --- what fails changes nothing -------------------------------------------------------------------


def all_kinds(payload: bytes) -> list[StoreOp]:
    """A batch that touches all that is known of "c" (1 sent, 2 released, 3 waiting) and others."""
    message = Publish("t", payload, 2)
    sent = [delivery(message=message, qos=2) for _ in CLIENTS]
    shared = [Append(client_id, 1, each) for client_id, each in zip(CLIENTS, sent, strict=True)]
    return [
        Append("c", 4, delivery(payload)),
        Append("c", 9, delivery(payload)),
        Sent("c", 9),
        Settle("c", 2),
        Release("c", 3, packet_id_of(3, 2)),
        Settle("c", 4),
        *shared,
        Append(CLIENTS[0], 7, sent[0]),
        PutSession("new", 5, None),
        Append("new", 3, delivery()),
        PutSession(CLIENTS[1], 1, 2.0),
        DropSession(CLIENTS[2]),
        PutSession(CLIENTS[2], 3, None),
        DropSession(CLIENTS[3]),
        PutInbound("c", 5),
        DropInbound("c", 6),
    ]


LAYOUTS = pytest.mark.parametrize("layout", ["window", "status"])
ATTEMPTS = 50


def prepared(open_store: Open, folder: Path, layout: str) -> RocksStore:
    store = open_store(folder, SETTINGS.model_copy(update={"layout": layout}))
    store.commit([PutSession(client_id, 9, None) for client_id in ["c", *CLIENTS]])
    store.commit([Append("c", pos, delivery(b"%d" % pos, qos=2)) for pos in (1, 2, 3)])
    store.commit([Sent("c", 2), Release("c", 2, packet_id_of(2, 2)), PutInbound("c", 6)])
    return store


def stall(engine: RocksEngine) -> None:
    """Write more than the disk can take, into a queue without an owner."""
    try:
        while True:
            batch = engine.batch()
            batch.put(b"\xff" * 17, bytes(4 * MIB), engine.queues.handle)
            engine.write(batch)
    except StallError:
        pass


@LAYOUTS
def test_a_stall_changes_nothing_and_the_same_batch_succeeds_later(
    open_store: Open, tmp_path: Path, layout: str
) -> None:
    for attempt in range(ATTEMPTS):
        store = prepared(open_store, tmp_path / f"{attempt}", layout)
        before, ops = everything(store), all_kinds(bytes(600))
        stall(store._engine)
        try:
            store.commit(ops)
        except StallError:
            break  # Else the disk was quick enough: again.
    else:
        pytest.fail("it never stalled")
    assert store.load().state is StoreState.STOPPED
    assert everything(store) == before
    while True:
        try:
            store.commit(ops)
            break
        except StallError:
            threading.Event().wait(0.001)
    check_it_was_taken(store, before, open_store)


@LAYOUTS
def test_a_full_disk_changes_nothing_and_the_same_batch_succeeds_later(
    open_store: Open, tmp_path: Path, layout: str
) -> None:
    store = prepared(open_store, tmp_path / "store", layout)
    before, ops = everything(store), all_kinds(bytes(50_000))
    with file_size_limit(tmp_path / "store"):
        for _ in range(2):
            with pytest.raises(NoSpaceError):
                store.commit(ops)
            assert everything(store) == before
            store.maintain()
    store.commit(ops)
    check_it_was_taken(store, before, open_store)


def test_while_there_is_no_room_to_open_again_everything_can_be_read(open_store: Open) -> None:
    free = 2**40
    store = open_store(free_bytes=lambda _: free)
    store.commit([PutSession("c", 9, None), Append("c", 1, delivery(b"kept"))])
    with file_size_limit(store._folder), pytest.raises(NoSpaceError):
        store.commit([Append("c", 2, delivery(bytes(MIB)))])
    free = SETTINGS.write_buffer_bytes - 1
    for _ in range(3):
        with pytest.raises(NoSpaceError, match="free space"):
            store.commit([Settle("c", 1)])
        assert not store.maintain()
        assert store.load().read_only
        assert [each[0] for each in queue_of(store)] == [1]
    free = SETTINGS.write_buffer_bytes
    store.commit([Settle("c", 1)])
    assert not store.load().read_only
    assert queue_of(store) == []


def test_an_error_that_somebody_keeps_does_not_keep_the_directory_locked(
    open_store: Open,
) -> None:
    """A failed engine is opened again; its lock is only free when nothing refers to it."""
    store = open_store()
    store.commit([PutSession("c", 9, None)])
    with file_size_limit(store._folder), pytest.raises(NoSpaceError) as kept:
        store.commit([Append("c", 1, delivery(bytes(MIB)))])
    store.commit([Append("c", 1, delivery(b"x"))])
    assert [each[0] for each in queue_of(store)] == [1]
    del kept


def check_it_was_taken(store: RocksStore, before: list[object], open_store: Open) -> None:
    """Once, and completely: as by a store that never failed."""
    after = everything(store)
    assert after != before
    payloads = payloads_of(store)
    layout = "status" if isinstance(store._sessions.queues["c"], StatusQueue) else "window"
    other = prepared(open_store, store._folder.with_name("other"), layout)
    other.commit(all_kinds(queue_payload(store)))
    assert everything(other) == after
    assert payloads_of(other) == payloads == 1
    store.close()
    again = open_store(store._folder, SETTINGS.model_copy(update={"layout": layout}))
    assert everything(again) == after


def queue_payload(store: RocksStore) -> bytes:
    (found,) = store.fetch(CLIENTS[0], 0, 1)
    assert found.delivery is not None
    return found.delivery.message.payload


def test_a_store_that_failed_takes_nothing_more(store: RocksStore) -> None:
    """Only NoSpaceError and StallError are followed by another try."""
    store._engine._db = None
    for _ in range(2):
        with pytest.raises(StoreError):
            store.commit([PutSession("x", 9, None)])
        assert not store.maintain()
    store.close()


# --- space on the disk ----------------------------------------------------------------------------

RESERVED = StoreSettings(durability="os", disk_reserve_bytes=1_000 * MIB)


def test_below_the_reserve_only_what_makes_room_goes_through(open_store: Open) -> None:
    free = 10_000 * MIB
    store = open_store(settings=RESERVED, free_bytes=lambda _: free)
    sent = delivery()
    store.commit([PutSession("c", 9, None), PutInbound("c", 1)])
    store.commit([Append("c", pos, sent) for pos in range(1, 9)])
    free = 999 * MIB
    store.maintain()
    assert store.load().read_only
    assert 998 * MIB < store.load().free_bytes <= 999 * MIB
    assert store.load().reserve_bytes == RESERVED.disk_reserve_bytes
    store.commit([PutSession("accepted before anybody knew", 9, None)])
    free = 499 * MIB
    growing: list[StoreOp] = [Append("c", 9, sent), PutInbound("c", 2)]
    for op in growing:
        with pytest.raises(NoSpaceError, match=r"store\.disk_reserve_bytes"):
            store.commit([Settle("c", 1, sent), op])
    store.commit([Settle("c", 1, sent), Sent("c", 3), Release("c", 2, 1, sent), PutWill("c", None)])
    store.commit([DropInbound("c", 1)])
    # The client of a session connects, and leaves again.
    store.commit([PutSession("c", 9, None), PutWill("c", WillRecord(sent.message, 0))])
    assert [each[0] for each in queue_of(store)] == list(range(2, 9))
    free = 249 * MIB
    with pytest.raises(NoSpaceError):
        store.commit([Settle("c", 2)])
    free = 1_001 * MIB
    store.commit(growing)
    assert not store.load().read_only


def test_rows_that_are_in_no_table_yet_count_as_written(open_store: Open) -> None:
    settings = StoreSettings(durability="os", disk_reserve_bytes=32 * MIB)
    store = open_store(settings=settings, free_bytes=lambda _: 36 * MIB)
    store.commit([PutSession("c", 9, None)])
    store.commit([Append("c", pos, delivery(bytes(MIB // 4))) for pos in range(1, 21)])
    assert not store.load().read_only
    store.commit([])
    assert store.load().read_only
    store._engine.flush()
    store.maintain()
    assert not store.load().read_only


def test_a_full_disk_gets_back_the_log_of_writes(open_store: Open) -> None:
    free = 64 * MIB
    settings = StoreSettings(durability="os", disk_reserve_bytes=32 * MIB)
    store = open_store(settings=settings, free_bytes=lambda _: free)
    store.commit([PutSession("c", 9, None)])  # This row keeps the whole log.
    for pos in range(1, 9):
        store.commit([Append("c", pos, delivery(bytes(MIB)))])
        store._engine.queues.flush()
    free = 6 * MIB
    until_s = time.monotonic() + HANG_S
    while sum(path.stat().st_size for path in store._folder.glob("*.log")) > MIB:
        assert time.monotonic() < until_s
        store.maintain()
        time.sleep(0.01)


def test_full_disk_gets_back_what_was_settled(open_store: Open) -> None:
    free, count = 64 * MIB, 64
    settings = StoreSettings(durability="os", disk_reserve_bytes=32 * MIB)
    store = open_store(settings=settings, free_bytes=lambda _: free)
    store.commit([PutSession("c", 9, None)])
    sent = [delivery(bytes(MIB // 4)) for _ in range(count)]
    for pos, each in enumerate(sent, 1):
        store.commit([Append("c", pos, each)])
    free = 31 * MIB
    for pos, each in enumerate(sent, 1):
        store.commit([Settle("c", pos, each)])
    assert used_bytes_of(store._folder) > count * MIB // 4
    until_s = time.monotonic() + HANG_S
    while used_bytes_of(store._folder) > MIB:
        assert time.monotonic() < until_s
        store.maintain()
        time.sleep(0.01)


def test_full_disk_holds_no_copies_of_the_blobs_that_stay(open_store: Open) -> None:
    free, count = 64 * MIB, 8
    settings = StoreSettings(durability="os", disk_reserve_bytes=32 * MIB)
    store = open_store(settings=settings, free_bytes=lambda _: free)
    store.commit([PutSession("c", 9, None), PutSession("d", 9, None)])
    store.commit([Append("d", 1, delivery(b""))])
    for pos in range(1, count + 1):
        store.commit([Append("c", pos, delivery(bytes(MIB // 4)))])
        store._engine.queues.flush()
    store._engine.queues.compact()
    before = set(store._folder.glob("*.blob"))
    store.commit([Append("c", count + 1, delivery(b""))])
    free = 31 * MIB
    store.maintain()
    store._engine.queues.flush()
    rows = store._engine.queues._open_rows()
    until_s = time.monotonic() + HANG_S
    while rows.property_value("rocksdb.num-files-at-level0") != "0":
        assert time.monotonic() < until_s
        store.maintain()
        time.sleep(0.01)
    assert set(store._folder.glob("*.blob")) >= before


def test_the_disk_is_looked_at_now_and_then_and_after_much_was_written(open_store: Open) -> None:
    free, looks = 10_000 * MIB, 0

    def look(_: Path) -> int:
        nonlocal looks
        looks += 1
        return free

    store = open_store(settings=RESERVED, free_bytes=look)
    store.commit([PutSession("c", 9, None)])

    def commits_until_full(payload: bytes) -> int:
        nonlocal free, looks
        free, looks, commits = 0, 0, 0
        try:
            while commits < 1_000:
                pos = session_of(store).next_pos
                store.commit([Append("c", pos, delivery(payload))])
                commits += 1
        except NoSpaceError:
            assert looks == 1
        free = 10_000 * MIB
        store.commit([])
        return commits

    assert 0 < commits_until_full(b"") <= 64
    assert 0 < commits_until_full(bytes(MIB // 2)) <= 9


def test_a_disk_with_a_small_reserve_is_looked_at_more_often(open_store: Open) -> None:
    free = 2**40
    settings = StoreSettings(durability="os", disk_reserve_bytes=8 * MIB)
    store = open_store(settings=settings, free_bytes=lambda _: free)
    store.commit([PutSession("c", 9, None)])
    free = 0
    store.commit([Append("c", 1, delivery(bytes(MIB // 2)))])
    with pytest.raises(NoSpaceError):
        store.commit([Append("c", 2, delivery(b""))])


def test_the_load_tells_what_the_files_take(store: RocksStore) -> None:
    files = sum(path.stat().st_size for path in store._folder.iterdir())
    assert 0 < store.load().used_bytes <= files
    store.commit([Append("c", pos, delivery(bytes(MIB))) for pos in range(1, 4)])
    for _ in range(64):
        store.maintain()
    assert store.load().used_bytes > 3 * MIB
    assert store.load().state is StoreState.FLOWING


def test_closing_on_a_full_disk_loses_nothing(store: RocksStore, open_store: Open) -> None:
    store.commit([Append("c", pos, delivery()) for pos in (1, 2)])
    store.commit([Settle("c", 1)])
    with file_size_limit(store._folder, room_bytes=0):
        store.close()
    again = open_store()
    assert [each[0] for each in queue_of(again)] in ([2], [1, 2])
