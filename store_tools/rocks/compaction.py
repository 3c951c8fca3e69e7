"""Compaction of a closed store, which frees the space of deleted rows."""

from pathlib import Path
from typing import Final

from store_tools.rocks.reader import held

DATA: Final = frozenset({".sst", ".blob", ".log"})


def compact(folder: Path, now_s: float) -> tuple[int, int]:
    """Rewrite its tables. Return the data's size in bytes before and after. Raises `StoreError`."""
    before_bytes = data_bytes_of(folder)
    with held(folder, now_s) as engine:
        engine.flush()
        for family in engine.families:
            family.compact()
    return before_bytes, data_bytes_of(folder)


def data_bytes_of(folder: Path) -> int:
    """Return the size in bytes of tables, blobs and the log of writes, without RocksDB's LOG."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.suffix in DATA)
