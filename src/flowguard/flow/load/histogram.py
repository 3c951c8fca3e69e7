"""Histogram: the distribution of values, in buckets that only count up.

The buckets have fixed upper bounds, so that two histograms, or two readings of one, can be
subtracted and added, as monitoring systems do. It is fed per batch (one call with a count) and can
be read at any time.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import inf
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

LATENCY_BOUNDS_S: Final[tuple[float, ...]] = tuple(0.000_1 * 1.1**n for n in range(171))
"""Upper bounds of buckets that are 10 % wide, up to 1,000 seconds."""


@final
class Histogram:
    """Counts of values by upper bound, inclusive; the last count is of values above all bounds."""

    __slots__ = ("_bucket", "_value", "bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = DURATION_BOUNDS_S) -> None:
        assert bounds
        assert all(low < high for low, high in pairwise(bounds))
        self.bounds: tuple[float, ...] = tuple(bounds)
        self.total = 0.0
        """Sum of all values, in their unit."""
        self.counts = [0] * (len(self.bounds) + 1)
        """Values by bucket; those above the last bound come last."""
        self._value = self.bounds[0]
        self._bucket = 0
        """Bucket of `_value`, the last value: members of a commit have equal values in a row."""

    def observe(self, value: float, count: int = 1) -> None:
        """Count `value`, which `count` members of a batch share."""
        assert count >= 0
        if value != self._value:
            self._value = value
            self._bucket = bisect_left(self.bounds, value)
        self.counts[self._bucket] += count
        self.total += value * count

    def cumulative(self) -> list[int]:
        """Values at or below each of `bounds`, then the number of all values."""
        return list(accumulate(self.counts))

    def percentile(self, share: float) -> float | None:
        """Return the upper bound of the bucket in which that share (0 to 1) of all values is
        reached: infinite above the last one, None without values."""
        cumulative = self.cumulative()
        if not cumulative[-1]:
            return None
        bucket = bisect_left(cumulative, max(1.0, share * cumulative[-1]))
        return self.bounds[bucket] if bucket < len(self.bounds) else inf

    def add(self, other: "Histogram") -> None:
        """Add the counts of a histogram with the same bounds."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def grown(self, told: list[int]) -> list[tuple[float, int]]:
        """Return bounds and growth of the buckets that have grown since `told`, and update it."""
        bounds = (*self.bounds, inf)
        found = [
            (bound, count - before)
            for bound, count, before in zip(bounds, self.counts, told, strict=True)
            if count != before
        ]
        told[:] = self.counts
        return found
