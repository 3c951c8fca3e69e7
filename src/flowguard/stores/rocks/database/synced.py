"""The part of the log of writes that is known to be on disk: a number beside the database.

RocksDB reads its log until the first damaged record, and takes the rest for an incomplete write.
After a crash that is right, but after damage it is a silent loss. The number of the last synced
write shows the difference. It is written after the sync, and not synced itself: after a crash it is
still valid, but may be old.

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
    """Return the number of the last write that is known to be on disk, or 0."""
    try:
        number, check = _RECORD.unpack((folder / SYNCED).read_bytes())
    except (FileNotFoundError, StructError):
        return 0
    found: int = number if check == crc32(_NUMBER.pack(number)) else 0
    return found


@final
class Synced:
    """The open file of the number; also detects that the folder was removed."""

    def __init__(self, folder: Path) -> None:
        """Open it. Raises `OSError`."""
        self._number = read_synced(folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(folder / SYNCED, flags, 0o644)

    def note(self, number: int) -> None:
        """Note that all writes up to `number` are on disk."""
        self._number = number
        # After an error the file has an older number, which is still valid.
        with suppress(OSError):
            os.pwrite(self._fd, _RECORD.pack(number, crc32(_NUMBER.pack(number))), 0)

    def wait_for_disk(self) -> None:
        """Write the number again, which waits without the GIL while the file system is frozen."""
        self.note(self._number)

    @property
    def is_removed(self) -> bool:
        """True if the folder or the file in it was deleted."""
        return os.fstat(self._fd).st_nlink == 0

    def close(self) -> None:
        os.close(self._fd)
