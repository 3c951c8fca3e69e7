"""Percentiles of the recent values of a histogram."""

from collections import deque
from typing import Final, final

from typing_extensions import TypedDict

from flowguard.flow.load.histogram import Histogram

LOOKS: Final = 10
"""Number of looks that count as recent."""


class Latency(TypedDict):
    """Percentiles, or None if there are no recent values."""

    count: int
    p50_s: float | None
    p99_s: float | None


@final
class RecentLatency:
    """Looks at a histogram periodically, and keeps its counts of the last looks."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._told: deque[list[int]] = deque([histogram.counts.copy()], maxlen=LOOKS)
        self._recent = Histogram(histogram.bounds)

    def look(self) -> Latency:
        """Return the latencies of the last `LOOKS` looks; values above the last bound count as
        it."""
        counts = self._histogram.counts.copy()
        recent = self._recent
        recent.counts = [now - before for now, before in zip(counts, self._told[0], strict=True)]
        self._told.append(counts)
        return Latency(count=sum(recent.counts), p50_s=self._at(0.5), p99_s=self._at(0.99))

    def _at(self, share: float) -> float | None:
        value = self._recent.percentile(share)
        return None if value is None else min(value, self._recent.bounds[-1])
