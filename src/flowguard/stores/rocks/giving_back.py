"""Frees the space of deleted rows early while the disk is full.

A deleted row needs space in the log and in a table, until RocksDB writes and merges tables.
"""

from typing import Final, final

from flowguard.stores.rocks.database.engine import TABLES_MERGED, RocksEngine
from flowguard.stores.rocks.disk import DiskSpace

_TRIGGER: Final = "level0_file_num_compaction_trigger"
_COPIES: Final = "enable_blob_garbage_collection"
USUAL: Final = {_TRIGGER: str(TABLES_MERGED), _COPIES: "true"}
SAVING: Final = {_TRIGGER: "1", _COPIES: "false"}
"""Options while the disk is full. Garbage collection copies live blobs before it frees space, so
it would fill the reserve."""


@final
class GivingBack:
    """Makes RocksDB write and merge tables early while the disk is full."""

    def __init__(self, engine: RocksEngine, disk: DiskSpace) -> None:
        self._engine = engine
        self._disk = disk

    def step(self) -> None:
        """Begin to write the rows in memory, as far as there is space for them."""
        disk, engine = self._disk, self._engine
        if disk.is_full != engine.saves_space:
            engine.saves_space = disk.is_full
            for family in engine.families:
                family.change(SAVING if engine.saves_space else USUAL)
        if engine.saves_space:
            # RocksDB deletes its log when every family has written its rows. It keeps the last
            # eighth of the reserve for itself.
            left_bytes = disk.unused_bytes - disk.reserve_bytes // 8
            for family in engine.families:
                left_bytes -= family.flush(bytes_max=left_bytes)
