"""Giving back: while the disk is full, deleted rows free their space early.

A deleted row takes space, in the log and in a table, until RocksDB writes and merges tables.
"""

from typing import Final, final

from flowguard.stores.rocks.database.engine import TABLES_MERGED, RocksEngine
from flowguard.stores.rocks.disk import DiskSpace

_TRIGGER: Final = "level0_file_num_compaction_trigger"
_COPIES: Final = "enable_blob_garbage_collection"
USUAL: Final = {_TRIGGER: str(TABLES_MERGED), _COPIES: "true"}
SAVING: Final = {_TRIGGER: "1", _COPIES: "false"}
"""Copies of live blobs take space before they give any: they would fill the reserve."""


@final
class GivingBack:
    """Has RocksDB write and merge early while the disk is full."""

    def __init__(self, engine: RocksEngine, disk: DiskSpace) -> None:
        self._engine = engine
        self._disk = disk

    def step(self) -> None:
        """Begin with what there is to write, as far as there is space for it."""
        disk, engine = self._disk, self._engine
        if disk.is_full != engine.saves_space:
            engine.saves_space = disk.is_full
            for family in engine.families:
                family.change(SAVING if engine.saves_space else USUAL)
        if engine.saves_space:
            # The log of writes is free once every family has written its rows: the last eighth
            # stays for RocksDB itself.
            left_bytes = disk.unused_bytes - disk.reserve_bytes // 8
            for family in engine.families:
                left_bytes -= family.flush(bytes_max=left_bytes)
