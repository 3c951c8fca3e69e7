"""Laws of pressure:

1. At its objective each signal is 1, and alone it is the pressure and the cause.
2. The pressure is the worst part, capped at 16; the cause is that part's signal.
3. More of any signal never means less pressure.
4. Windows do not answer memory of waiting CONNECTs; each signal has a part that answers it.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.config import FlowSettings
from flowguard.flow.load.pressure import (
    objectives_of,
    pressure_of,
    slots_pressure_of,
    window_pressure_of,
)
from flowguard.flow.load.signals import PRESSURE_MAX, Objectives, Sample, Signal, StoreState

OBJECTIVES = Objectives()
CALM = Sample(0.0)
DURATIONS_S = st.floats(0.0, 100.0)
SHARES = st.floats(0.0, 2.0)
SAMPLES = st.builds(
    Sample,
    now_s=st.just(0.0),
    sojourn_s=DURATIONS_S,
    drift_s=DURATIONS_S,
    commit_s=DURATIONS_S,
    store_state=st.sampled_from(StoreState),
    replication_age_s=DURATIONS_S,
    memory_share=SHARES,
    unfinished_share=SHARES,
)


@pytest.mark.parametrize(
    ("sample", "signal"),
    [
        (Sample(0.0, sojourn_s=0.025), Signal.QUEUE),
        (Sample(0.0, drift_s=0.050), Signal.LOOP),
        (Sample(0.0, commit_s=0.075), Signal.STORE),
        (Sample(0.0, replication_age_s=0.100), Signal.REPLICATION),
        (Sample(0.0, memory_share=0.70), Signal.MEMORY),
        (Sample(0.0, unfinished_share=0.70), Signal.MEMORY),
    ],
)
def test_each_signal_is_one_at_its_objective(sample: Sample, signal: Signal) -> None:
    pressure = pressure_of(sample, OBJECTIVES)
    assert pressure.value == pytest.approx(1.0)
    assert pressure.cause is signal
    assert {each for each, part in pressure.parts.items() if part} == {signal}


def test_a_node_that_has_seen_nothing_is_calm_without_a_cause() -> None:
    pressure = pressure_of(CALM, OBJECTIVES)
    assert pressure.value == 0.0
    assert pressure.cause is None


@given(SAMPLES)
def test_the_worst_part_is_the_pressure_and_its_signal_the_cause(sample: Sample) -> None:
    pressure = pressure_of(sample, OBJECTIVES)
    assert set(pressure.parts) == set(Signal)
    worst = max(pressure.parts.values())
    assert pressure.value == min(PRESSURE_MAX, worst)
    if pressure.cause is None:
        assert worst == 0.0
    else:
        assert pressure.parts[pressure.cause] == worst > 0.0


def test_the_cause_is_the_worst_even_where_several_are_beyond_the_cap() -> None:
    pressure = pressure_of(Sample(0.0, sojourn_s=1.0, commit_s=10.0), OBJECTIVES)
    assert pressure.value == PRESSURE_MAX
    assert pressure.cause is Signal.STORE


@given(
    SAMPLES,
    st.sampled_from(
        [
            "sojourn_s",
            "drift_s",
            "commit_s",
            "replication_age_s",
            "memory_share",
            "unfinished_share",
        ]
    ),
    st.floats(0.0, 10.0),
)
def test_more_of_any_signal_is_never_less_pressure(sample: Sample, name: str, more: float) -> None:
    worse = replace(sample, **{name: getattr(sample, name) + more})
    assert pressure_of(worse, OBJECTIVES).value >= pressure_of(sample, OBJECTIVES).value


@pytest.mark.parametrize(
    ("state", "commit_s", "part"),
    [
        (StoreState.FLOWING, 0.010, 0.2),
        (StoreState.DELAYED, 0.010, 1.5),
        (StoreState.DELAYED, 0.100, 2.0),
        (StoreState.STOPPED, 0.010, 4.0),
        (StoreState.STOPPED, 0.500, 10.0),
    ],
)
def test_the_state_of_the_store_is_the_least_it_presses(
    state: StoreState, commit_s: float, part: float
) -> None:
    objectives = replace(OBJECTIVES, store_s=0.050)
    pressure = pressure_of(Sample(0.0, commit_s=commit_s, store_state=state), objectives)
    assert pressure.parts[Signal.STORE] == pytest.approx(part)


@pytest.mark.parametrize("name", ["memory_share", "unfinished_share"])
@pytest.mark.parametrize(
    ("share", "value"),
    [(0.0, 0.0), (0.50, 0.25), (0.70, 1.0), (0.80, 2.0), (0.90, 4.0), (1.1, 16.0), (1e9, 16.0)],
)
def test_memory_doubles_its_pressure_every_ten_points(
    name: str, share: float, value: float
) -> None:
    pressure = pressure_of(replace(CALM, **{name: share}), OBJECTIVES)
    assert pressure.value == pytest.approx(value)


def test_the_worse_of_the_two_memories_counts() -> None:
    sample = Sample(0.0, memory_share=0.8, unfinished_share=0.9)
    assert pressure_of(sample, OBJECTIVES).parts[Signal.MEMORY] == pytest.approx(4.0)


def test_objectives_are_the_settings() -> None:
    assert objectives_of(FlowSettings()) == Objectives()
    settings = FlowSettings(
        queue_objective_s=1.0,
        loop_objective_s=2.0,
        store_objective_s=3.0,
        replication_objective_s=4.0,
        memory_objective=0.5,
    )
    assert objectives_of(settings) == Objectives(1.0, 2.0, 3.0, 4.0, 0.5)


def test_pressure_follows_the_objectives() -> None:
    objectives = replace(OBJECTIVES, queue_s=0.100, memory_share=0.50)
    sample = Sample(0.0, sojourn_s=0.050, memory_share=0.50)
    parts = pressure_of(sample, objectives).parts
    assert parts[Signal.QUEUE] == pytest.approx(0.5)
    assert parts[Signal.MEMORY] == pytest.approx(1.0)


@given(SAMPLES, SHARES)
def test_what_waiting_connects_hold_is_no_pressure_on_windows(
    sample: Sample, waiting_share: float
) -> None:
    crowded = replace(
        sample, memory_share=sample.memory_share + waiting_share, waiting_share=waiting_share
    )
    with_it, without = window_pressure_of(crowded, OBJECTIVES), pressure_of(sample, OBJECTIVES)
    assert with_it.value == pytest.approx(without.value)
    assert pressure_of(crowded, OBJECTIVES).value >= with_it.value * (1 - 1e-9)


@given(SAMPLES, SHARES)
def test_memory_is_no_pressure_on_connects_in_process(sample: Sample, memory_share: float) -> None:
    without = replace(sample, memory_share=0.0, unfinished_share=0.0)
    pressed = pressure_of(replace(sample, memory_share=memory_share), OBJECTIVES)
    assert slots_pressure_of(pressed) == pressure_of(without, OBJECTIVES).value
