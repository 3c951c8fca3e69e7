"""Used and free disk space: a store with a reserve rejects work before RocksDB fails."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, final

from flowguard.errors import NoSpaceError
from flowguard.records import (
    DropInbound,
    DropRetained,
    DropSession,
    DropSubscription,
    PutSession,
    PutWill,
    Release,
    Sent,
    Settle,
    StoreOp,
)

CHECK_COMMITS: Final = 64
CHECK_BYTES: Final = 4 * 1024 * 1024
CHECK_SHARE: Final = 16
"""Free space is read after CHECK_COMMITS, CHECK_BYTES or a sixteenth of the reserve."""
EASING: Final = frozenset(
    {
        *(Sent, Settle, Release, DropInbound, DropSession, DropSubscription, DropRetained),
        *(PutSession, PutWill),
    }
)
"""Operations that free space sooner or later: a client connects and takes its queued messages."""


def free_bytes_of(folder: Path) -> int:
    """Bytes that the file system of `folder` has free for this process."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def used_bytes_of(folder: Path) -> int:
    used_bytes = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                used_bytes += entry.stat().st_size
            except FileNotFoundError:
                pass  # RocksDB deletes files at any time.
    return used_bytes


@final
class DiskSpace:
    """Free bytes of the store's file system, read from time to time."""

    def __init__(
        self,
        folder: Path,
        reserve_bytes: int,
        open_bytes: int,
        free_bytes: Callable[[Path], int],
        buffered_bytes: Callable[[], int],
    ) -> None:
        """`open_bytes` is the maximum size of the data that opening the store writes.

        `buffered_bytes` returns the size of the rows that RocksDB has not written to tables.
        """
        self._folder = folder
        self._open_bytes = open_bytes
        self.reserve_bytes = reserve_bytes
        self._look = free_bytes
        self._buffered_bytes = buffered_bytes
        self._commits_left = 0
        self._bytes_left = 0
        self.unused_bytes = 0
        """Free bytes of the file system."""
        self.free_bytes = 0
        """`unused_bytes` minus the space that rows in memory will need."""
        self.used_bytes = 0
        """Size of the store's files."""
        self.look()

    @property
    def is_full(self) -> bool:
        return self.free_bytes < self.reserve_bytes

    def look(self) -> None:
        self.unused_bytes = self._look(self._folder)
        self.free_bytes = max(0, self.unused_bytes - self._buffered_bytes())
        self._commits_left = CHECK_COMMITS
        self._bytes_left = min(CHECK_BYTES, self.reserve_bytes // CHECK_SHARE) or CHECK_BYTES

    def measure(self) -> None:
        """Measure `used_bytes`. Raises `OSError`, for example without a free descriptor."""
        self.used_bytes = used_bytes_of(self._folder)

    def wrote(self, size_bytes: int) -> None:
        self._commits_left -= 1
        self._bytes_left -= size_bytes

    def admit(self, ops: Sequence[StoreOp]) -> None:
        """Raises `NoSpaceError` if the batch may not be written.

        Half of the reserve is for work that is accepted before the broker notices the full disk.
        Operations that free space may use another quarter.
        """
        if self._commits_left <= 0 or self._bytes_left <= 0 or self.is_full:
            self.look()
        if not self.is_full:
            return
        if self.free_bytes >= self.reserve_bytes // 2:
            return
        eases = all([op.__class__ in EASING for op in ops])
        if eases and self.free_bytes >= self.reserve_bytes // 4:
            return
        raise NoSpaceError(
            f"{self._folder} has {self.free_bytes} bytes left, below the reserve of "
            f"{self.reserve_bytes}; free space, or lower store.disk_reserve_bytes"
        )

    def admit_opening(self) -> None:
        """Raises `NoSpaceError` if the store could not be opened with the space left."""
        if self.unused_bytes < self._open_bytes:
            raise NoSpaceError(
                f"{self._folder} has {self.unused_bytes} bytes left and needs {self._open_bytes} "
                "to go on; free space"
            )
