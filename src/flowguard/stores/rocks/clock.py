"""Unique ids: a hybrid logical clock and a node number, 12 bytes.

The last value given out is durable with the batch it was given out in. So a wall clock that is
set back repeats no id, and a copy of the directory knows exactly how far it has followed its
original (`flowguard.stores.rocks.identity`).
"""

from collections.abc import Callable
from typing import Final, final

EPOCH_S: Final = 1_577_836_800.0
"""Beginning of the clock: 2020-01-01 UTC."""
COUNTER_BITS: Final = 16


@final
class UidClock:
    """A clock; `hlc` was given out last, and taking an id adds 1. The node number goes with it."""

    def __init__(self, node: int, last: int, wall_s: Callable[[], float]) -> None:
        """`last` is the value that the directory has recorded."""
        self.node = node
        self._wall_s = wall_s
        self.hlc = last
        self.written = last
        """The recorded value."""
        self.begin()

    def begin(self) -> None:
        """Begin a commit: catch up with the wall clock."""
        wall = int((self._wall_s() - EPOCH_S) * 1_000) << COUNTER_BITS
        if self.hlc < wall:
            self.hlc = wall
        self._begun = self.hlc

    @property
    def is_due(self) -> bool:
        """Whether ids were given out since, and the last one is not recorded."""
        return self.hlc != self._begun and self.hlc != self.written
