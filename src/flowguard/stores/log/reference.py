"""The reference layout: keys by time. Every message of the span is read and its topic compared.

shard (2 bytes), stamp (8)
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, final

from flowguard.stores.log.layout import LogQuestion, NothingToLearn, Row
from flowguard.stores.log.rows import Found, LogRows, ReadBounds, Sieve, sift

_KEY: Final = Struct(">HQ")


@final
class ReferenceLayout(NothingToLearn):
    """A simple layout, slow for narrow filters, with which other layouts are compared."""

    def rows_of(self, shard: int, stamp: int, topic: str, value: bytes) -> Sequence[Row]:
        return ((_KEY.pack(shard, stamp), value),)

    def read(self, rows: LogRows, question: LogQuestion, place: bytes, bounds: ReadBounds) -> Found:
        start = place or _KEY.pack(question.shard, question.after + 1)
        end = _KEY.pack(question.shard, question.until + 1)
        return sift(rows, _Everything(), start, end, bounds)


@final
class _Everything(Sieve):
    def stamp(self, key: bytes) -> int:
        return int.from_bytes(key[2:10], "big")

    def goal(self, key: bytes) -> bytes:
        raise AssertionError("every row is wanted")
