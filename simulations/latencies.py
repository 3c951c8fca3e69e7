"""Latencies: how long something took, in buckets that are 10 % wide."""

from bisect import bisect_left
from typing import Final, final

from flowguard.flow.histogram import Histogram

BOUND_MIN_S: Final = 0.000_1
BOUND_RATIO: Final = 1.1
BOUNDS_S: Final[tuple[float, ...]] = tuple(BOUND_MIN_S * BOUND_RATIO**n for n in range(171))
"""Up to 1,000 seconds."""


@final
class Latencies:
    """A histogram from which percentiles are read, to 10 %."""

    __slots__ = ("histogram",)

    def __init__(self) -> None:
        self.histogram = Histogram(BOUNDS_S)

    def observe(self, latency_s: float, count: int = 1) -> None:
        """So many took that long."""
        self.histogram.observe(latency_s, count)

    @property
    def count(self) -> int:
        """Of all."""
        return self.histogram.cumulative()[-1]

    def percentile_s(self, share: float) -> float | None:
        """Upper bound of the bucket in which that share (0 to 1) of all is reached."""
        cumulative = self.histogram.cumulative()
        if not cumulative[-1]:
            return None
        index = bisect_left(cumulative, share * cumulative[-1])
        return BOUNDS_S[min(index, len(BOUNDS_S) - 1)]
