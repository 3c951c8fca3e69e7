"""What the contract leaves to the store on RocksDB: what it deletes, and when; full disks; stalls.

The rows are looked at through the store's own engine: the disk is what these tests are about.
"""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flowguard.config import MIB, StoreSettings
from flowguard.errors import NoSpaceError, StallError, StoreError
from flowguard.flow.signals import StoreState
from flowguard.records import (
    NEVER_S,
    Append,
    Delivery,
    DropInbound,
    DropSession,
    PutInbound,
    PutSession,
    PutSubscription,
    PutWill,
    Release,
    Sent,
    Settle,
    StoreOp,
    WillRecord,
    packet_id_of,
)
from flowguard.stores.rocks import RocksStore, sweep
from flowguard.stores.rocks.engine import Engine
from flowguard.stores.rocks.pending import TURNS
from flowguard.stores.rocks.status import StatusQueue
from flowguard.types import Publish, SubscriptionOptions
from tests.flowguard.stores.rocks.limits import file_size_limit
from tests.flowguard.stores.test_contract import queue_of, session_of, values

SETTINGS = StoreSettings(durability="os", disk_reserve_bytes=0, write_buffer_bytes=MIB)
CLIENTS = [f"c{number}" for number in range(6)]
Open = Callable[..., RocksStore]


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Open]:
    opened: list[RocksStore] = []

    def make(
        folder: Path = tmp_path / "store",
        settings: StoreSettings = SETTINGS,
        free_bytes: Callable[[Path], int] = lambda _: 2**40,
    ) -> RocksStore:
        store = RocksStore(
            folder,
            settings,
            wall_s=lambda: 1_700_000_000.0,
            random_node=lambda: 7,
            free_bytes=free_bytes,
        )
        opened.append(store)
        return store

    yield make
    for store in opened:
        store._engine.close()


@pytest.fixture
def store(open_store: Open) -> RocksStore:
    opened = open_store()
    opened.commit([PutSession(client_id, 9, None) for client_id in ["c", *CLIENTS]])
    return opened


def delivery(payload: bytes = b"x", qos: int = 1, message: Publish | None = None) -> Delivery:
    return Delivery(message or Publish("t", payload, qos), qos, False, (), NEVER_S)


def entries_of(store: RocksStore) -> int:
    rows = store._engine.queues.scan(b"", b"\xff" * 8, 2**40, 2**40)
    return sum(key[8] != 0 for key, _ in rows)


def payloads_of(store: RocksStore) -> int:
    return len(store._engine.payloads.scan(b"", b"\xff" * 16, 2**40, 2**40))


def finish(store: RocksStore) -> None:
    """All that can wait."""
    slices = 0
    while store.maintain():
        slices += 1
        assert slices < 10_000, "there is always something left"


def crashed(store: RocksStore, folder: Path) -> Path:
    """A copy of the directory, as it is."""
    store._engine._db.cancel_all_background(True)
    return shutil.copytree(store._folder, folder)


# --- what is settled goes -------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 63, 64, 1_023, 1_024, 3_000])
def test_what_is_settled_is_deleted_when_it_is_quiet(store: RocksStore, count: int) -> None:
    sent = delivery()
    store.commit([Append("c", pos, sent) for pos in range(1, count + 1)])
    store.commit([Settle("c", pos, sent) for pos in range(1, count + 1)])
    finish(store)
    assert entries_of(store) == 0
    assert not store.maintain()
    store.commit([Append("c", count + 1, sent)])
    assert [each[0] for each in queue_of(store)] == [count + 1]


def test_a_busy_queue_is_trimmed_without_any_maintenance(store: RocksStore) -> None:
    sent = delivery()
    for pos in range(1, 5_001):
        store.commit([Append("c", pos, sent), Settle("c", pos - 1, sent)])
    assert entries_of(store) <= 1_024 + TURNS + 1
    assert [each[0] for each in queue_of(store)] == [5_000]


def test_acknowledgements_are_on_disk_after_some_commits(
    store: RocksStore, open_store: Open, tmp_path: Path
) -> None:
    sent = delivery()
    store.commit([Append("c", 1, sent), Append("c", 2, sent), Sent("c", 2)])
    store.commit([Settle("c", 1, sent)])
    early = open_store(crashed(store, tmp_path / "early"))
    assert [each[0] for each in queue_of(early)] == [1, 2], "not lazy at all"
    for _ in range(TURNS):
        store.commit([])
    late = open_store(crashed(store, tmp_path / "late"))
    assert [each[0] for each in queue_of(late)] == [2]
    assert session_of(late).sent_pos == 2


def test_maintenance_writes_acknowledgements_too(
    store: RocksStore, open_store: Open, tmp_path: Path
) -> None:
    store.commit([Append("c", 1, delivery()), Settle("c", 1)])
    finish(store)
    assert queue_of(open_store(crashed(store, tmp_path / "copy"))) == []


def test_what_was_sent_to_a_connected_client_counts_as_sent_after_a_crash(
    store: RocksStore, open_store: Open, tmp_path: Path
) -> None:
    """And so may what was not: the mark runs ahead. Whoever has disconnected knows it exactly."""
    for client_id, ends_at_s in (("c", None), ("c0", 5.0)):
        store.commit([Append(client_id, pos, delivery()) for pos in range(1, 6)])
        store.commit([Sent(client_id, 3)])
        store.commit([PutSession(client_id, 9, ends_at_s)])
    found = open_store(crashed(store, tmp_path / "copy"))
    assert session_of(found, "c").sent_pos == 5
    assert session_of(found, "c0").sent_pos == 3


# --- messages that queues share -------------------------------------------------------------------


def appended(
    store: RocksStore, client_ids: list[str], payload: bytes, pos: int = 1
) -> list[Delivery]:
    """One message to each of them, as a delivery of its own."""
    message = Publish("t", payload, 1)
    sent = [delivery(message=message) for _ in client_ids]
    store.commit(
        [Append(client_id, pos, each) for client_id, each in zip(client_ids, sent, strict=True)]
    )
    return sent


@pytest.mark.parametrize(
    ("queues", "payload_bytes", "stored"),
    [(1, 5_000, 0), (2, 512, 0), (2, 513, 1), (4, 512, 0), (5, 1, 1)],
)
def test_a_message_is_stored_once_where_that_is_less(
    store: RocksStore, queues: int, payload_bytes: int, stored: int
) -> None:
    appended(store, CLIENTS[:queues], bytes(payload_bytes))
    assert payloads_of(store) == stored
    assert entries_of(store) == queues
    for client_id in CLIENTS[:queues]:
        assert queue_of(store, client_id) == queue_of(store, CLIENTS[0])


def test_a_shared_message_goes_with_its_last_entry(store: RocksStore) -> None:
    sent = appended(store, CLIENTS[:3], bytes(600))
    store.commit([Settle(CLIENTS[0], 1, sent[0]), Release(CLIENTS[1], 1, 1, sent[1])])
    finish(store)
    assert payloads_of(store) == 1
    store.commit([DropSession(CLIENTS[2])])
    finish(store)
    assert payloads_of(store) == 0


def test_a_shared_message_goes_even_if_nobody_says_which_it_was(store: RocksStore) -> None:
    appended(store, CLIENTS[:2], bytes(600))
    store.commit([Settle(client_id, 1) for client_id in CLIENTS[:2]])
    finish(store)
    assert payloads_of(store) == 0


def test_after_a_start_a_shared_message_stays_until_all_entries_were_looked_at(
    store: RocksStore, open_store: Open
) -> None:
    appended(store, CLIENTS[:2], bytes(600))
    appended(store, CLIENTS[1:3], bytes(700), pos=2)
    appended(store, CLIENTS[4:6], bytes(800))
    store.close()
    again = open_store()
    again.commit([Settle(CLIENTS[0], 1), Settle(CLIENTS[1], 1), DropSession(CLIENTS[4])])
    assert payloads_of(again) == 3
    finish(again)
    assert payloads_of(again) == 2
    assert len(queue_of(again, CLIENTS[1])) == len(queue_of(again, CLIENTS[5])) == 1
    again.commit([Settle(client_id, 2) for client_id in CLIENTS[1:3]])
    again.commit([Settle(CLIENTS[5], 1)])
    finish(again)
    assert payloads_of(again) == 0


@pytest.mark.parametrize("settled", [0, 1])
def test_what_is_settled_while_entries_are_looked_at_is_counted_once(
    store: RocksStore, open_store: Open, monkeypatch: pytest.MonkeyPatch, settled: int
) -> None:
    """One queue was looked at, the other was not."""
    monkeypatch.setattr(sweep, "QUEUES_MAX", 1)
    appended(store, CLIENTS[:2], bytes(600))
    store.close()
    again = open_store()
    assert again.maintain()
    again.commit([Settle(CLIENTS[settled], 1)])
    for _ in range(TURNS):
        again.commit([])
    finish(again)
    assert payloads_of(again) == 1
    assert len(queue_of(again, CLIENTS[1 - settled])) == 1
    again.commit([Settle(CLIENTS[1 - settled], 1)])
    finish(again)
    assert payloads_of(again) == 0


def test_what_was_settled_before_a_start_refers_to_nothing(
    store: RocksStore, open_store: Open
) -> None:
    """Its rows are still there: something before them is not settled."""
    store.commit([Append(client_id, 1, delivery()) for client_id in CLIENTS[:4]])
    appended(store, CLIENTS[:4], bytes(600), pos=2)
    store.commit([Settle(CLIENTS[0], 2), Settle(CLIENTS[1], 2)])
    store.commit([Release(CLIENTS[2], 2, packet_id_of(2, 2))])
    store.close()
    again = open_store()
    finish(again)
    assert payloads_of(again) == 1
    again.commit([Settle(CLIENTS[3], 2)])
    finish(again)
    assert payloads_of(again) == 0
    assert [len(queue_of(again, client_id)) for client_id in CLIENTS[:4]] == [1, 1, 2, 1]


def test_a_message_nobody_refers_to_is_found_after_a_start(
    store: RocksStore, open_store: Open
) -> None:
    appended(store, CLIENTS[:2], bytes(600))
    batch = store._engine.batch()
    batch.put(b"\0" * 12, b"lost", store._engine.payloads.handle)
    store._engine.write(batch)
    store.close()
    again = open_store()
    finish(again)
    assert payloads_of(again) == 1


def test_a_shared_message_may_be_appended_again(store: RocksStore) -> None:
    (sent, _) = appended(store, CLIENTS[:2], bytes(600))
    store.commit([Append(CLIENTS[2], 1, sent)])
    store.commit([Settle(client_id, 1) for client_id in CLIENTS[:2]])
    finish(store)
    assert payloads_of(store) == 1
    store.commit([Settle(CLIENTS[2], 1, sent)])
    finish(store)
    assert payloads_of(store) == 0
    store.commit([Append(CLIENTS[3], 1, sent)])
    assert len(queue_of(store, CLIENTS[3])) == 1


# --- sessions that go -----------------------------------------------------------------------------


def fill(store: RocksStore, count: int) -> None:
    store.commit([Append("c", pos, delivery()) for pos in range(1, count + 1)])
    store.commit(
        [PutSubscription("c", f"t/{number}", SubscriptionOptions()) for number in range(count)]
    )
    store.commit([PutInbound("c", 1), PutWill("c", WillRecord(Publish("w", b""), 0))])


def own_of(store: RocksStore) -> int:
    return len(store._engine.own.scan(b"\x02", b"\x03", 2**40, 2**40))


@pytest.mark.parametrize("count", [1, 64, 1_000])
@pytest.mark.parametrize("reopened", [False, True])
def test_a_dropped_session_is_swept(
    store: RocksStore, open_store: Open, count: int, reopened: bool
) -> None:
    fill(store, count)
    store.commit([DropSession("c"), PutSession("c", 9, None), Append("c", 1, delivery(b"new"))])
    if reopened:
        store.close()
        store = open_store()
    assert entries_of(store) == count + 1
    finish(store)
    assert (entries_of(store), own_of(store)) == (1, 0)
    assert len(queue_of(store)) == 1
    assert store._engine.meta.scan(b"\x20", b"\x21") == []


def test_a_number_of_a_session_is_never_used_twice(store: RocksStore, open_store: Open) -> None:
    fill(store, 3)
    store.commit([DropSession("c")])
    store.close()
    again = open_store()
    again.commit([PutSession("c", 9, None)])
    found = session_of(again)
    assert (found.next_pos, found.subscriptions, found.inbound_ids, found.will) == (
        1,
        {},
        set(),
        None,
    )


# --- what fails changes nothing -------------------------------------------------------------------


def everything(store: RocksStore) -> list[object]:
    records = list(store.sessions())
    return [(values(record), queue_of(store, record.client_id)) for record in records]


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


def stall(engine: Engine) -> None:
    """Write more than the disk can take, into a queue that nobody has."""
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
        with pytest.raises(NoSpaceError, match="make room"):
            store.commit([Settle("c", 1)])
        assert not store.maintain()
        assert store.load().read_only
        assert [each[0] for each in queue_of(store)] == [1]
    free = SETTINGS.write_buffer_bytes
    store.commit([Settle("c", 1)])
    assert not store.load().read_only
    assert queue_of(store) == []


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


# --- room on the disk -----------------------------------------------------------------------------

RESERVED = StoreSettings(durability="os", disk_reserve_bytes=1_000)


def test_below_the_reserve_only_what_makes_room_goes_through(open_store: Open) -> None:
    free = 10_000
    store = open_store(settings=RESERVED, free_bytes=lambda _: free)
    sent = delivery()
    store.commit([PutSession("c", 9, None), PutInbound("c", 1)])
    store.commit([Append("c", pos, sent) for pos in range(1, 9)])
    free = 999
    store.maintain()
    assert store.load().read_only
    assert store.load().free_bytes == 999
    store.commit([PutSession("accepted before anybody knew", 9, None)])
    free = 499
    growing: list[StoreOp] = [Append("c", 9, sent), PutInbound("c", 2), PutSession("d", 9, None)]
    for op in growing:
        with pytest.raises(NoSpaceError, match=r"store\.disk_reserve_bytes"):
            store.commit([Settle("c", 1, sent), op])
    store.commit([Settle("c", 1, sent), Sent("c", 3), Release("c", 2, 1, sent), PutWill("c", None)])
    store.commit([DropInbound("c", 1)])
    assert [each[0] for each in queue_of(store)] == list(range(2, 9))
    free = 249
    with pytest.raises(NoSpaceError):
        store.commit([Settle("c", 2)])
    free = 1_000
    store.commit(growing)
    assert not store.load().read_only


def test_the_disk_is_looked_at_now_and_then_and_after_much_was_written(open_store: Open) -> None:
    free, looks = 10_000, 0

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
        free = 10_000
        store.commit([])
        return commits

    assert 0 < commits_until_full(b"") <= 64
    assert 0 < commits_until_full(bytes(MIB // 2)) <= 9


def test_the_load_tells_what_the_files_take(store: RocksStore) -> None:
    files = sum(path.stat().st_size for path in store._folder.iterdir())
    assert 0 < store.load().used_bytes <= files
    store.commit([Append("c", pos, delivery(bytes(MIB))) for pos in range(1, 4)])
    for _ in range(64):
        store.maintain()
    assert store.load().used_bytes > 3 * MIB
    assert store.load().state is StoreState.FLOWING


# --- backup ---------------------------------------------------------------------------------------


def test_a_backup_is_a_store_of_what_was_committed(
    store: RocksStore, open_store: Open, tmp_path: Path
) -> None:
    sent = appended(store, CLIENTS[:3], bytes(600))
    store.commit([Settle(CLIENTS[0], 1, sent[0]), Sent(CLIENTS[1], 1)])
    store.backup(tmp_path / "copy")
    before = everything(store)
    store.commit([DropSession(client_id) for client_id in CLIENTS])
    finish(store)
    assert everything(open_store(tmp_path / "copy")) == before
    with pytest.raises(StoreError, match="exist"):
        store.backup(tmp_path / "copy")
    with pytest.raises(StoreError):
        store.backup(tmp_path / "no" / "such" / "folder")
    store.commit([PutSession("still works", 9, None)])


def test_closing_on_a_full_disk_loses_nothing(store: RocksStore, open_store: Open) -> None:
    store.commit([Append("c", pos, delivery()) for pos in (1, 2)])
    store.commit([Settle("c", 1)])
    with file_size_limit(store._folder, room_bytes=0):
        store.close()
    again = open_store()
    assert [each[0] for each in queue_of(again)] in ([2], [1, 2])
