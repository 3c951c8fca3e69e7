"""Histogram: how values are spread, in buckets that only ever count up.

The buckets have fixed upper bounds, so that two histograms, or two readings of one, can be
subtracted and added: that is what monitoring systems do with them. It is fed per batch (one call
with a count), read whenever somebody asks.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final, final

DURATION_BOUNDS_S: Final[tuple[float, ...]] = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
"""Upper bounds for waits and service times, seconds; the objectives are among them."""


@final
class Histogram:
    """Counts of values by upper bound, inclusive; values above the last one are counted, too."""

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float] = DURATION_BOUNDS_S) -> None:
        assert bounds
        assert all(low < high for low, high in pairwise(bounds))
        self.bounds: tuple[float, ...] = tuple(bounds)
        self.total = 0.0
        """Sum of all values, in their unit."""
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, count: int = 1) -> None:
        """Count `value`, which `count` members of a batch share."""
        assert count >= 0
        self._counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def cumulative(self) -> list[int]:
        """Values at or below each of `bounds`, then the number of all values."""
        return list(accumulate(self._counts))
