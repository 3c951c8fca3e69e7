"""A copy of a store that RocksDB cannot open, as far as its tables and logs say what it was.

RocksDB lists in a MANIFEST which tables belong to a store, and in CURRENT which MANIFEST holds.
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
"""The folder in which RocksDB leaves what it cannot use."""


@contextmanager
def with_current(folder: Path) -> Iterator[Path]:
    """A copy with a new CURRENT, which names the latest MANIFEST; nothing is lost by that.

    Nothing in `folder` is changed. Raises `LockedError`, and `StoreError` where there is none.
    """
    with _copied(folder) as copy:
        latest = max([path.name for path in copy.glob("MANIFEST-*")], default=None)
        if latest is None:
            raise StoreError(f"{folder} has no MANIFEST")
        (copy / "CURRENT").write_text(f"{latest}\n")
        yield copy


@contextmanager
def without_manifest(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """A copy with all tables that can be read, and the names of those that are not in it.

    What was deleted may be there again; which blobs belong to it is not known any more. Nothing in
    `folder` is changed. Raises `CorruptionError`, `LockedError` and other `StoreError`.
    """
    with _copied(folder) as copy:
        (copy / SYNCED).unlink(missing_ok=True)  # Its count is by a numbering that begins anew.
        # Repairing throws away what logs have for other families than the first. Opening does not.
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
        RocksEngine(copy, SETTINGS).close()  # Families of which there was no table are made.
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
