"""Sorted rows of bytes: what a layout needs of its engine, and the same in memory."""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, final

from mypy_extensions import mypyc_attr

Found = tuple[list[tuple[int, bytes]], bytes]
"""Stamps and values of messages, and the key from which to go on; empty: there is nothing more."""


class Cursor(Protocol):
    """A position in rows that ascend by key."""

    def seek(self, key: bytes, /) -> None:
        """Go to the first row with that key or a greater one."""

    def next(self) -> None: ...

    def key(self) -> bytes | None:
        """None: it is behind the last row below its bound."""

    def value(self) -> bytes: ...

    def status(self) -> None:
        """Raise what has ended it before its time."""


Search = Callable[[list[Cursor]], Found]


class LogRows(Protocol):
    """The rows of one generation."""

    def look(self, ends: Sequence[bytes], search: Search) -> Found:
        """Return what `search` finds with a cursor below each of `ends`; they end with it."""


@dataclass(frozen=True, slots=True)
class ReadBounds:
    count_max: int
    bytes_max: int
    """No row further when the values add up to it."""
    visits_max: int
    """Rows that are looked at, whether or not they are taken."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Sieve(ABC):
    """Tells of the rows that a cursor passes which are wanted, and where the next ones may be."""

    @abstractmethod
    def stamp(self, key: bytes) -> int:
        """The stamp of a row that is wanted; -1: it is not."""

    @abstractmethod
    def goal(self, key: bytes) -> bytes:
        """The key to seek after a row that is not wanted, a greater one; empty: there is none."""


def sift(rows: LogRows, sieve: Sieve, start: bytes, end: bytes, bounds: ReadBounds) -> Found:
    """Rows with `start` <= key < `end` that the sieve wants, ascending."""

    def search(cursors: list[Cursor]) -> Found:
        return _sift(cursors, sieve, start, bounds)

    return rows.look([end], search)


def _sift(cursors: list[Cursor], sieve: Sieve, start: bytes, bounds: ReadBounds) -> Found:
    found: list[tuple[int, bytes]] = []
    count_left, bytes_left = bounds.count_max, bounds.bytes_max
    visits_left = bounds.visits_max
    cursor = cursors[0]
    try:
        cursor.seek(start)
        while (key := cursor.key()) is not None:
            if visits_left <= 0:
                return found, key
            visits_left -= 1
            stamp = sieve.stamp(key)
            if stamp >= 0:
                value = cursor.value()
                found.append((stamp, value))
                count_left -= 1
                bytes_left -= len(value)
                if count_left <= 0 or bytes_left <= 0:
                    return found, key + b"\0"
                cursor.next()
            else:
                goal = sieve.goal(key)
                if not goal:
                    break
                cursor.seek(goal)
    finally:
        del cursor  # An error that somebody keeps would keep it alive.
    return found, b""


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

    def look(self, ends: Sequence[bytes], search: Search) -> Found:
        return search([_SortedCursor(self._keys, self._values, end) for end in ends])


@final
class _SortedCursor:
    __slots__ = ("_at", "_end", "_keys", "_values")

    def __init__(self, keys: list[bytes], values: dict[bytes, bytes], end: bytes) -> None:
        self._keys, self._values, self._end = keys, values, end
        self._at = len(keys)

    def seek(self, key: bytes, /) -> None:
        self._at = bisect_left(self._keys, key)

    def next(self) -> None:
        self._at += 1

    def key(self) -> bytes | None:
        keys, at = self._keys, self._at
        return keys[at] if at < len(keys) and keys[at] < self._end else None

    def value(self) -> bytes:
        return self._values[self._keys[self._at]]

    def status(self) -> None:
        pass
