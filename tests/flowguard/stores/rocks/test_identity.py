"""No two directories share a number, and each knows how far it has followed the other."""

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from flowguard.config import StoreSettings
from flowguard.errors import CorruptionError, StoreError
from flowguard.kafka_settings import OWNER_FILE
from flowguard.records import PutSession
from flowguard.stores.rocks import RocksStore
from flowguard.stores.rocks.identity import Identity, read_identity
from flowguard.stores.rocks.layouts.keys import NODE_KEY
from store_tools.rocks.copying import back_up_files

SETTINGS = StoreSettings(durability="os", disk_reserve_bytes=0)
NUMBERS = count(1)


def open_store(folder: Path) -> RocksStore:
    return RocksStore(
        folder, SETTINGS, wall_s=lambda: 1_700_000_000.0, random_node=lambda: next(NUMBERS)
    )


def identity_of(store: RocksStore) -> Identity:
    found = read_identity(store._engine, store._folder)
    assert found is not None
    return found


@pytest.fixture
def store(tmp_path: Path) -> RocksStore:
    store = open_store(tmp_path / "store")
    store.commit([PutSession("c", 9, None)])
    return store


def backed_up(store: RocksStore, folder: Path) -> None:
    store.backup(folder)


def backed_up_closed(store: RocksStore, folder: Path) -> None:
    store.close()
    back_up_files(store._folder, folder)


def copied_by_hand(store: RocksStore, folder: Path) -> None:
    store._engine._db.cancel_all_background(True)
    shutil.copytree(store._folder, folder)


COPIES = pytest.mark.parametrize("copy", [backed_up, backed_up_closed, copied_by_hand])


@pytest.mark.parametrize("copy", [backed_up, backed_up_closed])
def test_a_copy_says_that_kafka_has_queues_which_are_not_its_own(
    store: RocksStore, tmp_path: Path, copy: Callable[[RocksStore, Path], None]
) -> None:
    (store._folder / OWNER_FILE).write_text("its name")
    copy(store, tmp_path / "copy")
    assert (tmp_path / "copy" / OWNER_FILE).read_text() == ""


def test_a_directory_keeps_its_number(store: RocksStore) -> None:
    before = identity_of(store)
    store.close()
    again = open_store(store._folder)
    assert identity_of(again) == before
    assert not before.is_copy
    again.close()


@COPIES
def test_a_copy_draws_a_new_number_once_and_remembers_the_old_one(
    store: RocksStore, tmp_path: Path, copy: object
) -> None:
    assert callable(copy)
    original = identity_of(store)
    copy(store, tmp_path / "copy")
    restored = open_store(tmp_path / "copy")
    found = identity_of(restored)
    assert found.node != original.node
    assert dict(found.former) == {original.node: original.hlc}
    assert list(tmp_path.joinpath("copy").glob("copy")) == []
    restored.commit([PutSession("d", 9, None)])
    assert identity_of(restored).hlc > original.hlc
    restored.close()
    again = open_store(tmp_path / "copy")
    assert identity_of(again).node == found.node
    again.close()
    store._engine.close()


def test_what_the_original_does_after_the_copy_is_not_received(
    store: RocksStore, tmp_path: Path
) -> None:
    store.backup(tmp_path / "copy")
    store.commit([PutSession("later", 9, None)])
    restored = open_store(tmp_path / "copy")
    original = identity_of(store)
    assert identity_of(restored).seen[original.node] < original.hlc
    for opened in (store, restored):
        opened.close()


def test_a_crash_forgets_nothing_that_was_given_out(store: RocksStore, tmp_path: Path) -> None:
    store.commit([PutSession("d", 9, None)])
    copied_by_hand(store, tmp_path / "crashed")
    before = identity_of(store)
    after_crash = open_store(tmp_path / "crashed")
    assert identity_of(after_crash).seen[before.node] == before.hlc
    for opened in (store, after_crash):
        opened.close()


def test_a_number_that_the_directory_had_is_not_drawn_again(
    store: RocksStore, tmp_path: Path
) -> None:
    before = identity_of(store)
    store.close()
    shutil.copytree(store._folder, tmp_path / "copy")
    number = int.from_bytes(before.node, "big")
    copy = RocksStore(tmp_path / "copy", SETTINGS, wall_s=lambda: 0.0, random_node=lambda: number)
    assert int.from_bytes(identity_of(copy).node, "big") == number + 1
    copy.close()


def test_a_damaged_node_record_is_refused(store: RocksStore) -> None:
    batch = store._engine.batch()
    batch.put(NODE_KEY, b"\0" * 5, store._engine.meta.handle)
    store._engine.write(batch)
    store.close()
    with pytest.raises(CorruptionError, match="node record"):
        open_store(store._folder)


def test_an_unfinished_backup_has_no_name(store: RocksStore, tmp_path: Path) -> None:
    (tmp_path / "copy.unfinished").mkdir()
    with pytest.raises(StoreError, match=r"copy\.unfinished.*exists"):
        store.backup(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    (tmp_path / "copy.unfinished").rmdir()
    store.backup(tmp_path / "copy")
    assert (tmp_path / "copy").stat().st_mode & 0o077 == 0
    assert not (tmp_path / "copy.unfinished").exists()
    store.close()
