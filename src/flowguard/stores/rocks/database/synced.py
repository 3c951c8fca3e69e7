"""The part of the log of writes that is known to be on the disk: a number beside the database.

RocksDB reads its log until the first record that is damaged, and takes the rest for the torn end
of a write under way: after a crash that is right, and after damage it is a silent loss. The two
are told apart by the number of the last write that was synced. It is written after the sync, and
not synced itself: the number that a crash leaves is true, if perhaps older.

    synced    u64 number of the write, u32 CRC-32 of it
"""

import os
from contextlib import suppress
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import Final, final
from zlib import crc32

SYNCED: Final = "synced"
_NUMBER: Final = Struct(">Q")
_RECORD: Final = Struct(">QI")


def read_synced(folder: Path) -> int:
    """The number of the last write that is known to be on the disk; 0: none is."""
    try:
        number, check = _RECORD.unpack((folder / SYNCED).read_bytes())
    except (FileNotFoundError, StructError):
        return 0
    found: int = number if check == crc32(_NUMBER.pack(number)) else 0
    return found


@final
class Synced:
    """The open file; it also tells whether the folder is still there."""

    def __init__(self, folder: Path) -> None:
        """Open it. Raises `OSError`."""
        self._number = read_synced(folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(folder / SYNCED, flags, 0o644)

    def note(self, number: int) -> None:
        """Note that all writes up to `number` are on the disk."""
        self._number = number
        # Where it cannot be said, less is known, and nothing is wrong.
        with suppress(OSError):
            os.pwrite(self._fd, _RECORD.pack(number, crc32(_NUMBER.pack(number))), 0)

    def wait_for_disk(self) -> None:
        """Write the number again: that waits while the file system is frozen, without the GIL."""
        self.note(self._number)

    @property
    def is_removed(self) -> bool:
        """Whether somebody has deleted the folder, or the file in it."""
        return os.fstat(self._fd).st_nlink == 0

    def close(self) -> None:
        os.close(self._fd)
