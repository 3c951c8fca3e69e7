"""Topics and filters as 128 bits, eight levels of 16 (source: the EIP on RocksDB, "Key format").

A topic becomes an index: a hash of each level. A filter becomes a mask, with ones for levels that
are no wildcards, and a query, with the hashes of these levels. A topic can match only if
`index & mask == query`. Hashes collide, so a topic that passes is compared as text as well.

Only topics that begin with `$` have the highest bit set. A filter that begins with a wildcard
requires it to be clear, and never matches them [MQTT-4.7.2-1].
"""

from collections.abc import Callable, Sequence
from typing import Final
from zlib import crc32

LEVELS: Final = 8
"""Number of levels in the index; the last one has the rest of the topic."""
LEVEL_BITS: Final = 16
INDEX_BITS: Final = LEVELS * LEVEL_BITS
INDEX_BYTES: Final = INDEX_BITS // 8
INDEX_MAX: Final = (1 << INDEX_BITS) - 1
DOLLAR: Final = 1 << (INDEX_BITS - 1)
_LEVEL_MASK: Final = (1 << LEVEL_BITS) - 1
_MISSING: Final = "/"
"""Stands for a missing level; no level can have this name."""

Constraint = tuple[int, int]
"""Mask and query: the bits of the index that count, and their required values."""


def topic_index(topic: str) -> int:
    levels = topic.split("/", LEVELS - 1)
    index = 0
    for level in levels:
        index = index << LEVEL_BITS | _hash(level)
    for _ in range(LEVELS - len(levels)):
        index = index << LEVEL_BITS | _hash(_MISSING)
    return index | DOLLAR if topic.startswith("$") else index & ~DOLLAR


def constraint_of(filter: str) -> Constraint:
    """Return the bits of the index that a valid filter requires."""
    levels = filter.split("/")
    rest = levels[-1] == "#"
    if rest:
        levels.pop()
    mask = query = 0
    for number in range(LEVELS):
        mask <<= LEVEL_BITS
        query <<= LEVEL_BITS
        if number >= len(levels):
            if not rest:
                mask |= _LEVEL_MASK
                query |= _hash(_MISSING)
        elif number < LEVELS - 1:
            if levels[number] != "+":
                mask |= _LEVEL_MASK
                query |= _hash(levels[number])
        elif not rest and "+" not in levels[number:]:
            mask |= _LEVEL_MASK
            query |= _hash("/".join(levels[number:]))
    mask |= DOLLAR
    query = query | DOLLAR if filter.startswith("$") else query & ~DOLLAR
    return mask, query


def _hash(level: str) -> int:
    return crc32(level.encode()) & _LEVEL_MASK


def next_index(index: int, mask: int, query: int, index_max: int = INDEX_MAX) -> int:
    """Return the smallest number from `index` to `index_max` with `number & mask == query`, or -1.

    O(1). The highest wrong bit of `index` under the mask decides. If it must be set, set it. If it
    must be cleared, set the lowest clear bit above it that is not in the mask. All bits below the
    changed one are then as low as the query allows.
    """
    wrong = (index & mask) ^ query
    if not wrong:
        return index
    top = 1 << (wrong.bit_length() - 1)
    if query & top:
        return index & ~(2 * top - 1) | query & (2 * top - 1)
    free = ~index & ~mask & index_max & ~(2 * top - 1)
    if not free:
        return -1
    step = free & -free
    return index & ~(step - 1) | step | query & (step - 1)


def matcher_of(filters: Sequence[str]) -> Callable[[str], bool]:
    """Return a function that returns True if a topic matches one of the filters, as text."""
    patterns = [_Pattern(filter) for filter in filters]
    if len(patterns) == 1:
        return patterns[0].matches

    def matches(topic: str) -> bool:
        return any(pattern.matches(topic) for pattern in patterns)

    return matches


class _Pattern:
    """A parsed filter, to be compared with many topics."""

    __slots__ = ("_filter", "_levels", "_rest", "_wild")

    def __init__(self, filter: str) -> None:
        levels = filter.split("/")
        self._filter = filter
        self._rest = levels[-1] == "#"
        if self._rest:
            levels.pop()
        self._levels = levels
        self._wild = filter[0] in "+#"

    def matches(self, topic: str) -> bool:
        """Return True if the topic matches: [MQTT-4.7.1-2], [MQTT-4.7.2-1]."""
        if self._filter == topic:
            return True
        if self._wild and topic.startswith("$"):
            return False
        wanted = self._levels
        if not wanted and self._rest:
            return True
        levels = topic.split("/")
        if len(levels) < len(wanted) if self._rest else len(levels) != len(wanted):
            return False
        return all(want in ("+", level) for want, level in zip(wanted, levels, strict=False))
