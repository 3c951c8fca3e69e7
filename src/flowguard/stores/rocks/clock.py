"""Unique ids: a hybrid logical clock and a node number, 12 bytes (design/storage.md 8.1).

A ceiling is durable: no id above it was ever given out. After a restart the clock starts there, so
that a wall clock set back repeats no id.
"""

from collections.abc import Callable
from typing import Final, final

EPOCH_S: Final = 1_577_836_800.0
"""2020-01-01 UTC."""
COUNTER_BITS: Final = 16
STEP: Final = 10_000 << COUNTER_BITS
MARGIN: Final = 1_000 << COUNTER_BITS


@final
class UidClock:
    """`hlc` was given out last; who takes an id adds 1. Its node number goes with it."""

    __slots__ = ("_wall_s", "ceiling", "hlc", "node")

    def __init__(self, node: int, ceiling: int, wall_s: Callable[[], float]) -> None:
        self.node = node
        self.ceiling = ceiling
        self._wall_s = wall_s
        self.hlc = ceiling
        self.begin()

    def begin(self) -> None:
        """A commit begins: catch up with the wall."""
        wall = int((self._wall_s() - EPOCH_S) * 1_000) << COUNTER_BITS
        if self.hlc < wall:
            self.hlc = wall

    @property
    def ceiling_due(self) -> int | None:
        """The ceiling that must be written with what was given out; None: the old one will do."""
        return self.hlc + STEP if self.hlc + MARGIN > self.ceiling else None
