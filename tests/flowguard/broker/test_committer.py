"""Whatever a request brings to the thread that commits is an answer to who asked, and nothing else.

Only what the store says of itself ends a broker.
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from flowguard.config import StoreSettings
from flowguard.errors import StoreError, SyncError
from flowguard.stores import MemoryStore
from flowguard.stores.rocks import RocksStore
from tests.support.real import broker, connect


def open_store(folder: Path) -> RocksStore:
    settings = StoreSettings(durability="os", disk_reserve_bytes=0)
    return RocksStore(folder, settings, wall_s=lambda: 1.7e9, random_node=lambda: 7)


class Failing(MemoryStore):
    """Backups fail like that."""

    immediate = False

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def backup(self, folder: Path) -> None:
        raise self._error


@pytest.mark.parametrize("name", ["\ud800", "a\0b", "x" * 5_000, "no/such", "..", "/"])
async def test_a_folder_that_cannot_be_is_told_to_who_asked(tmp_path: Path, name: str) -> None:
    async with broker(store=open_store(tmp_path / "store")) as running:
        with pytest.raises(StoreError):
            await running.backup(tmp_path / name)
        client = await connect(running, "c", durable=True)
        await client.close()


@pytest.mark.parametrize(
    "error", [TypeError("t"), ValueError("v"), OSError(24, "o"), MemoryError(), KeyError("k")]
)
async def test_a_backup_that_breaks_breaks_nothing_else(error: Exception) -> None:
    async with broker(store=Failing(error)) as running:
        with pytest.raises(StoreError, match=error.__class__.__name__):
            await running.backup(Path("/somewhere"))
        client = await connect(running, "c", durable=True)
        await client.close()


async def test_a_disk_that_does_not_sync_ends_the_broker() -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(SyncError), flatten_subgroups=True):
        async with broker(store=Failing(SyncError("lost"))) as running:
            await running.backup(Path("/somewhere"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(name=st.text(st.characters(), min_size=1, max_size=20))
@example(name="\ud800")
@example(name="\0")
def test_a_backup_is_a_copy_or_a_store_error_whatever_its_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "store"
    store = open_store(folder)
    try:
        try:
            store.backup(folder.parent / name)
        except StoreError:
            return
        open_store(folder.parent / name).close()
    finally:
        store.close()
