"""LoadMeter: signals of a node in, one pressure and one window out.

Every signal is normalised by its objective, so that 1.0 means "just at the objective"; the node's
pressure is the worst of them, and that signal is the cause. The window follows the pressure in the
log domain: down fast, up slowly, nothing inside a dead band, so that it settles instead of swinging
(design/overload.md 6.2 and 6.4, first and simple form: hold rule and anti-windup come with the
whole law). Call `tick` every `TICK_S`.
"""

from enum import StrEnum
from typing import final

from flowguard.flow.window import NodeWindow

TICK_S = 0.1
PRESSURE_MAX = 16.0
CUT_ABOVE = 1.2
GROW_BELOW = 0.8
CALM_TICKS = 3
GROWTH = 1.05
"""Per tick: from 1 to 100 in 95 ticks, about ten seconds."""
HARD_CUT_ABOVE = 2.0


class Signal(StrEnum):
    """What a node observes of itself."""

    QUEUE = "queue"
    """Sojourn of work in the journal, seconds."""
    LOOP = "loop"
    """Duration of a reactor turn, seconds."""
    STORE = "store"
    """Latency of a commit, seconds."""
    MEMORY = "memory"
    """Used part of the memory budget, 0 to 1."""


DEFAULT_OBJECTIVES: dict[Signal, float] = {
    Signal.QUEUE: 0.025,
    Signal.LOOP: 0.050,
    Signal.STORE: 0.050,
    Signal.MEMORY: 0.70,
}


@final
class LoadMeter:
    """Keeps the worst observation of each signal since the last tick."""

    __slots__ = ("_calm_ticks", "_objectives", "_window", "_worst", "cause", "node", "pressure")

    def __init__(self, node: NodeWindow, objectives: dict[Signal, float] | None = None) -> None:
        self.node = node
        self._objectives = DEFAULT_OBJECTIVES if objectives is None else objectives
        assert all(objective > 0 for objective in self._objectives.values())
        self._worst: dict[Signal, float] = {}
        self._window = float(node.limit)
        self._calm_ticks = 0
        self.pressure = 0.0
        self.cause: Signal | None = None

    def observe(self, signal: Signal, value: float) -> None:
        """Report a value in the signal's own unit; the worst of a tick counts."""
        if value > self._worst.get(signal, 0.0):
            self._worst[signal] = value

    def tick(self) -> int:
        """Judge what was observed since the last tick, move the window, return its new limit."""
        self.pressure, self.cause = self._judge()
        self._worst.clear()
        if self.pressure > CUT_ABOVE:
            self._calm_ticks = 0
            gain = 0.5 if self.pressure > HARD_CUT_ABOVE else 0.25
            self._window *= max(0.5, self.pressure**-gain)
        elif self.pressure < GROW_BELOW:
            self._calm_ticks += 1
            if self._calm_ticks >= CALM_TICKS:
                self._window *= GROWTH
        else:
            self._calm_ticks = 0
        self._window = min(float(self.node.limit_max), max(1.0, self._window))
        self.node.resize(int(self._window + 1e-9))
        return self.node.limit

    def _judge(self) -> tuple[float, Signal | None]:
        worst, cause = 0.0, None
        for signal, value in self._worst.items():
            ratio = value / self._objectives[signal]
            if signal is Signal.MEMORY:
                # design/overload.md 6.2: 1 at the objective (70 %), 4 at 20 points above.
                ratio = 4.0 ** ((value - self._objectives[signal]) / 0.20)
            if ratio > worst:
                worst, cause = ratio, signal
        return min(PRESSURE_MAX, worst), cause
