"""Reads the readable rows of a damaged family, and reports the others to a callback.

It is for tools that inspect or salvage a store, never for a broker, since missing rows are an error
there.

No key in a damaged block can be looked up. So the first readable key after it is found by trying
in doubling steps, then by bisection. The few rows between two damaged blocks may be skipped, too.
"""

from collections.abc import Callable, Sequence
from typing import Final, final

from flowguard.errors import CorruptionError
from flowguard.stores.rocks.database.engine import SCAN_BYTES, SCAN_ROWS, Family
from flowguard.stores.rocks.database.rows import Visit

PLACES: Final = 64
"""Number of bytes after the start key that the search for a readable key can vary."""
Tell = Callable[[str], None]
"""A callback that gets each unreadable place once."""


@final
class TolerantFamily(Family):
    """A family that skips unreadable rows."""

    __slots__ = ("_tell", "_told")

    def __init__(self, name: str, tell: Tell) -> None:
        super().__init__(name)
        self._tell = tell
        self._told: set[bytes] = set()

    def _say(self, key: bytes, error: CorruptionError, until: bytes | None = None) -> None:
        if key in self._told:
            return
        self._told.add(key)
        place = f"at {key!r}" if until is None else f"from {key!r} to before {until!r}"
        self._tell(f"{place}: {error}")

    def get(self, key: bytes) -> bytes | None:
        try:
            return super().get(key)
        except CorruptionError as error:
            self._say(key, error)
        return None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        try:
            return super().get_many(keys)
        except CorruptionError:
            return [self.get(key) for key in keys]

    def visit(self, ranges: Sequence[tuple[bytes, bytes]], take: Visit) -> None:
        for number, (start, end) in enumerate(ranges):
            for key, value in self.rows(start, end):
                take(number, key, value)

    def scan(
        self, start: bytes, end: bytes, limit: int = SCAN_ROWS, bytes_max: int = SCAN_BYTES
    ) -> list[tuple[bytes, bytes]]:
        try:
            return super().scan(start, end, limit, bytes_max)
        except CorruptionError:
            return self._scan_around(start, end, limit, bytes_max)

    def _scan_around(
        self, start: bytes, end: bytes, limit: int, bytes_max: int
    ) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        size_bytes = 0
        while start < end and len(found) < limit and size_bytes < bytes_max:
            try:
                rows = super().scan(start, end, 1)
            except CorruptionError as error:
                after = self._first_readable(start, end)
                self._say(start, error, after)
                start = after
                continue
            if not rows:
                break
            found += rows
            size_bytes += len(rows[0][1])
            start = rows[0][0] + b"\0"
        return found

    def _first_readable(self, start: bytes, end: bytes) -> bytes:
        """Return the key from which on rows can be read again, `end` if there is none before it."""
        width = max(len(start), len(end)) + PLACES
        failing, last = _number(start, width), _number(end, width)
        step = 1
        while failing + step < last and not self._is_readable(failing + step, width, end):
            step *= 2
        whole = min(failing + step, last)
        failing += step // 2
        while whole - failing > 1:
            middle = (failing + whole) // 2
            if self._is_readable(middle, width, end):
                whole = middle
            else:
                failing = middle
        return end if whole == last else whole.to_bytes(width, "big")

    def _is_readable(self, number: int, width: int, end: bytes) -> bool:
        try:
            super().scan(number.to_bytes(width, "big"), end, 1)
        except CorruptionError:
            return False
        return True


def _number(key: bytes, width: int) -> int:
    return int.from_bytes(key.ljust(width, b"\0"), "big")
