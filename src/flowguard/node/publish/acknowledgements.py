"""Acknowledgements: how long a PUBLISH of QoS 1 or 2 waits for its PUBACK or PUBREC.

The latency runs from the time slice that decodes the message to the one that sends its answer.
The wait before, in the client's socket or undecoded in the node's buffer, is back-pressure and not
included; only the client can measure it. A message that waits for a commit is observed by itself.
Messages that are answered in the same time slice are counted, and observed together when the
answers leave: most messages take this path.
"""

from typing import final

from flowguard.flow.load.histogram import Histogram
from flowguard.flow.load.observer import BOUNDS_S


@final
class Acknowledgements:
    def __init__(self) -> None:
        self.at_once_count = 0
        """Number of answers of the present time slice that have not left yet."""
        self.since_s = 0.0
        """Time when that slice began."""
        self.latency = Histogram(BOUNDS_S)
        """Latencies in seconds, in buckets that are 10 % wide."""

    def at_once(self, qos: int, since_s: float) -> None:
        """Count an answer in the time slice that began at `since_s`; inlined in the hot path."""
        if qos:
            self.at_once_count += 1
            self.since_s = since_s

    def came(self, since_s: float, now_s: float, count: int = 1) -> None:
        """Count `count` answers that waited since `since_s`."""
        self.latency.observe(max(0.0, now_s - since_s), count)

    def leave(self, now_s: float) -> None:
        """Count the answers that were given at once and are about to leave."""
        self.latency.observe(max(0.0, now_s - self.since_s), self.at_once_count)
        self.at_once_count = 0
