"""Rows of a store on RocksDB, and entries that tests put in to inspect them."""

import shutil
from collections.abc import Callable
from pathlib import Path

from flowguard.config import MIB, StoreSettings
from flowguard.records import (
    NEVER_S,
    Append,
    Delivery,
    PutInbound,
    PutSubscription,
    PutWill,
    WillRecord,
)
from flowguard.stores.rocks import RocksStore
from flowguard.types import Publish, SubscriptionOptions
from tests.flowguard.stores.test_contract import queue_of, values

SETTINGS = StoreSettings(durability="os", disk_reserve_bytes=0, write_buffer_bytes=MIB)
CLIENTS = [f"c{number}" for number in range(6)]
Open = Callable[..., RocksStore]


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


def fill(store: RocksStore, count: int) -> None:
    store.commit([Append("c", pos, delivery()) for pos in range(1, count + 1)])
    store.commit(
        [PutSubscription("c", f"t/{number}", SubscriptionOptions()) for number in range(count)]
    )
    store.commit([PutInbound("c", 1), PutWill("c", WillRecord(Publish("w", b""), 0))])


def everything(store: RocksStore) -> list[object]:
    records = list(store.sessions())
    return [(values(record), queue_of(store, record.client_id)) for record in records]
