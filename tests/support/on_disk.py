"""Stores in memory whose pages need not be in memory, as far as a session can see."""

from typing import Any

from flowguard.errors import CorruptionError
from flowguard.records import QueueEntry
from flowguard.stores import MemoryStore
from flowguard.stores.base import FETCH_BYTES, POS_MAX


class StoreOnDisk(MemoryStore):
    """A store that is on disk as far as a session can see: its pages need not be in memory."""

    on_disk = True


class CountingStore(StoreOnDisk):
    """Counts the pages that were read."""

    pages = 0

    def fetch(self, *page: Any, **limits: Any) -> list[QueueEntry]:
        self.pages += 1
        return super().fetch(*page, **limits)


class DamagedStore(StoreOnDisk):
    """Pages of `damaged` that reach beyond a position cannot be read."""

    damaged: str | None = None
    after_pos = 0

    def fetch(
        self,
        client_id: str,
        after_pos: int,
        limit: int,
        *,
        until_pos: int = POS_MAX,
        bytes_max: int = FETCH_BYTES,
    ) -> list[QueueEntry]:
        found = super().fetch(client_id, after_pos, limit, until_pos=until_pos, bytes_max=bytes_max)
        if client_id == self.damaged and found and found[-1].pos > self.after_pos:
            raise CorruptionError("a block of it has changed")
        return found
