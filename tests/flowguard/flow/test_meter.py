"""Laws of the load meter (design/overload.md 6.4, invariants 1 and 7 of 6.8):

1. The window stays within [1, limit_max], whatever is observed.
2. Higher pressure never gives a larger next window, from any state.
3. Above the dead band the window shrinks, inside it stands still, below it grows after 3 ticks.
4. From the floor it is back at 100 within 25 s of calm, and not with one jump.
5. The pressure is the worst signal's, and the cause is that signal.
"""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.flow import LoadMeter, NodeWindow, Signal
from flowguard.flow.meter import DEFAULT_OBJECTIVES, PRESSURE_MAX, TICK_S

PRESSURES = st.floats(0.0, 40.0, allow_nan=False)
HISTORIES = st.lists(PRESSURES, max_size=60)


def meter_after(history: list[float], limit_max: int = 100) -> LoadMeter:
    meter = LoadMeter(NodeWindow(limit_max))
    for pressure in history:
        press(meter, pressure)
    return meter


def press(meter: LoadMeter, pressure: float) -> int:
    """One tick under this pressure, by the queue's signal."""
    meter.observe(Signal.QUEUE, pressure * DEFAULT_OBJECTIVES[Signal.QUEUE])
    return meter.tick()


def floored() -> LoadMeter:
    meter = meter_after([PRESSURE_MAX] * 20)
    assert meter.node.limit == 1
    return meter


@given(HISTORIES, st.integers(1, 1_000))
def test_the_window_never_leaves_its_bounds(history: list[float], limit_max: int) -> None:
    meter = LoadMeter(NodeWindow(limit_max))
    for pressure in history:
        assert 1 <= press(meter, pressure) <= limit_max
        assert 0 <= meter.pressure <= PRESSURE_MAX


@given(HISTORIES, PRESSURES, PRESSURES)
def test_higher_pressure_never_gives_a_larger_next_window(
    history: list[float], one: float, other: float
) -> None:
    lower, higher = sorted((one, other))
    assert press(meter_after(history), higher) <= press(meter_after(history), lower)


@given(st.lists(st.floats(1.21, 40.0), min_size=1, max_size=40))
def test_pressure_above_the_dead_band_always_shrinks_the_window(history: list[float]) -> None:
    meter = LoadMeter(NodeWindow())
    before = 100.0
    for pressure in history:
        press(meter, pressure)
        assert meter._window < before or before == 1.0
        before = meter._window


@given(HISTORIES, st.lists(st.floats(0.81, 1.19), max_size=40))
def test_inside_the_dead_band_the_window_stands_still(
    history: list[float], calm: list[float]
) -> None:
    meter = meter_after(history)
    limit = meter.node.limit
    assert [press(meter, pressure) for pressure in calm] == [limit] * len(calm)


def test_growth_starts_with_the_third_calm_tick_in_a_row() -> None:
    meter = meter_after([PRESSURE_MAX])
    before = meter._window
    press(meter, 0.1)
    press(meter, 0.1)
    press(meter, 1.0)  # interrupts
    press(meter, 0.1)
    press(meter, 0.1)
    assert meter._window == before
    press(meter, 0.1)
    assert before < meter._window < before * 1.1


def test_a_saturated_node_is_at_one_packet_per_client_within_a_second() -> None:
    meter = LoadMeter(NodeWindow())
    limits = [press(meter, PRESSURE_MAX) for _ in range(round(1 / TICK_S))]
    assert limits == sorted(limits, reverse=True)
    assert limits[-1] == 1


def test_a_calm_node_is_back_at_a_hundred_within_twenty_five_seconds_without_a_jump() -> None:
    meter = floored()
    limits = [1] + [press(meter, 0.0) for _ in range(round(25 / TICK_S))]
    assert limits[-1] == 100
    assert limits == sorted(limits)
    assert limits[round(5 / TICK_S)] < 50
    assert all(after <= before * 1.05 + 1 for before, after in pairwise(limits))


def test_an_idle_node_stays_at_its_maximum() -> None:
    meter = LoadMeter(NodeWindow(7))
    assert {meter.tick() for _ in range(300)} == {7}


def test_what_was_observed_counts_for_one_tick_only() -> None:
    meter = LoadMeter(NodeWindow())
    press(meter, 5.0)
    assert meter.pressure == pytest.approx(5.0)
    meter.tick()
    assert meter.pressure == 0.0
    assert meter.cause is None


@given(st.dictionaries(st.sampled_from([Signal.QUEUE, Signal.LOOP, Signal.STORE]), PRESSURES))
def test_the_worst_signal_is_the_pressure_and_the_cause(pressures: dict[Signal, float]) -> None:
    meter = LoadMeter(NodeWindow())
    for signal, pressure in pressures.items():
        meter.observe(signal, pressure * DEFAULT_OBJECTIVES[signal] / 2)
        meter.observe(signal, pressure * DEFAULT_OBJECTIVES[signal])
        meter.observe(signal, 0.0)
    meter.tick()
    worst = max(pressures.values(), default=0.0)
    assert meter.pressure == pytest.approx(min(PRESSURE_MAX, worst))
    if worst > 1e-9:
        assert meter.cause is not None
        assert pressures[meter.cause] == pytest.approx(worst)


@pytest.mark.parametrize(
    ("used", "pressure"), [(0.70, 1.0), (0.80, 2.0), (0.90, 4.0), (1.00, 8.0), (5.0, PRESSURE_MAX)]
)
def test_memory_presses_once_at_seventy_and_fourfold_at_ninety_per_cent(
    used: float, pressure: float
) -> None:
    meter = LoadMeter(NodeWindow())
    meter.observe(Signal.MEMORY, used)
    meter.tick()
    assert meter.pressure == pytest.approx(pressure)


def test_a_process_that_uses_little_memory_is_calm() -> None:
    meter = floored()
    for _ in range(250):
        meter.observe(Signal.MEMORY, 0.5)
        meter.tick()
    assert meter.node.limit == 100


@given(st.floats(0.5, 4.0))
def test_closed_loop_settles_instead_of_swinging(difficulty: float) -> None:
    """Queue delay proportional to the window (closed clients): ln P = ln W + const."""
    meter = LoadMeter(NodeWindow())
    seen = []
    for _ in range(200):
        pressure = difficulty * meter.node.limit / 20
        press(meter, pressure)
        seen.append(pressure)
    assert all(0.6 <= pressure <= 1.5 for pressure in seen[-50:]) or meter.node.limit in (1, 100)
    assert max(seen[-50:]) - min(seen[-50:]) <= difficulty / 20 * 2 + 1e-9
