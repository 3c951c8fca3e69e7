"""A mapping that is None if empty, a tuple for one pair, and a dict for two or more.

Most filters have one subscriber, and most levels of a topic tree have one child. A pair costs 56
bytes, the smallest dict 232. The functions return the value that the owner must store instead of
the argument; a dict is changed in place.

Order is insertion order; a replaced value keeps its place.
"""

from typing import Final, TypeAlias, TypeVar

K = TypeVar("K")
V = TypeVar("V")

Many: TypeAlias = tuple[K, V] | dict[K, V]
"""At least one pair."""

Few: TypeAlias = tuple[K, V] | dict[K, V] | None

SPARSE_BYTES_PER_PAIR: Final = 256
"""Size from which on a dict is copied: twice the largest of CPython for that number of pairs."""


def few_has(few: Few[K, V], key: K) -> bool:
    if isinstance(few, dict):
        return key in few
    return few is not None and few[0] == key


def few_get(few: Few[K, V], key: K) -> V | None:
    if isinstance(few, dict):
        return few.get(key)
    if few is not None and few[0] == key:
        return few[1]
    return None


def few_put(few: Few[K, V], key: K, value: V) -> Many[K, V]:
    """O(1)."""
    if isinstance(few, dict):
        few[key] = value
        return few
    if few is None or few[0] == key:
        return (key, value)
    return {few[0]: few[1], key: value}


def few_without(few: Few[K, V], key: K) -> Few[K, V]:
    """Remove a pair, which must exist. O(1) amortised."""
    assert few_has(few, key)
    if not isinstance(few, dict):
        return None
    del few[key]
    count = len(few)
    if count == 1:
        return next(iter(few.items()))
    # A dict never shrinks by itself, and reading it costs its largest size ever. Removal stays
    # O(1) amortised, as only sparse dicts are copied, and only at powers of two.
    if count & (count - 1) == 0 and few.__sizeof__() > SPARSE_BYTES_PER_PAIR * count:
        return dict(few)
    return few


def few_count(few: Few[K, V]) -> int:
    return len(few) if isinstance(few, dict) else int(few is not None)


def few_keys(few: Few[K, V]) -> list[K]:
    """Return a copy, as `few_values`."""
    if isinstance(few, dict):
        return list(few)
    return [] if few is None else [few[0]]


def few_values(few: Few[K, V]) -> list[V]:
    """Return a copy, which is safe to walk while the mapping changes."""
    if isinstance(few, dict):
        return list(few.values())
    return [] if few is None else [few[1]]


def few_extend(pairs: list[tuple[K, V]], few: Many[K, V]) -> None:
    """Append every pair; a lone one is shared, not copied."""
    if isinstance(few, dict):
        pairs.extend(few.items())
    else:
        pairs.append(few)
