"""Leverage: how much of the loop's work windows can put off (docs/explain/overload.md, "Leverage").

The pressure on windows is at most their share of the work, by `KEPT_SHARE`. Under any pressure that
smaller windows cannot relieve, clients that always have more to send keep that share of the loop.
"""

from math import exp
from typing import Final, final

from flowguard.flow.load.signals import PRESSURE_MAX, Sample

KEPT_SHARE: Final = 0.23
"""Share of the loop's work from which windows are worth cutting. 0.3 and 0.4 leave more to clients
without end, but in `busy_publishers` 99 % are connected after 16.7 and 20.4 s (15.7)."""
MEMORY: Final = 0.5
"""Work after which the share is forgotten: seconds of the loop, or thousands of packets."""
_UNIT: Final = 0.001
"""Work of a packet, if the host does not report times."""


@final
class Leverage:
    """The share of one node, smoothed by work: while the loop has little to do it hardly changes.

    If the store stands still, an idle loop is no evidence about the effect of windows.
    """

    __slots__ = ("share",)

    def __init__(self) -> None:
        self.share: float | None = None
        """Share of the loop's work that smaller windows would put off, or None if unknown."""

    def observe(self, sample: Sample, refusing_s: float) -> None:
        """Count a tick, in which accepting and rejecting took `refusing_s` of the loop.

        The work for packets is split as the host reports. The size of that work is the loop's time
        less that of CONNECTs and handshakes. If the host reports no times, the reported work is
        the size. The loop of a host that counts seconds also does other things, so the reported
        work is the size there, too. Counted in packets, work is always the larger number.
        """
        if sample.movable_work is None:
            return
        worked = packets = _UNIT * sample.work
        if sample.worked_s > 0.0:
            worked = sample.worked_s
            aside_s = sample.connecting_s + sample.handshakes_s + refusing_s
            packets = min(sample.work, max(0.0, worked - aside_s))
        if worked <= 0.0:
            return
        movable = packets * sample.movable_work / sample.work if sample.work > 0.0 else 0.0
        share = movable / worked
        if self.share is None:
            self.share = share
        else:
            self.share += (share - self.share) * (1.0 - exp(-worked / MEMORY))

    @property
    def pressure_max(self) -> float:
        """The highest pressure that windows can relieve."""
        share = self.share
        return PRESSURE_MAX if share is None else share / KEPT_SHARE
