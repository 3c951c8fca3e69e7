"""Details that the contract leaves to the store on RocksDB: its deletions, and their times.

The rows are read through the store's own engine, because these tests are about the disk.
"""

import threading
import time
from pathlib import Path

import pytest

from flowguard.errors import StallError, StoreError
from flowguard.records import (
    Append,
    Delivery,
    DropSession,
    PutInbound,
    PutSession,
    Release,
    Sent,
    Settle,
    packet_id_of,
)
from flowguard.stores.rocks import RocksStore, sweep
from flowguard.stores.rocks.building import OPS_PIECE
from flowguard.stores.rocks.pending import TURNS
from flowguard.types import Publish
from tests.flowguard.stores.rocks.rows import (
    CLIENTS,
    Open,
    crashed,
    delivery,
    entries_of,
    everything,
    fill,
    finish,
    payloads_of,
)
from tests.flowguard.stores.test_contract import queue_of, session_of

# --- sessions without work -----------------------------------------------------------------------


def test_a_start_has_no_queue_in_memory_of_a_session_without_entries(
    store: RocksStore, open_store: Open
) -> None:
    names = [f"n{number}" for number in range(2_000)]
    store.commit([PutSession(name, 9, 5.0) for name in names])
    store.commit([Append("c1", 1, delivery())])
    before = everything(store)
    store.close()
    again = open_store()
    assert everything(again) == before
    assert list(again._sessions.queues) == ["c1"]
    again.commit([Append("n7", 1, delivery())])
    assert sorted(again._sessions.queues) == ["c1", "n7"]
    assert [each[0] for each in queue_of(again, "n7")] == [1]


def test_positions_go_on_after_a_start_in_a_queue_that_was_empty(
    store: RocksStore, open_store: Open
) -> None:
    store.commit([Append("c", pos, delivery()) for pos in (1, 2)])
    store.commit([Settle("c", 1), Settle("c", 2), PutSession("c", 9, 5.0)])
    finish(store)
    store.close()
    again = open_store()
    assert again._sessions.queues == {}
    assert session_of(again).next_pos == 3
    again.commit([Append("c", 2, delivery()), Append("c", 3, delivery())])
    assert [each[0] for each in queue_of(again)] == [3]


@pytest.mark.parametrize("comes_again", [False, True])
def test_a_session_without_a_queue_in_memory_ends_for_the_rest_of_its_batch(
    store: RocksStore, open_store: Open, comes_again: bool
) -> None:
    """Its row is still there while the batch is built."""
    store.commit([PutInbound("c", 7)])
    store.close()
    again = open_store()
    new = [PutSession("c", 8, 4.0)] if comes_again else []
    again.commit([DropSession("c"), *new, Append("c", 1, delivery()), PutInbound("c", 2)])
    finish(again)
    assert ("c" in {each.client_id for each in again.sessions()}) == comes_again
    if comes_again:
        assert session_of(again).inbound_ids == {2}
        assert [each[0] for each in queue_of(again)] == [1]
    else:
        assert "c" not in again._sessions.queues
        assert entries_of(again) == 0


def test_a_session_without_a_queue_in_memory_stays_if_its_end_is_not_written(
    store: RocksStore, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    again = open_store()
    before = everything(again)

    def stall(*_: object, **__: object) -> None:
        raise StallError("the disk is behind")

    with monkeypatch.context() as patched:
        patched.setattr(again._engine, "write", stall)
        with pytest.raises(StallError):
            again.commit([DropSession("c"), Append("c", 1, delivery())])
    assert everything(again) == before
    again.commit([Append("c", 1, delivery())])
    assert [each[0] for each in queue_of(again)] == [1]


# --- a commit in pieces --------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, OPS_PIECE, OPS_PIECE + 1, 3 * OPS_PIECE + 1])
def test_the_interpreter_is_free_after_each_piece_of_a_batch(
    store: RocksStore, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled code does not give it up, and the loop stands still while it has none."""
    rests: list[float] = []
    sleep, ours = time.sleep, threading.get_ident()

    def rest(seconds: float) -> None:
        if threading.get_ident() == ours:
            rests.append(seconds)
        else:  # Threads that other tests have left at work.
            sleep(seconds)

    monkeypatch.setattr("flowguard.stores.rocks.store.time.sleep", rest)
    message = delivery()
    store.commit([Append("c", pos, message) for pos in range(1, count + 1)])
    assert len(rests) == -(-count // OPS_PIECE)
    assert [each[0] for each in queue_of(store)] == list(range(1, count + 1))


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
    """And so may unsent ones: the mark runs ahead. It is exact for a client that has
    disconnected."""
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


@pytest.mark.parametrize("slices", range(8))
@pytest.mark.parametrize("late", [0, 1])
def test_a_shared_message_is_there_as_long_as_a_crash_brings_its_entry_back(
    store: RocksStore, open_store: Open, tmp_path: Path, slices: int, late: int
) -> None:
    """It was settled before its entry was read, and no record of that exists yet."""
    appended(store, CLIENTS[:2], bytes(600))
    again = open_store(crashed(store, tmp_path / "again"))
    for _ in range(8):
        again.commit([])  # The turn of their records has passed.
    again.commit([Settle(CLIENTS[0], 1)])
    for slice in range(slices):
        if slice == late:
            again.commit([Settle(CLIENTS[1], 1)])
        again.maintain()
    late_store = open_store(crashed(again, tmp_path / "late"))
    for client_id in CLIENTS[:2]:
        queue_of(late_store, client_id)
    finish(again)
    assert payloads_of(again) == (slices <= late)


def test_what_was_settled_before_a_start_refers_to_nothing(
    store: RocksStore, open_store: Open
) -> None:
    """The rows still exist, because something before them is not settled."""
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
