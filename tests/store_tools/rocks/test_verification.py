"""A store that does not fit together is found out, and one that does is not accused."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flowguard.config import StoreSettings
from flowguard.errors import CorruptionError, StoreError
from flowguard.records import (
    NEVER_S,
    Append,
    Delivery,
    DropSession,
    PutInbound,
    PutRetained,
    PutSession,
    PutSubscription,
    PutWill,
    Release,
    Sent,
    Settle,
    WillRecord,
    packet_id_of,
)
from flowguard.stores.rocks import RocksStore
from flowguard.stores.rocks.database.engine import RocksEngine
from flowguard.stores.rocks.layouts.keys import inbound_key, record_key, session_key
from flowguard.types import Publish, SubscriptionOptions
from store_tools.rocks.reader import StoreReader
from store_tools.rocks.verification import Verification, verify

LAYOUTS = pytest.mark.parametrize("layout", ["window", "status"])


def delivery(payload: bytes, message: Publish | None = None) -> Delivery:
    return Delivery(message or Publish("t", payload, 2), 2, False, (), NEVER_S)


def store_with_everything(folder: Path, layout: str = "window") -> RocksStore:
    settings = StoreSettings(durability="os", disk_reserve_bytes=0, layout=layout)
    store = RocksStore(folder, settings, wall_s=lambda: 1.7e9, random_node=lambda: 7)
    shared = Publish("t", bytes(600), 2)
    store.commit([PutSession(client_id, 9, None) for client_id in ("a", "b", "gone")])
    store.commit([Append("a", pos, delivery(b"x" * pos)) for pos in range(1, 301)])
    store.commit(
        [
            Append("a", 301, delivery(b"", shared)),
            Append("b", 1, delivery(b"", shared)),
            Append("gone", 1, delivery(b"")),
            PutSubscription("a", "t/#", SubscriptionOptions(2)),
            PutInbound("a", 5),
            PutWill("b", WillRecord(Publish("w", b"last"), 3)),
            PutRetained(Publish("r/\u00e9", b"kept", 1, True), NEVER_S),
        ]
    )
    store.commit([Sent("a", 9), Settle("a", 3), Release("a", 5, packet_id_of(5, 2))])
    store.commit([DropSession("gone")])
    return store


def verified(folder: Path) -> Verification:
    told: list[tuple[int, int]] = []
    with StoreReader(folder) as reader:
        found = verify(reader, lambda done, total: told.append((done, total)))
    assert all(done <= total for done, total in told)
    return found


def counts(found: Verification) -> tuple[int, ...]:
    return found.sessions, found.entries, found.payloads, found.retained, found.orphans


@LAYOUTS
def test_a_store_that_was_closed_fits_together(tmp_path: Path, layout: str) -> None:
    store_with_everything(tmp_path / "store", layout).close()
    found = verified(tmp_path / "store")
    assert found.problems == []
    assert counts(found) == (2, 301, 1, 1, 0)


@LAYOUTS
def test_a_store_that_crashed_fits_together(tmp_path: Path, layout: str) -> None:
    store = store_with_everything(tmp_path / "store", layout)
    store._engine._db.cancel_all_background(True)
    shutil.copytree(tmp_path / "store", tmp_path / "crashed")
    store.close()
    found = verified(tmp_path / "crashed")
    assert found.problems == []
    assert found.entries >= 301


def test_what_nobody_refers_to_is_no_problem(tmp_path: Path) -> None:
    store = store_with_everything(tmp_path / "store")
    engine = store._engine
    batch = engine.batch()
    row = engine.payloads.scan(b"", b"\xff" * 16)[0][1]
    batch.put(b"\0" * 12, row, engine.payloads.handle)
    batch.put(record_key(99), b"", engine.queues.handle)
    engine.write(batch)
    store.close()
    found = verified(tmp_path / "store")
    assert (found.problems, found.orphans) == ([], 2)


def shared_message(engine: RocksEngine) -> bytes:
    return engine.payloads.scan(b"", b"\xff" * 16)[0][0]


def lose_shared_message(engine: RocksEngine) -> None:
    batch = engine.batch()
    batch.delete(shared_message(engine), engine.payloads.handle)
    engine.write(batch)


def put(
    family: str, key: Callable[[RocksEngine], bytes], value: bytes
) -> Callable[[RocksEngine], None]:
    def write(engine: RocksEngine) -> None:
        batch = engine.batch()
        batch.put(key(engine), value, getattr(engine, family).handle)
        engine.write(batch)

    return write


def lose_entry(engine: RocksEngine) -> None:
    key = engine.queues.scan(b"", b"\xff" * 16, 20)[-1][0]
    batch = engine.batch()
    batch.delete(key, engine.queues.handle)
    engine.write(batch)


def damage_entry(engine: RocksEngine) -> None:
    key = engine.queues.scan(b"", b"\xff" * 16, 20)[-1][0]
    put("queues", lambda _: key, b"\x7f" * 40)(engine)


DAMAGE: dict[str, tuple[Callable[[RocksEngine], None], str]] = {
    "a shared message is missing": (lose_shared_message, "'a', soon after position.*not there"),
    "a shared message is damaged": (
        put("payloads", shared_message, b"\x7f"),
        "shared message .*damaged",
    ),
    "an entry is missing": (lose_entry, "299 entries with .* its record counts 300"),
    "an entry is damaged": (damage_entry, "'a', soon after position.*damaged"),
    "a record is damaged": (put("queues", lambda _: record_key(1), b"\x01"), "'a'.*cut short"),
    "a session is damaged": (put("own", lambda _: session_key("a"), b"\x01"), "'a'.*cut short"),
    "a name is damaged": (put("own", lambda _: b"\x01\xff", b"\x01"), "a name is damaged"),
    "an inbound id is damaged": (put("own", lambda _: inbound_key(1, 5), b""), "'a'.*cut short"),
    "a retained message is damaged": (put("retained", lambda _: b"r", b"\x01"), "'r'.*cut short"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_named(tmp_path: Path, name: str) -> None:
    damage, says = DAMAGE[name]
    store_with_everything(tmp_path / "store").close()
    engine = RocksEngine(tmp_path / "store", StoreSettings(durability="os"))
    damage(engine)
    engine.close()
    found = verified(tmp_path / "store")
    assert found.problems_count == len(found.problems) >= 1
    assert re.search(says, "\n".join(found.problems))


def test_a_retained_message_under_another_topic_is_found(tmp_path: Path) -> None:
    store = store_with_everything(tmp_path / "store")
    row = store._engine.retained.scan(b"", b"\xff")[0][1]
    put("retained", lambda _: b"other", row)(store._engine)
    store.close()
    (problem,) = verified(tmp_path / "store").problems
    assert "'other'" in problem


def damage_table(folder: Path) -> Path:
    table = max(folder.glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(table.read_bytes())
    for at in range(200, len(data) // 2):
        data[at] ^= 0xFF
    table.write_bytes(data)
    return table


def test_a_damaged_file_is_named_where_it_lies(tmp_path: Path) -> None:
    store_with_everything(tmp_path / "store").close()
    table = damage_table(tmp_path / "store")
    try:
        told = "\n".join(verified(tmp_path / "store").problems)
    except StoreError as error:
        told = str(error)
    assert str(table) in told
    with pytest.raises(CorruptionError, match=table.name):
        read_everything(tmp_path / "store")


def read_everything(folder: Path) -> None:
    with StoreReader(folder) as reader:
        for session in reader.sessions():
            list(reader.entries(session))
