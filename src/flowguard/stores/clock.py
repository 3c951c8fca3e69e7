"""The clock for the expiry of stored sessions and messages.

It does not jump while the process runs, even if the wall clock is corrected. The store keeps its
time and the time of the wall clock as a pair. The next process adds the time that has passed
since then on the wall clock.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final, final

INTERVAL_S: Final = 60.0
"""Pause between two stored pairs, seconds. A machine that loses its wall clock with the power
forgets at most as much time."""
JUMP_S: Final = 1.0
"""Change of the wall clock after which the stored pair is wrong, seconds."""
_PAIR: Final = Struct(">dd")


def ahead_of_wall_s(pair: bytes | None) -> float:
    """Return how far the clock of a stored pair is ahead of the wall clock, seconds."""
    if pair is None:
        return 0.0
    now_s, wall_s = _PAIR.unpack(pair)
    return float(now_s - wall_s)


@final
class StoreClock:
    """Seconds since the Unix epoch, according to the wall clock when the store was created."""

    def __init__(
        self,
        stored: bytes | None,
        wall_s: Callable[[], float],
        monotonic_s: Callable[[], float],
    ) -> None:
        """`stored` is the last pair, or None to begin with the wall clock."""
        self._wall_s = wall_s
        self._monotonic_s = monotonic_s
        start_s = wall_s()
        if stored is not None:
            before_s, wall_before_s = _PAIR.unpack(stored)
            start_s = before_s + max(0.0, start_s - wall_before_s)
        self._offset_s = start_s - monotonic_s()
        self._stored_s = self._stored_wall_s = 0.0

    def now_s(self) -> float:
        return self._monotonic_s() + self._offset_s

    def due(self) -> bytes | None:
        """Return the pair to store now, or None if the stored one is still right."""
        now_s, wall_s = self.now_s(), self._wall_s()
        passed_s = now_s - self._stored_s
        jump_s = wall_s - self._stored_wall_s - passed_s
        return _PAIR.pack(now_s, wall_s) if passed_s > INTERVAL_S or abs(jump_s) > JUMP_S else None

    def stored(self, pair: bytes) -> None:
        self._stored_s, self._stored_wall_s = _PAIR.unpack(pair)
