"""Checks the files of the log of writes before RocksDB reads them.

A record is a head (u32 checksum, u16 length, both little endian, u8 type) and its content; no
record crosses the end of a block of 32 KiB. RocksDB checks all records, with one exception: it
takes a record type of recycled logs for a left-over, and reads the record again for ever. flowguard
never recycles logs, so such a type is damage.
"""

from pathlib import Path
from struct import Struct
from typing import Final

from flowguard.errors import CorruptionError

LOGS: Final = ("*.log", "MANIFEST-*")
"""Patterns of the files in this format: the changes, and the list of tables."""
_BLOCK_BYTES: Final = 32 * 1024
_HEAD: Final = Struct("<IHB")
_OVERWRITING: Final = frozenset({5, 6, 7, 8, 11})


def endless_at(log: Path) -> int | None:
    """Return the position at which RocksDB would read for ever, or None."""
    with log.open("rb") as file:
        start = 0
        while block := file.read(_BLOCK_BYTES):
            at = 0
            while at + _HEAD.size <= len(block):
                _, size_bytes, kind = _HEAD.unpack_from(block, at)
                if kind in _OVERWRITING:
                    return start + at
                if not kind or at + _HEAD.size + size_bytes > len(block):
                    break  # RocksDB stops, or continues in the next block.
                at += _HEAD.size + size_bytes
            start += len(block)
    return None


def endless_logs(folder: Path) -> dict[Path, int]:
    """Return the files that RocksDB would read for ever, with the position."""
    found: dict[Path, int] = {}
    for pattern in LOGS:
        for log in sorted(folder.glob(pattern)):
            at = endless_at(log)
            if at is not None:
                found[log] = at
    return found


def check_logs(folder: Path) -> None:
    """Raises `CorruptionError` if RocksDB would read a file for ever."""
    for log, at in endless_logs(folder).items():
        raise CorruptionError(f"{log} is damaged at byte {at:,}")
