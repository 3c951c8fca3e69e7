"""WindowLaw: from a node's pressure to its window (docs/explain/overload.md, "Window").

It is the `controller`, with the window as its value. A mild cut takes two ticks that agree: with
30 % noise in the service, swings of ln W by more than 0.2 fall from 0.9 to 0.1 in ten seconds.
The effect of a cut is awaited for the response time too, which includes the commit, and for the
drift of the loop (docs/develop/decisions/0019-what-makes-windows-settle.md).
"""

from math import inf
from typing import Final, final

from flowguard.flow.controller import CUT_ABOVE, LogController, Tuning
from flowguard.flow.load.signals import PRESSURE_MAX, Pressure, Sample, Signal

HARD_CUT_GAIN: Final = 0.5
HOLD_MIN_S: Final = 0.25
"""Until the third tick: the first that sees two full sub-windows since the cut."""
GROW_GAIN: Final = 0.125
CAUSES: Final = {
    Signal.QUEUE: "queueing delay of packets",
    Signal.LOOP: "event loop delay",
    Signal.STORE: "store latency",
    Signal.REPLICATION: "replication lag",
    Signal.MEMORY: "memory",
}


def pressure_text(pressure: Pressure) -> str:
    """Return a pressure and its cause in words; CONNECTs have no signal of their own."""
    cause = "CONNECTs" if pressure.cause is None else CAUSES[pressure.cause]
    more = " or more" if pressure.value >= PRESSURE_MAX else ""
    return f"{cause} at {pressure.value:.1f} times its objective{more}"


@final
class WindowLaw:
    """The window of one node: cost units of one client in process, `window_floor` to `window_max`.

    A node that starts is calm and starts at the maximum; `peer_lost` is for one that is not.
    """

    __slots__ = ("_controller",)

    def __init__(
        self, window_max: float, window_floor: float = 1.0, start: float | None = None
    ) -> None:
        assert 0 < window_floor <= window_max
        tuning = Tuning(
            hard_cut_gain=HARD_CUT_GAIN,
            confirms=True,
            hold_min_s=HOLD_MIN_S,
            holds_growth=False,
            growth_gain=GROW_GAIN,
        )
        value = window_max if start is None else start
        self._controller = LogController(value, window_floor, window_max, tuning)

    @property
    def window(self) -> float:
        return self._controller.value

    @property
    def reducible(self) -> float:
        """Share of the work of windows that smaller ones would put off, 0.5 to 1.

        Windows at their minimum cannot get smaller. Just above it, lone packets take nearly as much
        of the loop as the runs of a few packets that they replace.
        """
        controller = self._controller
        return controller.value / (controller.value + controller.value_min)

    def step(self, pressure: Pressure, sample: Sample, in_force: float = inf) -> tuple[float, str]:
        """One tick: the new window, and why, for a person.

        `in_force` is the window that clients were granted. Another node on their path may have made
        it smaller than this node's own. It is `inf` if there is no other node.
        """
        _, why = self._controller.step(
            pressure.value,
            sample.now_s,
            max(sample.sojourn_s, sample.response_s, sample.drift_s),
            in_force,
        )
        if pressure.value > CUT_ABOVE:
            why = f"{why}: {pressure_text(pressure)}"
        return self._controller.value, why

    def bound(self, window_max: float, window_floor: float) -> None:
        """Use other bounds from now on."""
        self._controller.bound(window_floor, window_max)

    def peer_lost(self) -> None:
        """The node inherits a peer's clients: no more than half the maximum, to grow from there."""
        controller = self._controller
        controller.move(min(controller.value, controller.value_max / 2))
