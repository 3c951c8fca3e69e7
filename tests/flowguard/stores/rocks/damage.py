"""A store with something of every kind in every kind of file, and one byte of it changed."""

import os
import random
import shutil
from pathlib import Path

from flowguard.config import MIB, StoreSettings
from flowguard.records import (
    NEVER_S,
    Append,
    Delivery,
    PutInbound,
    PutRetained,
    PutSession,
    PutSubscription,
    PutWill,
    Release,
    Sent,
    Settle,
    WillRecord,
)
from flowguard.stores.rocks import RocksStore
from flowguard.types import Publish, SubscriptionOptions

SETTINGS = StoreSettings(durability="fsync", disk_reserve_bytes=0, write_buffer_bytes=MIB)
IMMUTABLE = (".sst", ".blob")


def open_store(folder: Path) -> RocksStore:
    return RocksStore(folder, SETTINGS, wall_s=lambda: 1.7e9, random_node=lambda: 7)


def fill(store: RocksStore, first: int, count: int) -> None:
    """Sessions, retained messages, and a queue: small ones, large ones, one that is shared."""
    some = random.Random(first)
    for number in range(first, first + count):
        client_id = f"client-{number:05d}"
        retained = Publish(f"r/{number:05d}", some.randbytes(6_000 if number % 10 == 0 else 60), 1)
        store.commit(
            [
                PutSession(client_id, 900, None if number % 2 else 5e9),
                PutSubscription(client_id, f"a/{number}", SubscriptionOptions(1)),
                PutInbound(client_id, number % 100 + 1),
                PutWill(client_id, WillRecord(Publish("w", b"%d" % number), 3)),
                PutRetained(retained, NEVER_S),
            ]
        )
    owner = f"client-{first:05d}"
    for pos in range(1, 8 * count):
        message = Publish("t", some.randbytes(6_000 if pos % 15 == 0 else 50), 1)
        store.commit([Append(owner, pos, Delivery(message, 1, False, (), NEVER_S))])
    store.commit([Sent(owner, 10), Settle(owner, 2), Settle(owner, 5), Release(owner, 3, 3)])
    shared = Publish("shared", some.randbytes(700), 1)
    store.commit(
        [
            Append(f"client-{number:05d}", 9 * count, Delivery(shared, 1, False, (), NEVER_S))
            for number in range(first, first + 5)
        ]
    )


def build(folder: Path, *, killed: bool) -> Path:
    """A store of two halves, one in tables and one in the log of writes."""
    work = folder / "work"
    store = open_store(work)
    fill(store, 0, 40)
    store._engine.flush()
    fill(store, 100, 15)
    store._engine._db.cancel_all_background(True)
    made = folder / "made"
    if killed:
        shutil.copytree(work, made)
    store.close()
    if not killed:
        shutil.copytree(work, made)
    shutil.rmtree(work)
    return made


def contents(folder: Path) -> list[object]:
    """Return all contents, as a broker that starts on it gets them. Raises `StoreError`."""
    store = open_store(folder)
    try:
        return contents_of(store)
    finally:
        store._engine.close()


def contents_of(store: RocksStore) -> list[object]:
    found: list[object] = []
    for each in store.sessions():
        counts = each.next_pos, each.sent_pos, each.unsettled_count, each.unsettled_bytes
        own = dict(each.subscriptions), set(each.inbound_ids), each.will
        found.append((each.client_id, each.expiry_interval_s, each.ends_at_s, counts, own))
        found += queue_of(store, each.client_id)
    found += [(message.topic, message.payload, end_s) for message, end_s in store.retained()]
    return found


def queue_of(store: RocksStore, client_id: str) -> list[object]:
    found: list[object] = []
    after = 0
    while page := store.fetch(client_id, after, 250):
        after = page[-1].pos
        for entry in page:
            payload = None if entry.delivery is None else entry.delivery.message.payload
            found.append((entry.pos, entry.packet_id, payload))
    return found


def with_byte_changed(source: Path, target: Path, name: str, at: int) -> Path:
    """A copy of `source`, in which file `name` has another byte at `at`."""
    target.mkdir()
    for path in source.iterdir():
        if path.name != name and path.suffix in IMMUTABLE:
            os.link(path, target / path.name)
        else:
            data = bytearray(path.read_bytes())
            if path.name == name:
                data[at] ^= 0x10
            (target / path.name).write_bytes(data)
    return target


def change_byte(path: Path, at: int) -> None:
    """In place; RocksDB has it open, so it keeps its inode."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes((byte ^ 0x10,)))
