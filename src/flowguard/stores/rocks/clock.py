"""Unique ids: a hybrid logical clock and a node number, 12 bytes.

What was given out last is durable with the batch it was given out in. So a wall clock that is set
back repeats no id, and a copy of the directory knows exactly how far it has followed its original
(`flowguard.stores.rocks.identity`).
"""

from collections.abc import Callable
from typing import Final, final

EPOCH_S: Final = 1_577_836_800.0
"""2020-01-01 UTC."""
COUNTER_BITS: Final = 16


@final
class UidClock:
    """`hlc` was given out last; who takes an id adds 1. Its node number goes with it."""

    __slots__ = ("_begun", "_wall_s", "hlc", "node", "written")

    def __init__(self, node: int, last: int, wall_s: Callable[[], float]) -> None:
        """`last` is what the directory has recorded."""
        self.node = node
        self._wall_s = wall_s
        self.hlc = last
        self.written = last
        """What is recorded."""
        self.begin()

    def begin(self) -> None:
        """A commit begins: catch up with the wall."""
        wall = int((self._wall_s() - EPOCH_S) * 1_000) << COUNTER_BITS
        if self.hlc < wall:
            self.hlc = wall
        self._begun = self.hlc

    @property
    def is_due(self) -> bool:
        """Ids were given out since, and the last one is not recorded."""
        return self.hlc != self._begun and self.hlc != self.written
