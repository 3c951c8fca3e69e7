"""Stores on RocksDB whose rows are looked at through their own engine."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flowguard.config import StoreSettings
from flowguard.records import PutSession
from flowguard.stores.rocks import RocksStore
from tests.flowguard.stores.rocks.rows import CLIENTS, SETTINGS, Open


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
