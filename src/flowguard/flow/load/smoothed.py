"""Smoothed: a value that follows what is observed, and forgets it exponentially."""

from math import exp
from typing import Final, final


@final
class Smoothed:
    """The weight of an observation falls to 1/e within `memory_s` seconds."""

    __slots__ = ("_memory_s", "value")

    def __init__(self, value: float, memory_s: float) -> None:
        assert memory_s > 0
        self._memory_s: Final = memory_s
        self.value = value

    def observe(self, value: float, elapsed_s: float) -> None:
        """It was `value` for the last `elapsed_s` seconds."""
        self.value += (value - self.value) * (1.0 - exp(-elapsed_s / self._memory_s))
