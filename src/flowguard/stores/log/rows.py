"""The interface of sorted rows of bytes that layouts need, and an implementation in memory."""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, final

from mypy_extensions import mypyc_attr

Found = tuple[list[tuple[int, bytes]], bytes]
"""Stamps and values of messages, and the key at which to continue, empty at the end."""


class Cursor(Protocol):
    """A position in rows that ascend by key."""

    def seek(self, key: bytes, /) -> None:
        """Go to the first row with that key or a greater one."""

    def next(self) -> None: ...

    def key(self) -> bytes | None:
        """Return the key of the row, or None after the last row below its bound."""

    def value(self) -> bytes: ...

    def status(self) -> None:
        """Raise the error that has ended the cursor early, if any."""


Search = Callable[[list[Cursor]], Found]


class LogRows(Protocol):
    """The rows of one generation."""

    def look(self, ends: Sequence[bytes], search: Search) -> Found:
        """Call `search` with a cursor below each of `ends`, and return its result. The cursors are
        invalid afterwards."""


@dataclass(frozen=True, slots=True)
class ReadBounds:
    count_max: int
    bytes_max: int
    """Size of the values at which a read stops."""
    visits_max: int
    """Maximum number of rows that are examined, taken or not."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Sieve(ABC):
    """Selects rows of a cursor, and the keys at which the next ones may be."""

    @abstractmethod
    def stamp(self, key: bytes) -> int:
        """Return the stamp of a wanted row, -1 for any other."""

    @abstractmethod
    def goal(self, key: bytes) -> bytes:
        """Return the greater key to seek after an unwanted row, empty if there is none."""


def sift(rows: LogRows, sieve: Sieve, start: bytes, end: bytes, bounds: ReadBounds) -> Found:
    """Return rows with `start` <= key < `end` that the sieve wants, ascending."""

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
        del cursor  # If a caller keeps an error, it would keep the cursor alive.
    return found, b""


@final
class SortedRows:
    """Rows in memory; a write is O(rows)."""

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
