"""Copies of a store that RocksDB cannot open, restored from its tables and logs.

A MANIFEST lists the tables of a store, and CURRENT has the name of the valid MANIFEST.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flowguard.errors import StoreError
from flowguard.stores.rocks.database.engine import RocksEngine, repair
from flowguard.stores.rocks.database.synced import SYNCED
from store_tools.rocks.copying import IMMUTABLE, LEFT_OUT
from store_tools.rocks.reader import CONFIGURATION, SETTINGS, nobody_else

LOST = "lost"
"""The folder to which RocksDB moves files that it cannot use."""


@contextmanager
def with_current(folder: Path) -> Iterator[Path]:
    """Yield a copy with a new CURRENT, which names the latest MANIFEST; no data is lost.

    Does not change `folder`. Raises `LockedError`, and `StoreError` if there is no MANIFEST.
    """
    with _copied(folder) as copy:
        latest = max([path.name for path in copy.glob("MANIFEST-*")], default=None)
        if latest is None:
            raise StoreError(f"{folder} has no MANIFEST")
        (copy / "CURRENT").write_text(f"{latest}\n")
        yield copy


@contextmanager
def without_manifest(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield a copy with all readable tables, and the names of the other tables.

    Deleted rows may be in the copy again, and blobs are lost. Does not change `folder`. Raises
    `CorruptionError`, `LockedError` and other `StoreError`.
    """
    with _copied(folder) as copy:
        (copy / SYNCED).unlink(missing_ok=True)  # The repair restarts its numbers.
        # A repair drops the logged changes of all families but the first; opening keeps them.
        aside = copy / "aside"
        aside.mkdir()
        for path in copy.glob("*.log"):
            path.rename(aside / path.name)
        repair(copy)
        left_out = sorted(path.name for path in (copy / LOST).glob("*.sst"))
        shutil.rmtree(copy / LOST, ignore_errors=True)
        for path in aside.iterdir():
            path.rename(copy / path.name)
        aside.rmdir()
        RocksEngine(copy, SETTINGS).close()  # Create families without a table.
        yield copy, left_out


@contextmanager
def _copied(folder: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="flowguard-") as name, nobody_else(folder):
        copy = Path(name)
        for path in folder.resolve().iterdir():
            if path.name == CONFIGURATION or path.name.startswith(LEFT_OUT):
                continue
            if path.suffix in IMMUTABLE:
                (copy / path.name).symlink_to(path)
            elif path.is_file():
                shutil.copyfile(path, copy / path.name)
        yield copy
