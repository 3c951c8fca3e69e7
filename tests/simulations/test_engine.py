import os
import subprocess
import sys
from math import nextafter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.engine import Engine, Lane

INSTANTS = st.sampled_from([0.0, 0.1, nextafter(0.25, 0.0), 0.25, 0.5, 0.5, 1.0, 2.0])
"""Few, so that many are equal."""


@given(st.lists(INSTANTS))
def test_events_happen_in_the_order_of_time_and_at_one_instant_in_that_of_scheduling(
    times: list[float],
) -> None:
    engine = Engine()
    happened: list[tuple[float, int]] = []
    for number, when_s in enumerate(times):
        engine.at(when_s, lambda number: happened.append((engine.now_s, number)), number)
    assert engine.run(2.0)
    assert happened == sorted((when_s, number) for number, when_s in enumerate(times))
    assert engine.events_count == len(times)


@given(
    st.lists(st.tuples(INSTANTS, st.lists(INSTANTS, max_size=3)), max_size=20),
    st.lists(st.tuples(INSTANTS, INSTANTS), max_size=3),
)
def test_what_is_scheduled_on_the_way_comes_after_all_that_was_scheduled_for_that_instant(
    plan: list[tuple[float, list[float]]], pauses: list[tuple[float, float]]
) -> None:
    """By events, and by others while the run pauses."""
    engine = Engine()
    scheduled: list[float] = []
    happened: list[int] = []

    def happen(event: tuple[int, list[float]]) -> None:
        number, delays = event
        happened.append(number)
        assert engine.now_s == scheduled[number]
        for delay_s in delays:
            schedule(engine.now_s + delay_s, [])

    def schedule(when_s: float, delays: list[float]) -> None:
        engine.at(when_s, happen, (len(scheduled), delays))
        scheduled.append(when_s)

    for when_s, delays in plan:
        schedule(when_s, delays)
    for pause_s, delay_s in pauses:
        assert engine.run(engine.now_s + pause_s)
        schedule(engine.now_s + delay_s, [])
    assert engine.run(20.0)
    assert happened == sorted(range(len(scheduled)), key=lambda number: scheduled[number])


def test_a_watch_sees_an_instant_before_all_else_happens_and_leaves_no_trace() -> None:
    traces = []
    seen: list[int] = []
    for watched in (False, True):
        engine = Engine(traced=True)
        happened: list[int] = []
        engine.at(1.0, happened.append, 1)
        if watched:
            engine.watch(1.0, lambda _, happened=happened: seen.append(len(happened)), None)
        engine.at(1.0, happened.append, 2)
        engine.run(2.0)
        assert happened == [1, 2]
        traces.append((engine.trace, engine.events_count))
    assert seen == [0]
    assert traces[0] == traces[1]


def test_nothing_is_scheduled_in_the_past() -> None:
    engine = Engine()
    engine.run(1.0)
    with pytest.raises(AssertionError):
        engine.at(0.9, lambda _: None, None)


def test_a_run_may_be_paused_and_stopped_and_goes_on_where_it_was() -> None:
    engine = Engine()
    happened: list[int] = []
    for number in range(6):
        engine.at(float(number), happened.append, number)
    engine.at(3.5, lambda _: engine.stop(), None)
    assert engine.run(1.5)
    assert engine.now_s == 1.5
    assert not engine.run(9.0)
    assert (happened, engine.now_s) == ([0, 1, 2, 3], 3.5)
    assert engine.run(9.0)
    assert (happened, engine.now_s) == ([0, 1, 2, 3, 4, 5], 9.0)
    assert (engine.events_count, len(engine)) == (7, 0)


@given(
    st.lists(st.tuples(st.floats(0, 5), st.booleans())),
    st.lists(st.floats(0, 6)),
)
def test_a_lane_is_a_heap_for_those_who_come_in_order(
    items: list[tuple[float, bool]], pauses: list[float]
) -> None:
    """Added from events in between, some of them dead before they are due."""
    engine = Engine()
    dead: set[int] = set()
    happened: list[tuple[float, int]] = []

    def happen(number: int) -> None:
        happened.append((engine.now_s, number))

    lane = Lane(engine, happen, dead.__contains__)
    order = sorted(items, key=lambda item: item[0])

    def add(number: int) -> None:
        lane.add(engine.now_s + 1.0, number)
        if order[number][1]:
            dead.add(number)

    for number, (when_s, _) in enumerate(order):
        engine.at(when_s, add, number)
    for pause_s in sorted(pauses):
        engine.run(pause_s)
    engine.run(9.0)
    living = [(when_s + 1.0, n) for n, (when_s, is_dead) in enumerate(order) if not is_dead]
    assert happened == living
    assert len(lane) == 0


def test_an_event_of_a_lane_may_add_to_it() -> None:
    engine = Engine()
    happened: list[float] = []

    def again(rounds: int) -> None:
        happened.append(engine.now_s)
        if rounds:
            lane.add(engine.now_s + 1.0, rounds - 1)

    lane = Lane(engine, again)
    lane.add(1.0, 3)
    engine.run(9.0)
    assert happened == [1.0, 2.0, 3.0, 4.0]


TRACED = """
import sys
from simulations.draws import Draws, random_for
from simulations.engine import Engine

engine = Engine(traced=True)
draws = Draws(int(sys.argv[1]), "a purpose")
clients = {f"client-{number}": number for number in range(20)}
by_turn = random_for(1, "by turn")

def act(name):
    count = engine.events_count
    engine.at(engine.now_s + draws.uniform(clients[name], len(engine)), act, name)
    if by_turn.random() < 0.01:
        engine.at(engine.now_s, act, name)

for name in clients:
    engine.at(0.0, act, name)
engine.run(20.0)
print(engine.trace)
"""


def _trace(seed: int, hash_seed: int) -> str:
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed)}
    command = [sys.executable, "-c", TRACED, str(seed)]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_the_same_seed_gives_the_same_trace_whatever_the_hash_seed_and_another_one_does_not() -> (
    None
):
    first = _trace(1, 0)
    assert len(first.strip()) == 32
    assert _trace(1, 0) == first
    assert _trace(1, 12_345) == first
    assert _trace(2, 0) != first
