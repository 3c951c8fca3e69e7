"""`flowguard store workers`: all that one number of workers has, another number has then."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flowguard.app.stores import open_store
from flowguard.app.workers.data_folder import lock, stored_count
from flowguard.app.workers.seat import name_of
from flowguard.cluster.members import owner_among
from flowguard.codec.packets import Pubrec
from flowguard.config import Settings, StoreSettings
from flowguard.records import (
    NEVER_S,
    Append,
    PutInbound,
    PutLogPlace,
    PutRetained,
    PutSession,
    PutSubscription,
    PutWill,
    Release,
    Sent,
    Settle,
    SinkKind,
    StoreOp,
    WillRecord,
    key_of,
    packet_id_of,
)
from flowguard.stores import Store
from flowguard.stores.rocks import RocksStore
from flowguard.types import SESSION_NEVER_EXPIRES, Publish, SubscriptionOptions
from store_tools.workers import move as moving
from tests.flowguard.stores.rocks.limits import file_size_limit
from tests.flowguard.stores.test_contract import delivery, queue_of, values
from tests.store_tools.test_store import run_here
from tests.support.machine import Machine, answers

LATER_S = 4_000_000_000.0
SHARED = "$share/g/s/#"
GROUP = key_of(SinkKind.SHARED, SHARED)
OPTIONS = SubscriptionOptions(2, True, True, 1, 99)
NAMES = [f"client-{number}" for number in range(20)]


def on_disk(folder: Path) -> Store:
    return open_store(Settings.model_validate({"store": {"durability": "os"}}), folder)


@contextmanager
def opened(data: Path, count: int) -> Iterator[dict[str, Store]]:
    names = [name_of(index) for index in range(count)]
    stores = {name: on_disk(data / name if count > 1 else data) for name in names}
    yield stores
    for store in stores.values():
        store.close()


def fill(store: Store, name: str) -> None:
    """A session with one of everything."""
    released = delivery(b"2", qos=2)
    store.commit(
        [
            PutSession(name, 3_600, LATER_S, False, f"user of {name}"),
            PutSubscription(name, "a/+", OPTIONS),
            PutSubscription(name, "r/#", OPTIONS, "r/1"),
            PutInbound(name, 7),
            PutWill(name, WillRecord(Publish("w", b"gone", 1, True), 3_600)),
            *[Append(name, pos, delivery(name.encode())) for pos in (1, 3, 4, 5, 6)],
            Append(name, 2, released),
            Release(name, 2, packet_id_of(2, 2), released),
            Append(name, 7, delivery(b"old", expires_at_s=LATER_S)),
            Sent(name, 4),
            Settle(name, 1, None),
            Append(name, 9, delivery()),
            Settle(name, 9, None),
        ]
    )


def seen(data: Path, count: int) -> dict[str, object]:
    """All sessions by client id, each at its owner, and the retained messages of all stores."""
    found: dict[str, object] = {}
    with opened(data, count) as stores:
        for worker, store in stores.items():
            for record in store.sessions():
                if not record.client_id.startswith("\0"):
                    assert owner_among(stores, record.client_id) == worker
                    assert record.client_id not in found
                    found[record.client_id] = values(record), queue_of(store, record.client_id)
        retained = [
            [(message.topic, message.payload, end_s) for message, end_s in store.retained()]
            for store in stores.values()
        ]
        assert all(each == retained[0] for each in retained)
        found["retained"] = retained[0]
    return found


def payloads(data: Path, count: int, key: str) -> list[bytes]:
    """Return the messages that wait under a key, in the one store that has some."""
    found: list[bytes] = []
    with opened(data, count) as stores:
        for store in stores.values():
            entries = store.fetch(key, 0, 1_000)
            assert not (found and entries)
            found += [each.delivery.message.payload for each in entries if each.delivery]
    return found


@pytest.fixture
def single(tmp_path: Path) -> Path:
    """The data directory of one worker."""
    store = on_disk(tmp_path / "single")
    for name in NAMES:
        fill(store, name)
    store.commit(
        [
            PutRetained(Publish(f"r/{number}", b"kept", 1, True), LATER_S if number else NEVER_S)
            for number in range(600)
        ]
    )
    store.close()
    return tmp_path / "single"


def moved(data: Path, count: int) -> Path:
    out = data.with_name(f"of-{count}")
    code, shown, complaint = run_here("store", "workers", str(data), str(count), "--out", str(out))
    assert code == 0, complaint
    assert f"flowguard serve --workers {count} --data {out}" in shown.replace("\n", " ")
    return out


def rejection(data: Path, count: int, out: Path) -> str:
    code, shown, complaint = run_here("store", "workers", str(data), str(count), "--out", str(out))
    assert (code, shown) == (1, ""), complaint
    return complaint.replace("\n", " ")


def test_sessions_and_retained_messages_stay_the_same_over_all_numbers(single: Path) -> None:
    expected = seen(single, 1)
    data = single
    for count in (2, 3, 5, 1):
        data = moved(data, count)
        assert seen(data, count) == expected
        assert (stored_count(data) or 1) == count
    assert seen(single, 1) == expected


def test_old_stores_stay_as_they_are(single: Path) -> None:
    two = moved(single, 2)
    expected = seen(two, 2)
    moved(two, 3)
    assert seen(two, 2) == expected


def test_retained_message_of_the_owner_of_its_topic_is_moved(single: Path) -> None:
    two = moved(single, 2)
    with opened(two, 2) as stores:
        owner = owner_among(stores, "r/5")
        for name, store in stores.items():
            payload = b"of the owner" if name == owner else b"of another"
            store.commit([PutRetained(Publish("r/5", payload, 1, True), NEVER_S)])
    three: Any = seen(moved(two, 3), 3)
    assert ("r/5", b"of the owner", NEVER_S) in three["retained"]


# --- shared subscriptions -------------------------------------------------------------------------


def join(store: Store, name: str, *messages: bytes) -> None:
    """Make a member of the shared subscription, and messages that wait in its queue."""
    ops: list[StoreOp] = [
        PutSession(name, 3_600, LATER_S),
        PutSubscription(name, SHARED, OPTIONS),
        PutSession(GROUP, SESSION_NEVER_EXPIRES, None),
    ]
    for pos, payload in enumerate(messages, 1):
        ops.append(Append(GROUP, pos, delivery(payload, qos=2)))
    store.commit(ops)


def test_shared_queue_moves_to_a_worker_with_a_member(tmp_path: Path) -> None:
    for number in range(4):  # Members of whom some have another owner than the name of the queue.
        data = tmp_path / str(number) / "data"
        store = on_disk(data)
        join(store, f"member-{number}", b"1", b"2", b"3")
        store.commit([Settle(GROUP, 1, None)])
        store.close()
        out = moved(data, 4)
        with opened(out, 4) as stores:
            owner = stores[owner_among(stores, f"member-{number}")]
            assert len(owner.fetch(GROUP, 0, 10)) == 2
        assert payloads(out, 4, GROUP) == [b"2", b"3"]


def test_shared_queues_of_several_workers_become_one_in_order(tmp_path: Path) -> None:
    with opened(tmp_path / "two", 2) as stores:
        for worker, store in stores.items():
            name = next(each for each in NAMES if owner_among(stores, each) == worker)
            join(store, name, *[f"{worker} {number}".encode() for number in range(300)])
            gone = delivery(b"gone", qos=2)
            store.commit([Append(GROUP, 301, gone), Release(GROUP, 301, 0, gone)])
    moving.take(tmp_path / "two", 2)
    found = payloads(moved(tmp_path / "two", 1), 1, GROUP)
    assert len(found) == 600
    for worker in ("worker-0", "worker-1"):
        of_worker = [each for each in found if each.startswith(worker.encode())]
        assert of_worker == [f"{worker} {number}".encode() for number in range(300)]


# --- messages between workers ---------------------------------------------------------------------


class KilledMachine(Machine):
    """Two workers with stores on disk, which end without a word."""

    def __init__(self, data: Path) -> None:
        options = StoreSettings(durability="os", disk_reserve_bytes=0)
        names = (name_of(0), name_of(1))
        super().__init__(
            *names,
            store=lambda name: RocksStore(
                data / name, options, wall_s=lambda: 1.7e9, random_node=lambda: 7
            ),
        )
        moving.take(data, 2)

    def kill_all(self) -> None:
        for store in self.stores.values():
            assert isinstance(store, RocksStore)
            store._engine.close()


def test_message_that_is_owed_to_another_worker_is_delivered_before_the_move(
    tmp_path: Path,
) -> None:
    data = tmp_path / "two"
    machine = KilledMachine(data)
    subscriber = machine["worker-1"].connect_durable(
        "s", session_expiry_interval=SESSION_NEVER_EXPIRES
    )
    subscriber.subscribe("t/#", qos=2)
    subscriber.close()
    publisher = machine["worker-0"].connect("p")
    publisher.publish("t/0", b"taken", qos=2)
    machine.is_carrying = False
    for number in range(5):
        publisher.publish(f"t/{number}", b"%d" % number, qos=2, retain=number == 4)
    assert len(answers(publisher, Pubrec)) == 6
    machine.kill_all()
    expected = [b"taken", *(b"%d" % number for number in range(5))]
    three = moved(data, 3)
    assert payloads(three, 3, "s") == expected
    assert payloads(moved(three, 1), 1, "s") == expected
    retained: Any = seen(three, 3)["retained"]
    assert [(topic, payload) for topic, payload, _ in retained] == [("t/4", b"4")]


def test_message_that_the_other_worker_has_taken_is_not_delivered_again(tmp_path: Path) -> None:
    data = tmp_path / "two"
    machine = KilledMachine(data)
    subscriber = machine["worker-1"].connect_durable(
        "s", session_expiry_interval=SESSION_NEVER_EXPIRES
    )
    subscriber.subscribe("t", qos=2)
    subscriber.close()
    publisher = machine["worker-0"].connect("p")
    machine.is_carrying = False
    publisher.publish("t", b"x", qos=2)
    machine["worker-0"].hold_commits = True  # It does not settle what the other one has taken.
    machine.is_carrying = True
    machine.settle()
    assert machine["worker-0"].mesh.outgoing["worker-1"].messages_count == 0
    machine.kill_all()
    assert payloads(moved(data, 1), 1, "s") == [b"x"]


# --- errors ---------------------------------------------------------------------------------------


def test_move_to_the_same_number_is_rejected(single: Path, tmp_path: Path) -> None:
    assert "has that number of workers already" in rejection(single, 1, tmp_path / "out")
    assert "has no store" in rejection(tmp_path / "empty", 2, tmp_path / "out")


def test_move_to_a_directory_that_exists_is_rejected(single: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert "exists" in rejection(single, 2, tmp_path / "out")
    assert "name one beside it" in rejection(single, 2, single / "out")


def test_move_while_a_broker_runs_is_rejected(single: Path, tmp_path: Path) -> None:
    two = moved(single, 2)
    fd = lock(two)
    code, _, complaint = run_here("store", "workers", str(two), "3", "--out", str(tmp_path / "out"))
    assert (code, "is in use" in complaint) == (2, True)
    moving.os.close(fd)


def test_session_that_reads_the_durable_log_is_rejected(single: Path, tmp_path: Path) -> None:
    store = on_disk(single)
    store.commit([PutLogPlace(NAMES[3], None)])
    store.close()
    assert "reads the durable log" in rejection(single, 2, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_too_little_space_is_seen_before_the_move(
    single: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "STORE_BYTES", 2**60)
    complaint = rejection(single, 2, tmp_path / "out")
    assert f"{tmp_path} has" in complaint
    assert "free: free" in complaint
    assert sorted(each.name for each in tmp_path.iterdir()) == ["single"]


def test_disk_that_is_full_during_the_move_leaves_the_old_stores(
    single: Path, tmp_path: Path
) -> None:
    store = on_disk(single)
    store.commit([Append(NAMES[0], 10 + pos, delivery(bytes(5_000))) for pos in range(2_000)])
    store.close()
    expected = seen(single, 1)
    with file_size_limit(tmp_path / "single" / "..", 1_000_000):
        rejection(single, 2, tmp_path / "out")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["single"]
    assert seen(single, 1) == expected
    assert seen(moved(single, 2), 2) == expected


def test_rest_of_a_killed_attempt_is_replaced(single: Path, tmp_path: Path) -> None:
    rest = tmp_path / "of-2.unfinished" / "of-2" / "worker-0"
    rest.mkdir(parents=True)
    (rest / "CURRENT").write_text("half")
    assert seen(moved(single, 2), 2) == seen(single, 1)
    assert not (tmp_path / "of-2.unfinished").exists()


def test_directory_of_others_that_has_the_name_of_a_rest_is_kept(
    single: Path, tmp_path: Path
) -> None:
    (tmp_path / "out.unfinished" / "letters").mkdir(parents=True)
    assert "remove what is left" in rejection(single, 2, tmp_path / "out")
    assert (tmp_path / "out.unfinished" / "letters").is_dir()
