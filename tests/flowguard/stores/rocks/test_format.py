"""The owner of a directory: which ones are opened or rejected, and the message of a rejection."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options, Rdict

from flowguard import __version__
from flowguard.config import StoreSettings
from flowguard.errors import FormatError, LockedError
from flowguard.records import PutSession
from flowguard.stores.rocks import RocksStore
from flowguard.stores.rocks.layouts.keys import FORMAT_KEY

WALL_S = 1_700_000_000.0


def open_store(folder: Path, **more: Any) -> RocksStore:
    settings = StoreSettings(durability="os", disk_reserve_bytes=0, **more)
    return RocksStore(folder, settings, wall_s=lambda: WALL_S, random_node=lambda: 7)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store that was closed."""
    folder = tmp_path / "store"
    store = open_store(folder)
    store.commit([PutSession("c", 9, None)])
    store.close()
    return folder


def record_of(folder: Path) -> bytes | None:
    store = open_store(folder)
    found = store._engine.meta.get(FORMAT_KEY)
    store.close()
    return found


def write_record(folder: Path, record: bytes) -> None:
    store = open_store(folder)
    batch = store._engine.batch()
    batch.put(FORMAT_KEY, record, store._engine.meta.handle)
    store._engine.write(batch)
    store.close()


def test_the_record_says_what_wrote_it(folder: Path) -> None:
    assert record_of(folder) == f"flowguard-rocks 1.0 window {__version__} ".encode()


def test_a_missing_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    open_store(tmp_path / "a" / "b").close()
    assert (tmp_path / "a" / "b" / "CURRENT").exists()


def test_a_later_minor_is_opened(folder: Path) -> None:
    write_record(folder, b"flowguard-rocks 1.7 window 9.9.9 ")
    assert record_of(folder) == b"flowguard-rocks 1.7 window 9.9.9 "


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (b"flowguard-rocks 2.0 window 9.9.9 ", "format 2.0, written by flowguard 9.9.9"),
        (b"flowguard-rocks 1.0 window 9.9.9 tiers,zeta", "tiers, zeta.*flowguard 9.9.9 or later"),
        (b"flowguard-rocks 1.0 status 0.1.0 ", "store.layout.*'window'.*set it to 'status'"),
        (b"flowguard-log 1.0 window 0.1.0 ", "written by something else"),
        (b"\xff", "written by something else"),
    ],
)
def test_another_format_is_refused_and_left_alone(folder: Path, record: bytes, says: str) -> None:
    write_record(folder, record)
    for _ in range(2):
        with pytest.raises(FormatError, match=says):
            open_store(folder)


def test_the_other_layout_is_refused_by_the_name_of_its_setting(folder: Path) -> None:
    with pytest.raises(FormatError, match=r"layout 'window'.*store\.layout says 'status'"):
        open_store(folder, layout="status")
    open_store(folder).close()


def test_data_without_a_record_is_refused(folder: Path) -> None:
    store = open_store(folder)
    batch = store._engine.batch()
    batch.delete(FORMAT_KEY, store._engine.meta.handle)
    store._engine.write(batch)
    store._engine.close()
    with pytest.raises(FormatError, match="without a format record"):
        open_store(folder)


def test_a_folder_with_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mosquitto.db").write_text("")
    with pytest.raises(FormatError, match=r"'mosquitto\.db'.*a folder of its own"):
        open_store(tmp_path)
    assert os.listdir(tmp_path) == ["mosquitto.db"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    with pytest.raises(FormatError, match="cannot be a store"):
        open_store(tmp_path / "store")


def test_a_database_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "theirs")
    theirs = Rdict(path, Options(raw_mode=True))
    theirs.create_column_family("users", Options(raw_mode=True))
    theirs.close()
    with pytest.raises(FormatError, match=r"some other program.*'users'"):
        open_store(tmp_path / "theirs")
    assert Rdict.list_cf(path) == ["default", "users"]


def test_a_start_that_was_cut_short_can_be_repeated(tmp_path: Path) -> None:
    for name in ("LOCK", "LOG", "IDENTITY", "MANIFEST-000001", "000001.dbtmp", "holder"):
        (tmp_path / name).write_text("")
    open_store(tmp_path).close()


def test_before_the_record_was_written_it_is_an_empty_directory(tmp_path: Path) -> None:
    from flowguard.stores.rocks.database.engine import RocksEngine

    RocksEngine(tmp_path / "store", StoreSettings(durability="os")).close()
    assert record_of(tmp_path / "store") is not None


def test_a_second_store_is_told_who_has_the_directory(folder: Path) -> None:
    store = open_store(folder)
    says = f"process {os.getpid()} since 2023-11-14 22:13:20"
    with pytest.raises(LockedError, match=says):
        open_store(folder)
    store.close()
    assert not (folder / "holder").exists()


OTHER = """
import sys
from pathlib import Path
from flowguard.config import StoreSettings
from flowguard.stores.rocks import RocksStore

folder, settings = Path(sys.argv[1]), StoreSettings(durability="os")
store = RocksStore(folder, settings, wall_s=lambda: 1_600_000_000.0, random_node=lambda: 7)
print("open", flush=True)
sys.stdin.read()
"""


def test_another_process_is_named_and_one_that_died_is_no_hindrance(folder: Path) -> None:
    command = [sys.executable, "-c", OTHER, str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(LockedError, match=f"process {other.pid} since 2020-09-13"):
            open_store(folder)
        other.kill()
    assert (folder / "holder").exists()
    open_store(folder).close()
