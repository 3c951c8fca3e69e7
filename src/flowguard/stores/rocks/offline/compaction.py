"""Compaction of a closed store: deleted rows give their space back."""

from pathlib import Path
from typing import Final

from flowguard.errors import LockedError
from flowguard.stores.rocks import format
from flowguard.stores.rocks.engine import RocksEngine
from flowguard.stores.rocks.offline.reader import SETTINGS, StoreReader

DATA: Final = frozenset({".sst", ".blob", ".log"})


def compact(folder: Path, now_s: float) -> tuple[int, int]:
    """Rewrite its tables; returns the data's size before and after, bytes. Raises `StoreError`."""
    StoreReader(folder).close()  # It is one, and nobody has it open.
    before_bytes = data_bytes_of(folder)
    try:
        engine = RocksEngine(folder, SETTINGS)
    except LockedError as error:
        raise format.locked(folder) from error
    try:
        format.hold(folder, now_s)
        engine.flush()
        engine.compact()
    finally:
        format.let_go(folder)
        engine.close()
    return before_bytes, data_bytes_of(folder)


def data_bytes_of(folder: Path) -> int:
    """The size of tables, blobs and the log of writes, bytes; RocksDB's diary is not data."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.suffix in DATA)
