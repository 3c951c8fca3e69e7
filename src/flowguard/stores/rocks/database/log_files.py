"""The files of the log of writes, checked before RocksDB reads them.

A record is a head (u32 check, u16 length, both little endian, u8 type) and its content; none
crosses the end of a block of 32 KiB. RocksDB checks all of it, with one exception: it takes a
record whose type belongs to logs that are written over older ones for a left-over, and reads it
again, for ever. No log of ours is written over another, so such a type is damage.
"""

from pathlib import Path
from struct import Struct
from typing import Final

from flowguard.errors import CorruptionError

LOGS: Final = ("*.log", "MANIFEST-*")
"""Files of this form: the changes, and the list of tables."""
_BLOCK_BYTES: Final = 32 * 1024
_HEAD: Final = Struct("<IHB")
_OVERWRITING: Final = frozenset({5, 6, 7, 8, 11})


def endless_at(log: Path) -> int | None:
    """The position at which RocksDB would never stop reading; None: nowhere."""
    with log.open("rb") as file:
        start = 0
        while block := file.read(_BLOCK_BYTES):
            at = 0
            while at + _HEAD.size <= len(block):
                _, size_bytes, kind = _HEAD.unpack_from(block, at)
                if kind in _OVERWRITING:
                    return start + at
                if not kind or at + _HEAD.size + size_bytes > len(block):
                    break  # RocksDB goes no further, or only in the next block.
                at += _HEAD.size + size_bytes
            start += len(block)
    return None


def endless_logs(folder: Path) -> dict[Path, int]:
    """Files in which RocksDB would never stop reading, with the position."""
    found: dict[Path, int] = {}
    for pattern in LOGS:
        for log in sorted(folder.glob(pattern)):
            at = endless_at(log)
            if at is not None:
                found[log] = at
    return found


def check_logs(folder: Path) -> None:
    """Raise `CorruptionError` where RocksDB would never stop reading."""
    for log, at in endless_logs(folder).items():
        raise CorruptionError(f"{log} is damaged at byte {at:,}")
