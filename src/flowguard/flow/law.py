"""WindowLaw: from a node's pressure to its window (docs/overload.md, "Window").

Every `TICK_S` the window moves in the log domain, by a factor that the pressure P decides:
- P above 1.2: cut by P ** -0.25, above 2 by P ** -0.5, never by more than half. What a cut did
  shows when the packets admitted after it start, or are done, and when percentiles have forgotten
  what was before (`Observer.restart`); until then, 0.25 to 1 s, the next cut waits, unless P more
  than doubles: one cut per feedback delay.
- P from 0.8 to 1.2: nothing; this is where the window belongs.
- P below 0.8 for three ticks: grow by P ** -0.1, at most by 1.10 where clients use their windows,
  by 1.02 where they do not: at rest from 1 to 100 in 23.5 s.
- Anti-windup: where another node is the bottleneck, this one's window goes no further than twice
  the largest in force here; beyond, it would cut for long without effect. From P = 0.5 on it grows
  no further, from 0.8 on it returns to there.

Four things are less simple than they might be, because they measure better so (20 clients, delays
of 0 to 300 ms; tests/flowguard/flow/test_stability.py):
- A cut at P up to 2 takes two ticks that agree, and follows the milder. With 30 % noise in the
  service, swings of ln W by more than 0.2 fall from 0.9 to 0.1 in ten seconds.
- Growth: 1.05 a tick needs 3.0 to 3.3 s to use a capacity that has quadrupled. At most 1.10, but
  less near the dead band, needs 2.0 s, and swings fall to 0.04 in ten seconds.
- A cut's effect is awaited for the response time, too, because it includes the commit, and for the
  loop's drift; for a second at most: a deep overload at the start settles in 3.2 s instead of
  3.9 s. A second of time: counted in ticks, which a loop that is away delays, it was 11 s instead
  of 5 s until 600 clients that begin to flood at once were at the objective.
- An unused window grows faster than 1.02 where the maximum is more than 100 times the floor, so
  that rest takes 23.5 s in any setting: from 0.05 to 100 it would take 38.6 s.
"""

from math import inf
from typing import Final, final

from flowguard.flow.signals import Pressure, Sample

CUT_ABOVE: Final = 1.2
CUT_GAIN: Final = 0.25
HARD_CUT_ABOVE: Final = 2.0
HARD_CUT_GAIN: Final = 0.5
CUT_MIN: Final = 0.5
"""The hardest cut, factor."""
HOLD_MIN_S: Final = 0.25
"""Until the third tick: the first that sees two full sub-windows since the cut."""
HOLD_MAX_S: Final = 1.0
"""What waited longer says nothing about now, and a P of `PRESSURE_MAX` cannot double any more."""
HOLD_ENDS_AT: Final = 2.0
"""So many times the pressure that caused the last cut, the next one waits no longer."""
GROW_BELOW: Final = 0.8
CALM_TICKS: Final = 3
GROW_GAIN: Final = 0.1
GROWTH_USED: Final = 1.10
GROWTH_UNUSED: Final = 1.02
USED_SHARE: Final = 0.5
"""From this share of its window on, a client uses it."""
REST_TICKS: Final = 233
"""Growth from the floor to the maximum at rest: 23.3 s; 100 ** (1 / 233) is 1.02."""
WINDUP_FROM: Final = 0.5
WINDUP: Final = 2.0
"""Times the largest window in force."""
_PRESSURE_MIN: Final = 1e-9
"""Growth is the same for anything smaller, and 0 has no negative power."""


@final
class WindowLaw:
    """The window of one node: cost units of one client in process, `window_floor` to `window_max`.

    A node that starts is calm and starts at the maximum; `peer_lost` is for one that is not.
    """

    __slots__ = (
        "_calm_ticks",
        "_cut_pressure",
        "_growth_unused",
        "_held_until_s",
        "_last_pressure",
        "window",
        "window_floor",
        "window_max",
    )

    def __init__(
        self, window_max: float, window_floor: float = 1.0, start: float | None = None
    ) -> None:
        assert 0 < window_floor <= window_max
        self.window_max = window_max
        self.window_floor = window_floor
        self.window = self._clamp(window_max if start is None else start)
        rest: float = (window_max / window_floor) ** (1 / REST_TICKS)
        self._growth_unused = max(GROWTH_UNUSED, rest)
        self._last_pressure = 0.0
        self._calm_ticks = 0
        self._held_until_s = -inf
        """Until then the next cut waits."""
        self._cut_pressure = 0.0
        """What caused the last cut."""

    def step(self, pressure: Pressure, sample: Sample, in_force: float = inf) -> tuple[float, str]:
        """One tick: the new window, and why, for a person.

        `in_force` is the largest window that clients of this node were granted (before weights),
        which another node on their path may have made smaller than this node's own; `inf`: nobody
        knows, or there are no clients.
        """
        held = sample.now_s < self._held_until_s
        value, last = pressure.value, self._last_pressure
        self._last_pressure = value
        if value < GROW_BELOW:
            self._calm_ticks += 1
            why = self._grow(value, sample.used_share >= USED_SHARE, in_force)
        else:
            self._calm_ticks = 0
            why = self._unwind(in_force)
            if value > CUT_ABOVE:
                cause = f"{pressure.cause} at {value:.1f} times its objective"
                why = self._cut(value, last, held, sample, cause)
        return self.window, why

    def peer_lost(self) -> None:
        """The node inherits a peer's clients: no more than half the maximum, to grow from there."""
        self.window = self._clamp(min(self.window, self.window_max / 2))
        self._calm_ticks = 0

    def _cut(self, value: float, last: float, held: bool, sample: Sample, cause: str) -> str:
        """Shrink, unless the last cut has yet to show, or this is the first tick of a mild one."""
        if held and value <= HOLD_ENDS_AT * self._cut_pressure:
            return f"held after a cut: {cause}"
        if value > HARD_CUT_ABOVE:
            factor: float = max(CUT_MIN, value**-HARD_CUT_GAIN)
        elif last > CUT_ABOVE:
            factor = min(value, last) ** -CUT_GAIN
        else:
            return f"waits for a second tick: {cause}"
        delay_s = max(sample.sojourn_s, sample.response_s, sample.drift_s)
        self._held_until_s = sample.now_s + min(HOLD_MAX_S, max(HOLD_MIN_S, delay_s))
        self._cut_pressure = value
        if self.window <= self.window_floor:
            return f"at its floor of {self.window_floor:g}: {cause}"
        self.window = self._clamp(self.window * factor)
        return f"cut by {factor:.2f}: {cause}"

    def _grow(self, value: float, used: bool, in_force: float) -> str:
        """Grow after enough calm ticks; below `GROW_BELOW` nothing ever shrinks."""
        if self.window >= self.window_max:
            return f"at its maximum of {self.window_max:g}"
        if self._calm_ticks < CALM_TICKS:
            return f"calm for {self._calm_ticks} of {CALM_TICKS} ticks"
        useful = WINDUP * in_force if value >= WINDUP_FROM else inf
        if self.window >= useful:
            return self._kept(in_force)
        growth: float = max(_PRESSURE_MIN, value) ** -GROW_GAIN
        grown = self.window * min(growth, GROWTH_USED if used else self._growth_unused)
        self.window = self._clamp(min(grown, useful))
        return f"grows: calm for {self._calm_ticks} ticks, {'used' if used else 'unused'}"

    def _unwind(self, in_force: float) -> str:
        """In and above the dead band: back to the largest window that has an effect."""
        if self.window <= WINDUP * in_force:
            return "in the dead band"
        self.window = self._clamp(WINDUP * in_force)
        return self._kept(in_force)

    def _kept(self, in_force: float) -> str:
        return (
            f"kept at {self.window:.3g}: the window in force is {in_force:.3g} "
            "(another node is the bottleneck)"
        )

    def _clamp(self, window: float) -> float:
        return min(self.window_max, max(self.window_floor, window))
