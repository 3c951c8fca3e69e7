"""The controller in the log domain, of windows (`law`) and of CONNECTs in process (`concurrency`).

Every `TICK_S` it multiplies its value by a factor of the pressure P (docs/explain/overload.md, "The
law in short"). After a cut the next cut waits until the effect can be seen, unless P doubles, and
for `HOLD_MAX_S` at most. That bound is a time, because a loop that drifts delays ticks.

Anti-windup: a value that has no effect, because another limit is smaller, stays below twice what is
in force. Otherwise it would be cut for long without effect.
"""

from dataclasses import dataclass
from math import inf
from typing import Final, final

CUT_ABOVE: Final = 1.2
CUT_GAIN: Final = 0.25
HARD_CUT_ABOVE: Final = 2.0
CUT_MIN: Final = 0.5
"""Factor of the largest cut."""
HOLD_MAX_S: Final = 1.0
"""Maximum hold. Older waits predict little, and a P of `PRESSURE_MAX` cannot double any more."""
HOLD_ENDS_AT: Final = 2.0
"""Multiple of the pressure of the last cut at which the next cut waits no longer."""
GROW_BELOW: Final = 0.8
GROWTH_MAX: Final = 1.15
"""Factor per tick."""
CALM_TICKS: Final = 3
WINDUP_FROM: Final = 0.5
WINDUP: Final = 2.0
"""Multiple of the value in force that a value without effect may have."""
_PRESSURE_MIN: Final = 1e-9
"""Growth is the same for anything smaller, and 0 has no negative power."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """The parameters in which the two laws differ."""

    hard_cut_gain: float
    """The gain above `HARD_CUT_ABOVE`."""
    confirms: bool
    """True if a cut up to there needs two ticks that agree."""
    hold_min_s: float
    """Minimum hold after a cut, seconds."""
    holds_growth: bool
    """True if the value does not grow, either, until the effect of a cut is visible."""
    growth_gain: float
    """Growth is at most P ** -gain; if it is inf, equal at any P below `GROW_BELOW`."""


@final
class LogController:
    """A value between two bounds that follows a pressure."""

    __slots__ = (
        "_calm_ticks",
        "_cut_pressure",
        "_held_until_s",
        "_last_pressure",
        "_tuning",
        "value",
        "value_max",
        "value_min",
    )

    def __init__(self, value: float, value_min: float, value_max: float, tuning: Tuning) -> None:
        assert 0 < value_min <= value_max
        self.value_min = value_min
        self.value_max = value_max
        self._tuning = tuning
        self._last_pressure = 0.0
        self._calm_ticks = 0
        self._held_until_s = -inf
        """The next cut waits until this time."""
        self._cut_pressure = 0.0
        """Pressure that caused the last cut."""
        self.value = self._clamp(value)

    def move(self, value: float) -> None:
        """Continue from this value, within the bounds, and keep the hold of the last cut."""
        self.value = self._clamp(value)
        self._calm_ticks = 0

    def bound(self, value_min: float, value_max: float) -> None:
        """Use other bounds from now on."""
        self.value_min, self.value_max = value_min, value_max
        self.value = self._clamp(self.value)

    def step(
        self, pressure: float, now_s: float, delay_s: float, in_force: float = inf
    ) -> tuple[bool, str]:
        """Do one tick under `pressure`. Return True if it was answered by a cut, and why, for a
        person.

        `delay_s`: time until the effect of a change is visible, seconds. `in_force`: the value that
        is in effect, or `inf` if no other limit is smaller.
        """
        held = now_s < self._held_until_s and pressure <= HOLD_ENDS_AT * self._cut_pressure
        last, self._last_pressure = self._last_pressure, pressure
        if held and self._tuning.holds_growth:
            return False, "held after a cut"
        if pressure < GROW_BELOW:
            self._calm_ticks += 1
            return False, self._grow(pressure, in_force)
        self._calm_ticks = 0
        why = self._unwind(in_force)
        if pressure <= CUT_ABOVE:
            return False, why
        if held:
            return False, "held after a cut"
        return self._cut(pressure, last, now_s, delay_s)

    def _cut(self, pressure: float, last: float, now_s: float, delay_s: float) -> tuple[bool, str]:
        """Shrink, unless this is the first tick of a mild cut."""
        tuning = self._tuning
        gain, cause = CUT_GAIN, pressure
        if pressure > HARD_CUT_ABOVE:
            gain = tuning.hard_cut_gain
        elif tuning.confirms:
            if last <= CUT_ABOVE:
                return False, "unchanged until a second tick confirms"
            cause = min(pressure, last)
        self._held_until_s = now_s + min(HOLD_MAX_S, max(tuning.hold_min_s, delay_s))
        self._cut_pressure = pressure
        if self.value <= self.value_min:
            return True, f"at its minimum of {self.value_min:g}"
        factor: float = max(CUT_MIN, cause**-gain)
        self.value = self._clamp(self.value * factor)
        return True, f"cut to {100 * factor:.0f} %"

    def _grow(self, pressure: float, in_force: float) -> str:
        """Grow after enough calm ticks; below `GROW_BELOW` nothing ever shrinks."""
        if self.value >= self.value_max:
            return f"at its maximum of {self.value_max:g}"
        if self._calm_ticks < CALM_TICKS:
            return f"calm for {self._calm_ticks} of {CALM_TICKS} ticks"
        useful = WINDUP * in_force if pressure >= WINDUP_FROM else inf
        if self.value >= useful:
            return self._kept(in_force)
        growth: float = max(_PRESSURE_MIN, pressure) ** -self._tuning.growth_gain
        self.value = self._clamp(min(self.value * min(growth, GROWTH_MAX), useful))
        return f"grows: calm for {self._calm_ticks} ticks"

    def _unwind(self, in_force: float) -> str:
        """In and above the dead band: return to the largest value that has an effect."""
        if self.value <= WINDUP * in_force:
            return "in the dead band"
        self.value = self._clamp(WINDUP * in_force)
        return self._kept(in_force)

    def _kept(self, in_force: float) -> str:
        return (
            f"kept at {self.value:.3g}: the window in force is {in_force:.3g} "
            "(another node is the bottleneck)"
        )

    def _clamp(self, value: float) -> float:
        return min(self.value_max, max(self.value_min, value))
