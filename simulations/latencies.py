"""Latencies: a histogram of durations, in buckets that are 10 % wide."""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from math import inf
from typing import Final, final

BOUND_MIN_S: Final = 0.000_1
BOUND_RATIO: Final = 1.1
BOUNDS_S: Final[tuple[float, ...]] = (
    *(BOUND_MIN_S * BOUND_RATIO**n for n in range(171)),
    inf,
)
"""Upper bounds of buckets, up to 1,000 seconds and one for the rest."""


@final
class Latencies:
    """A histogram from which percentiles are read, to 10 %."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts = [0] * len(BOUNDS_S)
        """Counts by bucket; they only grow."""

    def observe(self, latency_s: float, count: int = 1) -> None:
        """Count so many observations of that latency."""
        self.counts[bisect_left(BOUNDS_S, latency_s)] += count

    @property
    def count(self) -> int:
        """The number of all observations."""
        return sum(self.counts)

    def percentile_s(self, share: float) -> float | None:
        """Upper bound of the bucket in which that share (0 to 1) of all is reached."""
        cumulative = list(accumulate(self.counts))
        if not cumulative[-1]:
            return None
        return BOUNDS_S[bisect_left(cumulative, max(1.0, share * cumulative[-1]))]


def sum_of(parts: Iterable[Latencies]) -> Latencies:
    """The observations of all of them together."""
    total = Latencies()
    for part in parts:
        total.counts = [a + b for a, b in zip(total.counts, part.counts, strict=True)]
    return total
