"""Leverage: how much of the loop's work windows can put off (docs/overload.md, "Leverage").

Cutting windows takes from clients that have more than one packet, in process or waiting. Where
their packets, the deliveries of these, and what other nodes forward are a twentieth of the loop's
work, a cut to one hundredth changes pressure by five per cent and takes nearly all from them. So
windows are pressed by at most their share of the work, by `KEPT_SHARE`: under any pressure that
smaller windows cannot relieve, clients that always have more to send keep that share of the loop.
"""

from math import exp
from typing import Final, final

from flowguard.flow.signals import PRESSURE_MAX, Sample

KEPT_SHARE: Final = 0.25
"""Share of the loop's work from which windows are worth cutting; 0.15 to 0.4 measure the same."""
MEMORY_S: Final = 0.5
"""Time constant of the share, seconds."""


@final
class Leverage:
    """The share of one node, smoothed by work: a tick without work does not change it."""

    __slots__ = ("_movable", "_observed_s", "_worked")

    def __init__(self) -> None:
        self._movable = self._worked = self._observed_s = 0.0

    def observe(self, sample: Sample, refusing_s: float) -> None:
        """Count a tick, in which accepting and rejecting took `refusing_s` of the loop.

        The work for packets is split as the host reports. The loop's time less that of CONNECTs
        and handshakes is its size, or, if the host does not report times, the work itself.
        """
        if sample.movable_work is None:
            return
        kept: float = exp((self._observed_s - sample.now_s) / MEMORY_S)
        self._observed_s = sample.now_s
        worked = packets = sample.work
        if sample.worked_s > 0.0:
            worked = sample.worked_s
            aside_s = sample.connecting_s + sample.handshakes_s + refusing_s
            packets = max(0.0, worked - aside_s)
        movable = packets * sample.movable_work / sample.work if sample.work > 0.0 else 0.0
        self._movable = kept * self._movable + movable
        self._worked = kept * self._worked + worked

    @property
    def share(self) -> float | None:
        """Share of the loop's work that smaller windows would put off, or None if unknown."""
        return self._movable / self._worked if self._worked > 0.0 else None

    @property
    def pressure_max(self) -> float:
        """The highest pressure that windows can relieve."""
        share = self.share
        return PRESSURE_MAX if share is None else share / KEPT_SHARE
