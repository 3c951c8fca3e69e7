"""Laws of the window law, from any state it can be in:

1. The window always stays within [floor, maximum].
2. One-step monotone: from an equal state a higher pressure never gives a larger next window.
3. Below 0.8 it never shrinks, inside the dead band it never grows, above 1.2 neither.
4. One tick never does more than halve it, or let it grow by more than 1.15.
5. A cut is followed by its hold, which ends when its time has run out or the pressure has doubled.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flowguard.flow.law import WindowLaw
from flowguard.flow.load.signals import PRESSURE_MAX, TICK_S, Pressure, Sample, Signal

PRESSURES = (
    st.floats(0.0, PRESSURE_MAX)
    | st.floats(0.7, 1.3)
    | st.sampled_from([0.0, 0.5, 0.8, 1.2, 2.0, PRESSURE_MAX])
)
SOJOURNS_S = st.floats(0.0, 0.5) | st.floats(0.0, 100.0)
USED = st.sampled_from([0.0, 0.49, 0.5, 1.0])
IN_FORCE = st.just(inf) | st.floats(0.01, 100.0)


class Law:
    """A window law and its clock."""

    def __init__(
        self, window_max: float, window_floor: float = 1.0, start: float | None = None
    ) -> None:
        self._law = WindowLaw(window_max, window_floor, start)
        self.window_max, self.window_floor = window_max, window_floor
        self.peer_lost = self._law.peer_lost
        self._now_s = 0.0

    @property
    def window(self) -> float:
        return self._law.window

    def step(
        self, pressure: Pressure, sample: Sample, in_force: float, after_s: float
    ) -> tuple[float, str]:
        self._now_s = round(self._now_s + after_s, 6)
        return self._law.step(pressure, replace(sample, now_s=self._now_s), in_force)


def step(
    law: Law,
    pressure: float,
    *,
    sojourn_s: float = 0.0,
    response_s: float = 0.0,
    drift_s: float = 0.0,
    in_force: float = inf,
    after_s: float = TICK_S,
    cause: Signal = Signal.STORE,
) -> str:
    """Tick once under this pressure, `after_s` after the last; return why the window has its
    size."""
    before = Pressure(pressure, cause, {cause: pressure})
    sample = Sample(0.0, sojourn_s=sojourn_s, response_s=response_s, drift_s=drift_s)
    window, why = law.step(before, sample, in_force, after_s)
    assert window == law.window
    return why


def ticks_to_rest(law: Law) -> int:
    for tick in range(1, 1_000):
        step(law, 0.0)
        if law.window == law.window_max:
            return tick
    raise AssertionError("never")


@dataclass(frozen=True)
class Tick:
    """The input of a law in one tick."""

    pressure: float
    sojourn_s: float
    in_force: float

    def apply(self, law: Law) -> str:
        return step(
            law,
            self.pressure,
            sojourn_s=self.sojourn_s,
            in_force=self.in_force,
        )


TICKS = st.builds(Tick, PRESSURES, SOJOURNS_S, IN_FORCE)
HISTORIES = st.lists(TICKS, max_size=40)


@st.composite
def laws(draw: st.DrawFn) -> Callable[[], Law]:
    """A law in any state it can be in, as often as wanted."""
    window_max = draw(st.sampled_from([1.0, 7.0, 100.0, 65_535.0]))
    floor = draw(st.sampled_from([0.001, 0.05, 1.0]))
    start = draw(st.none() | st.floats(0.0, window_max))
    history = draw(HISTORIES)

    def make() -> Law:
        law = Law(window_max, floor, start)
        for tick in history:
            tick.apply(law)
        return law

    return make


@given(laws(), HISTORIES)
def test_invariant_01_the_window_is_within_its_bounds(
    make: Callable[[], Law], history: list[Tick]
) -> None:
    law = make()
    for tick in history:
        tick.apply(law)
        assert 0 < law.window_floor <= law.window <= law.window_max


@given(laws(), TICKS, TICKS)
def test_a_higher_pressure_never_gives_a_larger_next_window(
    make: Callable[[], Law], one: Tick, other: Tick
) -> None:
    """From an equal state, one step; whatever else the higher pressure comes with."""
    lower, higher = sorted((one, other), key=lambda tick: tick.pressure)
    higher = replace(higher, in_force=lower.in_force)
    relaxed, pressed = make(), make()
    lower.apply(relaxed)
    higher.apply(pressed)
    assert pressed.window <= relaxed.window


@given(laws(), TICKS.filter(lambda tick: tick.pressure < 0.8))
def test_invariant_10_below_the_dead_band_nothing_shrinks(
    make: Callable[[], Law], tick: Tick
) -> None:
    law = make()
    before = law.window
    tick.apply(law)
    assert law.window >= before


class Laws(RuleBasedStateMachine):
    """One law under a long history of stretches: each tick does what its pressure stands for."""

    @initialize(
        window_max=st.sampled_from([1.0, 7.0, 100.0, 65_535.0]),
        floor=st.sampled_from([0.001, 0.05, 1.0]),
    )
    def node_starts(self, window_max: float, floor: float) -> None:
        self.law = Law(window_max, floor)

    @rule(tick=TICKS, ticks=st.integers(1, 12))
    def pressure_lasts(self, tick: Tick, ticks: int) -> None:
        for _ in range(ticks):
            before = self.law.window
            why = tick.apply(self.law)
            self.one_tick_does_what_its_pressure_stands_for(tick, before, why)

    def one_tick_does_what_its_pressure_stands_for(
        self, tick: Tick, before: float, why: str
    ) -> None:
        after = self.law.window
        if tick.pressure < 0.8:
            assert before <= after <= before * 1.15 * (1 + 1e-9)
        else:
            assert after <= before
        if 0.8 <= tick.pressure <= 1.2 and before <= 2 * tick.in_force:
            assert after == before
        effective = max(self.law.window_floor, min(before, 2 * tick.in_force))
        assert after >= effective / 2
        assert ("cut to" in why) <= (tick.pressure > 1.2)
        assert why.startswith("grows") == (after > before)

    @rule()
    def peer_is_lost(self) -> None:
        before, half = self.law.window, self.law.window_max / 2
        self.law.peer_lost()
        assert self.law.window == max(self.law.window_floor, min(before, half))

    @invariant()
    def window_is_within_its_bounds(self) -> None:
        if hasattr(self, "law"):
            assert 0 < self.law.window_floor <= self.law.window <= self.law.window_max


TestLaws = Laws.TestCase


def test_a_calm_node_starts_at_its_maximum_and_stays_there() -> None:
    law = Law(100.0)
    assert law.window == 100.0
    assert step(law, 0.0) == "at its maximum of 100"
    assert law.window == 100.0


@pytest.mark.parametrize(
    ("floor", "window_max", "ticks"), [(1.0, 100.0, 35), (0.05, 100.0, 57), (50.0, 100.0, 7)]
)
def test_at_rest_the_window_returns_to_its_maximum_within_six_seconds(
    floor: float, window_max: float, ticks: int
) -> None:
    law = Law(window_max, floor, start=floor)
    assert abs(ticks_to_rest(law) - ticks) <= 1


@pytest.mark.parametrize(
    ("pressure", "factor"), [(0.0, 1.15), (0.34, 0.34**-0.125), (0.79, 0.79**-0.125)]
)
def test_it_grows_after_three_calm_ticks_and_faster_when_calmer(
    pressure: float, factor: float
) -> None:
    law = Law(100.0, 1.0, start=10.0)
    assert [step(law, pressure) for _ in range(2)] == [
        "calm for 1 of 3 ticks",
        "calm for 2 of 3 ticks",
    ]
    assert law.window == 10.0
    for tick in (1, 2):
        why = step(law, pressure)
        assert law.window == pytest.approx(10.0 * factor**tick)
    assert why == "grows: calm for 4 ticks"


def test_one_tick_in_the_dead_band_ends_the_calm() -> None:
    law = Law(100.0, 1.0, start=10.0)
    for pressure in (0.5, 0.5, 0.8, 0.5, 0.5):
        step(law, pressure)
    assert law.window == 10.0
    step(law, 0.5)
    assert law.window > 10.0


def test_a_cut_names_the_event_loop_and_the_share_that_is_left() -> None:
    assert step(Law(100.0), 4.0, cause=Signal.LOOP) == (
        "cut to 50 %: event loop delay at 4.0 times its objective"
    )


@given(st.lists(st.floats(0.8, 1.2), max_size=50))
def test_inside_the_dead_band_nothing_moves(history: list[float]) -> None:
    law = Law(100.0, 1.0, start=10.0)
    assert all(step(law, pressure) == "in the dead band" for pressure in history)
    assert law.window == 10.0


@pytest.mark.parametrize(
    ("pressure", "factor"), [(2.1, 2.1**-0.5), (3.0, 3.0**-0.5), (4.0, 0.5), (16.0, 0.5)]
)
def test_hard_pressure_cuts_at_once_and_at_most_by_half(pressure: float, factor: float) -> None:
    law = Law(100.0)
    why = step(law, pressure)
    assert law.window == pytest.approx(100.0 * factor)
    more = " or more" if pressure == 16.0 else ""
    assert why == (
        f"cut to {100 * factor:.0f} %: store latency at {pressure:.1f} times its objective{more}"
    )


@pytest.mark.parametrize(
    ("first", "second", "counts"), [(1.5, 1.5, 1.5), (2.0, 1.3, 1.3), (1.3, 2.0, 1.3)]
)
def test_mild_pressure_cuts_with_its_second_tick_by_the_milder_of_the_two(
    first: float, second: float, counts: float
) -> None:
    law = Law(100.0)
    assert step(law, first).startswith("unchanged until a second tick confirms: store latency at ")
    assert law.window == 100.0
    assert step(law, second).startswith(f"cut to {100 * counts**-0.25:.0f} %: ")
    assert law.window == pytest.approx(100.0 * counts**-0.25)


def test_a_single_mild_tick_between_fine_ones_cuts_nothing() -> None:
    law = Law(100.0)
    for pressure in (1.9, 1.0, 1.9, 0.5, 1.9):
        step(law, pressure)
    assert law.window == 100.0


@pytest.mark.parametrize(
    ("waits", "held"),
    [
        ({}, 2),
        ({"sojourn_s": 0.2}, 2),
        ({"sojourn_s": 0.35, "response_s": 0.1}, 3),
        ({"sojourn_s": 0.1, "response_s": 0.45}, 4),
        ({"drift_s": 0.55, "response_s": 0.1}, 5),
        ({"sojourn_s": 60.0}, 9),
    ],
)
def test_after_a_cut_the_next_waits_until_the_first_has_shown(
    waits: dict[str, float], held: int
) -> None:
    """For the longest of the waits, or until percentiles have forgotten what was before."""
    law = Law(100.0)
    step(law, 4.0, **waits)
    for _ in range(held):
        why = step(law, 4.0, **waits)
        assert why == "held after a cut: store latency at 4.0 times its objective"
        assert law.window == 50.0
    step(law, 4.0)
    assert law.window == 25.0


def test_the_wait_is_time_however_late_ticks_are() -> None:
    """A loop that drifts by half a second ticks twice a second."""
    law = Law(100.0)
    step(law, 4.0, sojourn_s=60.0)
    step(law, 4.0, after_s=0.6)
    assert law.window == 50.0
    step(law, 4.0, after_s=0.6)
    assert law.window == 25.0


def test_the_wait_ends_early_when_the_pressure_has_more_than_doubled() -> None:
    law = Law(100.0)
    step(law, 4.0, sojourn_s=0.5)
    step(law, 8.0, sojourn_s=0.5)
    assert law.window == 50.0
    step(law, 8.1, sojourn_s=0.5)
    assert law.window == 25.0
    step(law, 16.0, sojourn_s=0.5)
    assert law.window == 25.0, "compared with the pressure of the second cut"


def test_a_wait_for_the_next_cut_does_not_stop_growth() -> None:
    """A loop that stood still for a minute has seen packets wait for a minute, and is calm now."""
    law = Law(100.0)
    step(law, 16.0, sojourn_s=60.0)
    for _ in range(3):
        step(law, 0.0)
    assert law.window == pytest.approx(57.5)


def test_at_the_floor_it_says_so() -> None:
    law = Law(100.0, 1.0, start=1.0)
    assert step(law, 3.0) == "at its minimum of 1: store latency at 3.0 times its objective"
    assert law.window == 1.0


def test_behind_a_bottleneck_it_grows_to_twice_the_window_in_force() -> None:
    law = Law(100.0, 1.0, start=10.0)
    whys = [step(law, 0.6, in_force=6.0) for _ in range(20)]
    assert law.window == 12.0
    assert whys[-1] == "kept at 12: the window in force is 6 (another node is the bottleneck)"


def test_behind_a_bottleneck_a_node_at_rest_still_returns_to_its_maximum() -> None:
    law = Law(100.0, 1.0, start=10.0)
    for _ in range(240):
        step(law, 0.4, in_force=6.0)
    assert law.window == 100.0


def test_a_cut_starts_from_a_window_that_has_an_effect() -> None:
    law = Law(100.0)
    step(law, 0.6, in_force=6.0)
    assert law.window == 100.0, "at rest nothing shrinks"
    why = step(law, 1.0, in_force=6.0)
    assert law.window == 12.0
    assert why == "kept at 12: the window in force is 6 (another node is the bottleneck)"
    law = Law(100.0)
    step(law, 4.0, in_force=6.0)
    assert law.window == 6.0


def test_losing_a_peer_takes_the_window_to_half_the_maximum_and_never_up() -> None:
    law = Law(100.0)
    law.peer_lost()
    assert law.window == 50.0
    law = Law(100.0, 1.0, start=10.0)
    law.peer_lost()
    assert law.window == 10.0
    law = Law(100.0, 80.0)
    law.peer_lost()
    assert law.window == 80.0


def test_a_floor_above_the_maximum_and_no_floor_are_bugs() -> None:
    with pytest.raises(AssertionError):
        Law(10.0, 11.0)
    with pytest.raises(AssertionError):
        Law(10.0, 0.0)
