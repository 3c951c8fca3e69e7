"""Sorted rows of bytes: what a layout needs of its engine, and the same in memory."""

from bisect import bisect_left
from collections.abc import Callable
from typing import Protocol, final

Jump = Callable[[bytes], bytes]
"""Called with a key that is there: the same key takes the row, a greater one is looked for next
(the first row from there on), an empty one ends the search."""

Found = tuple[list[tuple[bytes, bytes]], bytes]
"""Rows, and the key from which to go on; empty: there is nothing more."""


class LogRows(Protocol):
    """The rows of one generation, ascending by key."""

    def leap(
        self, start: bytes, end: bytes, jump: Jump, limit: int, bytes_max: int, visits_max: int
    ) -> Found:
        """Rows with `start` <= key < `end` that `jump` takes.

        At most `limit`, none further when their values add up to `bytes_max`, and of at most
        `visits_max` rows looked at.
        """


@final
class SortedRows:
    """Rows in memory; writing is O(rows)."""

    __slots__ = ("_keys", "_values")

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._values: dict[bytes, bytes] = {}

    def put(self, key: bytes, value: bytes) -> None:
        if key not in self._values:
            self._keys.insert(bisect_left(self._keys, key), key)
        self._values[key] = value

    def leap(
        self, start: bytes, end: bytes, jump: Jump, limit: int, bytes_max: int, visits_max: int
    ) -> Found:
        keys, found, size_bytes = self._keys, list[tuple[bytes, bytes]](), 0
        at = bisect_left(keys, start)
        for _ in range(visits_max):
            if at == len(keys) or keys[at] >= end:
                return found, b""
            key = keys[at]
            goal = jump(key)
            if goal == key:
                value = self._values[key]
                found.append((key, value))
                size_bytes += len(value)
                at += 1
                if len(found) == limit or size_bytes >= bytes_max:
                    return found, key + b"\0"
            elif goal:
                at = bisect_left(keys, goal, at + 1)
            else:
                return found, b""
        return found, keys[at] if at < len(keys) else b""
