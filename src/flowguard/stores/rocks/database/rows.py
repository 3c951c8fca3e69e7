"""Rows as the engine writes and reads them; no part of it needs the driver."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from flowguard.stores.log.rows import Cursor

Visit = Callable[[int, bytes, bytes], None]
"""Called with the number of a range, and with key and value of one of its rows."""


class EngineBatch(Protocol):
    """Atomic writes; `family` is a `Family.handle`."""

    def put(self, key: bytes, value: bytes, family: Any, /) -> None: ...

    def delete(self, key: bytes, family: Any, /) -> None: ...

    def delete_range(self, begin: bytes, end: bytes, family: Any, /) -> None: ...

    def size_in_bytes(self) -> int: ...

    def is_empty(self) -> bool: ...


def visit(ranges: Sequence[tuple[bytes, bytes]], take: Visit, cursors: Sequence[Cursor]) -> None:
    """Call `take` for all rows of the ranges, which the only one of `cursors` can read."""
    (cursor,) = cursors
    for number, (start, end) in enumerate(ranges):
        cursor.seek(start)
        while (key := cursor.key()) is not None and key < end:
            take(number, key, cursor.value())
            cursor.next()
        cursor.status()
