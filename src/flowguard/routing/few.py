"""A mapping that is nothing when empty, a tuple while it holds one pair, a dict from two on.

Most filters have one subscriber and most levels of a topic tree one child: a pair costs 56 bytes
where the smallest dict costs 232. The functions return what the owner has to store in place of
what it passed in; a dict is changed in place.

Order is insertion order; a value replaced keeps its place.
"""

from typing import Final, TypeAlias, TypeVar

K = TypeVar("K")
V = TypeVar("V")

Many: TypeAlias = tuple[K, V] | dict[K, V]
"""At least one pair."""

Few: TypeAlias = tuple[K, V] | dict[K, V] | None

SPARSE_BYTES_PER_PAIR: Final = 256
"""A dict twice as large as any that CPython makes for its number of pairs is worth a copy."""


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
    """O(1) amortised; `key` must be there."""
    assert few_has(few, key)
    if not isinstance(few, dict):
        return None
    del few[key]
    count = len(few)
    if count == 1:
        return next(iter(few.items()))
    # A dict never shrinks by itself, and reading it costs its largest size ever. Looking only at
    # powers of two, and copying only what is sparse, keeps removal O(1) amortised.
    if count & (count - 1) == 0 and few.__sizeof__() > SPARSE_BYTES_PER_PAIR * count:
        return dict(few)
    return few


def few_count(few: Few[K, V]) -> int:
    return len(few) if isinstance(few, dict) else int(few is not None)


def few_keys(few: Few[K, V]) -> list[K]:
    """A copy, as `few_values`."""
    if isinstance(few, dict):
        return list(few)
    return [] if few is None else [few[0]]


def few_values(few: Few[K, V]) -> list[V]:
    """A copy, safe to walk while the mapping changes."""
    if isinstance(few, dict):
        return list(few.values())
    return [] if few is None else [few[1]]


def few_extend(pairs: list[tuple[K, V]], few: Many[K, V]) -> None:
    """Append every pair; a lone one is shared, not copied."""
    if isinstance(few, dict):
        pairs.extend(few.items())
    else:
        pairs.append(few)
