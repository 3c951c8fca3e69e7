"""Flowguard's own policy: pressure, window law, gate and cluster in one tick.

The own window is announced to the cluster, and the part that the cluster leaves of it is granted
(docs/explain/overload.md, "Many nodes"). Without a cluster, the grant is the law's window.
"""

from collections.abc import Callable
from math import inf
from typing import Generic, Protocol, TypeVar, final

from flowguard.cluster.pressure import Cluster, PressureRecord
from flowguard.config import FlowSettings
from flowguard.flow.controller import CUT_ABOVE, GROW_BELOW
from flowguard.flow.law import WindowLaw
from flowguard.flow.load.leverage import Leverage
from flowguard.flow.load.pressure import objectives_of, pressure_of, window_pressure_of
from flowguard.flow.load.signals import Objectives, Pressure, Sample, Signal
from flowguard.flow.policy import Gate, Grant

K = TypeVar("K")
Tell = Callable[[PressureRecord], None]
"""Sends the record of this node to the other ones."""


def tell_nobody(record: PressureRecord) -> None:
    """Do nothing, for a node without others."""


class RestartableGate(Gate[K], Protocol[K]):
    """A gate that restarts before a crowd arrives, and reports the pressure of one that waits."""

    @property
    def crowd_pressure(self) -> float:
        """Pressure of CONNECTs that wait, which take turns with packets; 0 if none does."""

    @property
    def spent_s(self) -> float:
        """Seconds of the loop that accepting and rejecting took since the last tick."""

    def peer_lost(self, now_s: float) -> None:
        """A node of the cluster is lost: the limit starts again, at its minimum."""


@final
class Flowguard(Generic[K]):
    """Owns its law; gate and cluster belong to the node as well, and are the same objects."""

    __slots__ = (
        "_cluster",
        "_gate",
        "_in_force",
        "_law",
        "_leverage",
        "_lost",
        "_objectives",
        "_tell",
        "gate",
        "name",
    )

    def __init__(
        self,
        name: str,
        law: WindowLaw,
        gate: RestartableGate[K],
        objectives: Objectives,
        cluster: Cluster | None = None,
        tell: Tell = tell_nobody,
    ) -> None:
        self.name = name
        self._gate: RestartableGate[K] = gate
        self.gate: Gate[K] = gate
        self._law = law
        self._objectives = objectives
        self._cluster = cluster
        self._tell = tell
        self._leverage = Leverage()
        self._lost = 0
        self._in_force = inf
        """The window granted in the last tick, or `inf` if only this node grants."""

    def use(self, settings: FlowSettings) -> None:
        """Use other limits from now on, except those of the gate."""
        self._law.bound(settings.window_max, settings.window_floor)
        self._objectives = objectives_of(settings)

    def tick(self, sample: Sample) -> Grant:
        """One step of both laws, and what the cluster leaves of it."""
        now_s = sample.now_s
        cluster = self._cluster
        if cluster is not None and cluster.lost(now_s) > self._lost:
            self._lost = cluster.lost(now_s)
            self._law.peer_lost()
            self._gate.peer_lost(now_s)
        pressure = pressure_of(sample, self._objectives)
        before, reducible = self._law.window, self._law.reducible
        on_windows = self._window_pressure(sample)
        window, why = self._law.step(on_windows, sample, self._in_force)
        is_cut = window < before
        leverage = self._leverage.share
        most = max(on_windows.value, self._leverage.pressure_max * reducible)
        if leverage is not None and most <= CUT_ABOVE < pressure.value:
            why = (
                f"{why}; not cut, because smaller windows would delay only "
                f"{100 * leverage * reducible:.0f} % of the event loop's work"
            )
        if pressure.cause is Signal.MEMORY and sample.waiting_share > 0.0:
            why = f"{why}; CONNECTs that wait hold {sample.waiting_share:.0%} of the memory"
        self._gate.tick(sample, pressure)
        if cluster is None:
            return Grant(window, pressure, why, is_cut=is_cut, leverage=leverage)
        record = cluster.announce(window, pressure.value, pressure.cause, self._gate.limit, now_s)
        if record is not None:
            self._tell(record)
        granted = self._in_force = cluster.window_for(cluster.path, now_s)
        if granted < window:
            why = f"{why}; the cluster leaves {granted:.3g} of {window:.3g}"
        return Grant(granted, pressure, why, is_cut=is_cut, leverage=leverage)

    def _window_pressure(self, sample: Sample) -> Pressure:
        """Return the pressure of packets, or of a crowd of CONNECTs that waits for them.

        It is at most what smaller windows can relieve, except that memory counts in full.
        """
        pressure = window_pressure_of(sample, self._objectives)
        crowd = self._gate.crowd_pressure
        if crowd > pressure.value:
            pressure = Pressure(crowd, None, pressure.parts)
        self._leverage.observe(sample, self._gate.spent_s)
        most = self._leverage.pressure_max
        relief = most * self._law.reducible
        if relief <= CUT_ABOVE:  # A cut has no effect: let windows grow until it has one.
            most = relief * GROW_BELOW / CUT_ABOVE
        most = max(pressure.parts[Signal.MEMORY], most)
        if pressure.value <= most:
            return pressure
        return Pressure(most, pressure.cause, pressure.parts)
