"""Giving back: while the disk is full, deleted rows free their space early.

A deleted row takes space, in the log and in a table, until RocksDB writes and merges tables.
"""

from typing import final

from flowguard.stores.rocks.disk import DiskSpace
from flowguard.stores.rocks.engine import TABLES_MERGED, RocksEngine


@final
class GivingBack:
    """Has RocksDB write and merge early while the disk is full."""

    def __init__(self, engine: RocksEngine, disk: DiskSpace) -> None:
        self._engine = engine
        self._disk = disk
        self._is_on = False

    def opened(self) -> None:
        """RocksDB was opened again, and merges as usual."""
        self._is_on = False

    def step(self) -> None:
        """Begin with what there is to write, as far as there is space for it."""
        disk, families = self._disk, self._engine.families
        if disk.is_full != self._is_on:
            self._is_on = disk.is_full
            for family in families:
                family.merge_young_tables(1 if self._is_on else TABLES_MERGED)
        if self._is_on:
            left_bytes = disk.free_bytes - disk.reserve_bytes // 4
            for family in families:
                left_bytes -= family.flush(bytes_max=left_bytes)
