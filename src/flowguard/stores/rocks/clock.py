"""Unique ids: a hybrid logical clock and a node number, 12 bytes.

The last id is durable with the batch that uses it. So no id is repeated when the wall clock is set
back, and a copy of the directory has the exact point up to which it follows its original
(`flowguard.stores.rocks.identity`).
"""

from collections.abc import Callable
from typing import Final, final

EPOCH_S: Final = 1_577_836_800.0
"""Beginning of the clock: 2020-01-01 UTC."""
COUNTER_BITS: Final = 16


@final
class UidClock:
    """A clock. `hlc` is the value of the last id, and each new id adds 1; `node` follows it."""

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
        """True if ids were taken since `begin`, and the last one is not recorded."""
        return self.hlc != self._begun and self.hlc != self.written
