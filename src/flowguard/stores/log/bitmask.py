"""The bitmask layout (source: the EIP on RocksDB): equal topics are adjacent within an epoch.

    shard (2 bytes), epoch (4), index of the topic (16), offset in the epoch (5)

Epoch and offset are the high and the low bits of the stamp. A filter is a mask over the index. The
search seeks the smallest key that satisfies mask, query and span, reads on while keys do, and seeks
again at the first one that does not. So it skips other rows, wherever the wildcards are.
"""

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Final, final

from mypy_extensions import i64

from flowguard.stores.log.keymapper import (
    DOLLAR,
    INDEX_BYTES,
    INDEX_MAX,
    Constraint,
    constraint_of,
    next_index,
    topic_index,
)
from flowguard.stores.log.layout import LogQuestion, NothingToLearn, Row
from flowguard.stores.log.rows import Found, LogRows, ReadBounds, Sieve, sift

EPOCH_BITS: Final = 36
"""Default number of bits of the offset: an epoch of 2^20 milliseconds, 17.5 minutes."""
OFFSET_BYTES: Final = 5
_EPOCH_AT: Final = 2
_INDEX_AT: Final = 6
_OFFSET_AT: Final = _INDEX_AT + INDEX_BYTES
_HEAD: Final = Struct(">HI")
TOPIC_CACHED_MAX: Final = 200
"""Maximum length in characters of a topic whose index is cached."""
TOPICS_CACHED: Final = 16_384

_cached_index = lru_cache(TOPICS_CACHED)(lambda topic: topic_index(topic).to_bytes(INDEX_BYTES))


def _key(shard: int, epoch: int, index: bytes, offset: int) -> bytes:
    return _HEAD.pack(shard, epoch) + index + offset.to_bytes(OFFSET_BYTES)


@final
class BitmaskLayout(NothingToLearn):
    """A layout for narrow filters and whole streams, with exactly one row per message."""

    def __init__(self, epoch_bits: int = EPOCH_BITS) -> None:
        """`epoch_bits` is the number of offset bits of a stamp; 32 to 40 in a durable store."""
        self._bits = epoch_bits
        self._offset_mask = (1 << epoch_bits) - 1

    def rows_of(self, shard: int, stamp: int, topic: str, value: bytes) -> Sequence[Row]:
        if len(topic) <= TOPIC_CACHED_MAX:
            index = _cached_index(topic)
        else:
            index = topic_index(topic).to_bytes(INDEX_BYTES)
        return ((_key(shard, stamp >> self._bits, index, stamp & self._offset_mask), value),)

    def read(self, rows: LogRows, question: LogQuestion, place: bytes, bounds: ReadBounds) -> Found:
        shard, first, last = question.shard, question.after + 1, question.until
        assert first <= last, "an empty span has no messages"
        constraints = list(dict.fromkeys(map(constraint_of, question.filters)))
        if not constraints:
            return [], b""
        search = _Search(shard, constraints, first, last, self._bits)
        if not place:
            place = search.goal(_key(shard, first >> self._bits, bytes(INDEX_BYTES), 0))
        if not place:
            return [], b""
        end = _key(
            shard, last >> self._bits, INDEX_MAX.to_bytes(INDEX_BYTES), last & self._offset_mask
        )
        return sift(rows, search, place, end + b"\0", bounds)


@final
class _Search(Sieve):
    """The keys of a span of stamps, from `first` to `last`, that satisfy one of the constraints."""

    def __init__(
        self, shard: int, constraints: Sequence[Constraint], first: int, last: int, bits: int
    ) -> None:
        self._shard = shard
        self._constraints = constraints
        self._first, self._last, self._bits = first, last, bits
        self._mask, self._query = constraints[0]
        self._is_one = len(constraints) == 1
        self._is_wide = self._is_one and self._mask == DOLLAR
        """True if any topic matches that has the first bit of the query."""
        self._top = self._query >> (8 * INDEX_BYTES - 8)

    def stamp(self, key: bytes) -> int:
        if self._is_wide:
            if key[_INDEX_AT] & 0x80 != self._top:
                return -1
        else:
            index = int.from_bytes(key[_INDEX_AT:_OFFSET_AT], "big")
            if self._is_one:
                if index & self._mask != self._query:
                    return -1
            elif _next_of(index, self._constraints) != index:
                return -1
        stamp = _stamp_of(key, self._bits)
        return stamp if self._first <= stamp <= self._last else -1

    def goal(self, key: bytes) -> bytes:
        """Return the smallest key from the given one on that satisfies constraints and span."""
        bits, first, last = self._bits, self._first, self._last
        offset_mask = (1 << bits) - 1
        first_epoch, last_epoch = first >> bits, last >> bits
        epoch = int.from_bytes(key[_EPOCH_AT:_INDEX_AT], "big")
        index = int.from_bytes(key[_INDEX_AT:_OFFSET_AT], "big")
        offset = int.from_bytes(key[_OFFSET_AT:], "big")
        if epoch < first_epoch:
            epoch, index, offset = first_epoch, 0, 0
        while epoch <= last_epoch:
            found = _next_of(index, self._constraints) if index <= INDEX_MAX else -1
            if found < 0:
                epoch, index, offset = epoch + 1, 0, 0
                continue
            if found > index:
                index, offset = found, 0
            if epoch == first_epoch and offset < first & offset_mask:
                offset = first & offset_mask
            if epoch == last_epoch and offset > last & offset_mask:
                index, offset = index + 1, 0
                continue
            return _key(self._shard, epoch, index.to_bytes(INDEX_BYTES), offset)
        return b""


def _stamp_of(key: bytes, bits: int) -> int:
    epoch: i64 = key[2] << 24 | key[3] << 16 | key[4] << 8 | key[5]
    offset: i64 = key[22] << 32 | key[23] << 24 | key[24] << 16 | key[25] << 8 | key[26]
    return epoch << bits | offset


def _next_of(index: int, constraints: Sequence[Constraint]) -> int:
    """Return the smallest index from the given one on that satisfies a constraint, or -1."""
    least = -1
    for mask, query in constraints:
        found = next_index(index, mask, query)
        if found == index:
            return found
        if found >= 0 and (least < 0 or found < least):
            least = found
    return least
