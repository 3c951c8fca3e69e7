"""The reference layout: keys by time. Every message of the span is read, and compared by its topic.

shard (2 bytes), stamp (8)
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, final

from flowguard.stores.log.layout import Way

_KEY: Final = Struct(">HQ")


@final
class ReferenceLayout:
    """Simple, and slow where a filter is narrow: what other layouts are compared with."""

    name: str = "reference"

    def key(self, shard: int, stamp: int, topic: str) -> bytes:
        return _KEY.pack(shard, stamp)

    def stamp_of(self, key: bytes) -> int:
        return int.from_bytes(key[2:10], "big")

    def way(self, shard: int, filters: Sequence[str], after: int, until: int, place: bytes) -> Way:
        start = place or _KEY.pack(shard, after + 1)
        return Way(start, _KEY.pack(shard, until + 1), _take)


def _take(key: bytes) -> bytes:
    return key
