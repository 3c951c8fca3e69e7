"""Acknowledgements: how long a PUBLISH of QoS 1 or 2 waits for its PUBACK or PUBREC.

From the stretch of work in which it is decoded to the one in which its answer leaves. What it waits
before, in the client's socket or undecoded in our buffer, is not in it: that is back-pressure, and
only its client can tell how long it took. What waits for a commit is observed one by one. What is
answered in the stretch in which it came is only counted, and observed together when the answers
leave: it is the path on which most of the messages are.
"""

from typing import final

from flowguard.flow.load.histogram import Histogram
from flowguard.flow.load.observer import BOUNDS_S


@final
class Acknowledgements:
    def __init__(self) -> None:
        self.at_once_count = 0
        """Answers of the present stretch that have not left yet."""
        self.since_s = 0.0
        """When that stretch began."""
        self.latency = Histogram(BOUNDS_S)
        """Seconds, in buckets that are 10 % wide."""

    def at_once(self, qos: int, since_s: float) -> None:
        """One is answered in the stretch that began then; the hot path has this inline."""
        if qos:
            self.at_once_count += 1
            self.since_s = since_s

    def came(self, since_s: float, now_s: float, count: int = 1) -> None:
        """Count the answers of so many that had to wait."""
        self.latency.observe(max(0.0, now_s - since_s), count)

    def leave(self, now_s: float) -> None:
        """Count what was answered at once and is about to leave."""
        self.latency.observe(max(0.0, now_s - self.since_s), self.at_once_count)
        self.at_once_count = 0
