"""The bitmask layout (source: the EIP on RocksDB): topics lie together within an epoch of time.

    shard (2 bytes), epoch (4), index of the topic (16), offset in the epoch (5)

Epoch and offset are the high and the low bits of the stamp. A filter is a mask over the index; the
search seeks the smallest key that satisfies mask, query and span, reads while keys do, and seeks
again at the first that does not. So it passes over what does not match, wherever the wildcards are.
"""

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Final, final

from flowguard.stores.log.keymapper import (
    INDEX_BYTES,
    INDEX_MAX,
    Constraint,
    constraint_of,
    next_index,
    topic_index,
)
from flowguard.stores.log.layout import Way
from flowguard.stores.log.rows import Jump

EPOCH_BITS: Final = 36
"""Bits of the offset by default: an epoch of 2^20 milliseconds, 17.5 minutes."""
OFFSET_BYTES: Final = 5
_EPOCH_AT: Final = 2
_INDEX_AT: Final = 6
_OFFSET_AT: Final = _INDEX_AT + INDEX_BYTES
_HEAD: Final = Struct(">HI")
TOPIC_CACHED_MAX: Final = 200
"""Characters of a topic that is worth keeping with its index."""
TOPICS_CACHED: Final = 16_384

_cached_index = lru_cache(TOPICS_CACHED)(lambda topic: topic_index(topic).to_bytes(INDEX_BYTES))


def _key(shard: int, epoch: int, index: bytes, offset: int) -> bytes:
    return _HEAD.pack(shard, epoch) + index + offset.to_bytes(OFFSET_BYTES)


@final
class BitmaskLayout:
    """Narrow filters and whole streams alike; one row a message, nothing to learn."""

    name: str = "bitmask"

    def __init__(self, epoch_bits: int = EPOCH_BITS) -> None:
        """`epoch_bits`: bits of the stamp within an epoch; 32 to 40 in a store that is to last."""
        self._bits = epoch_bits
        self._offset_mask = (1 << epoch_bits) - 1

    def key(self, shard: int, stamp: int, topic: str) -> bytes:
        if len(topic) <= TOPIC_CACHED_MAX:
            index = _cached_index(topic)
        else:
            index = topic_index(topic).to_bytes(INDEX_BYTES)
        return _key(shard, stamp >> self._bits, index, stamp & self._offset_mask)

    def stamp_of(self, key: bytes) -> int:
        epoch = int.from_bytes(key[_EPOCH_AT:_INDEX_AT])
        return epoch << self._bits | int.from_bytes(key[_OFFSET_AT:])

    def way(self, shard: int, filters: Sequence[str], after: int, until: int, place: bytes) -> Way:
        assert after < until, "an empty span has no way through it"
        constraints = list(dict.fromkeys(map(constraint_of, filters)))
        jump = self._jump(shard, constraints, after + 1, until)
        end = _key(shard, until >> self._bits, INDEX_MAX.to_bytes(INDEX_BYTES), self._offset_mask)
        if not place:
            nothing = bytes(INDEX_BYTES)
            place = jump(_key(shard, (after + 1) >> self._bits, nothing, 0)) or end + b"\0"
        return Way(place, end + b"\0", jump)

    def _jump(self, shard: int, constraints: Sequence[Constraint], first: int, last: int) -> Jump:
        """The search's next step: the smallest key from the given one on that satisfies all."""
        bits = self._bits
        first_epoch, first_offset = first >> bits, first & self._offset_mask
        last_epoch, last_offset = last >> bits, last & self._offset_mask
        mask, query = constraints[0]
        is_one = len(constraints) == 1
        from_bytes = int.from_bytes

        def jump(key: bytes) -> bytes:
            epoch = from_bytes(key[_EPOCH_AT:_INDEX_AT], "big")
            index = from_bytes(key[_INDEX_AT:_OFFSET_AT], "big")
            offset = from_bytes(key[_OFFSET_AT:], "big")
            if is_one and index & mask == query and first <= epoch << bits | offset <= last:
                return key
            if epoch < first_epoch:
                epoch, index, offset = first_epoch, 0, 0
            while epoch <= last_epoch:
                found = _next_of(index, constraints) if index <= INDEX_MAX else -1
                if found < 0:
                    epoch, index, offset = epoch + 1, 0, 0
                    continue
                if found > index:
                    index, offset = found, 0
                if epoch == first_epoch and offset < first_offset:
                    offset = first_offset
                if epoch == last_epoch and offset > last_offset:
                    index, offset = index + 1, 0
                    continue
                return _key(shard, epoch, index.to_bytes(INDEX_BYTES), offset)
            return b""

        return jump


def _next_of(index: int, constraints: Sequence[Constraint]) -> int:
    """The smallest index from the given one on that satisfies one of the constraints; -1: none."""
    least = -1
    for mask, query in constraints:
        found = next_index(index, mask, query)
        if found == index:
            return found
        if found >= 0 and (least < 0 or found < least):
            least = found
    return least
