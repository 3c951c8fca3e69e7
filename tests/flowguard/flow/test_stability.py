"""The closed loop: observer, pressure and law around a small fluid plant, on virtual time.

The plant is a first-in first-out server with clients that always have more to send: as many packets
are in process as the windows allow. A new window is in force only after a delay (the way to the
client, or gossip). The service rate is noisy within the stated share, with a new value each tick.
So the queue's delay is proportional to the window, and the window at which P is 1 is known
beforehand.

A *leg* is a way of ln W, up or down, of at least 0.2; a cycle has two, and repeats.
"""

import math
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from random import Random
from statistics import fmean

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flowguard.flow.law import WindowLaw
from flowguard.flow.load.observer import Observer
from flowguard.flow.load.pressure import pressure_of
from flowguard.flow.load.signals import TICK_S, Objectives, Pressure, Sample

OBJECTIVES = Objectives()
STEP_S = 0.0025
SWING = 0.2
Law = Callable[[Pressure, Sample, float], float]


class Plant:
    """A fluid queue: 2.5 ms steps, work in packets, FIFO by time of admission."""

    def __init__(
        self, *, objective_window: float, clients: int, delay_s: float, noise: float, seed: int
    ) -> None:
        self.clients = clients
        self.rate = clients * objective_window / OBJECTIVES.queue_s
        """Packets per second: with the objective window they wait 25 ms."""
        self.now_s = 0.0
        self.served = 0.0
        self.in_force = 0.0
        self.other_window = math.inf
        """Window that another node on the path of all clients allows."""
        self._noise = noise
        self._random = Random(seed)
        self._observer = Observer()
        self._delay_s = delay_s
        self._windows: deque[tuple[float, float]] = deque()
        self._queue: deque[tuple[float, float]] = deque()
        self._in_process = 0.0

    def tick(self, window: float) -> Sample:
        """Run for 100 ms; `window` comes into force after the delay."""
        self._windows.append((self.now_s + self._delay_s, window))
        rate = self.rate * self._random.uniform(1 - self._noise, 1 + self._noise)
        for _ in range(round(TICK_S / STEP_S)):
            while len(self._windows) > 1 and self._windows[1][0] <= self.now_s + 1e-9:
                self._windows.popleft()
            self.in_force = min(self.other_window, self._windows[0][1])
            self._admit()
            self._serve(rate)
            self.now_s += STEP_S
        if self._queue:
            self._observer.waiting(self.now_s - self._queue[0][0])
        return self._observer.take(self.now_s, round(self._in_process), self.clients)

    def _admit(self) -> None:
        room = self.clients * self.in_force - self._in_process
        if room > 0:
            self._queue.append((self.now_s, room))
            self._in_process += room

    def _serve(self, rate: float) -> None:
        work = rate * STEP_S
        self.served += work
        while self._queue and work > 0:
            admitted_s, amount = self._queue.popleft()
            sojourn_s = self.now_s + STEP_S - work / rate - admitted_s
            self._observer.started(sojourn_s)
            done = min(work, amount)
            work -= done
            self._in_process -= done
            if amount - done > 1e-9:
                self._queue.appendleft((admitted_s, amount - done))
        self.served -= work


def run(
    plant: Plant, law: Law, window: float, seconds: float, seen: list[tuple[float, float]]
) -> float:
    """Close the loop for some time; appends (P, W) per tick, returns the last window."""
    for _ in range(round(seconds / TICK_S)):
        sample = plant.tick(window)
        pressure = pressure_of(sample, OBJECTIVES)
        window = law(pressure, sample, plant.in_force)
        seen.append((pressure.value, window))
    return window


def law_of(start: float, floor: float = 1.0) -> Law:
    law = WindowLaw(100.0, floor, start)
    return lambda pressure, sample, in_force: law.step(pressure, sample, in_force)[0]


def memoryless(pressure: Pressure, sample: Sample, in_force: float) -> float:
    """A level that maps to a window: 100 at no load, 50 at the objective, 1 at twice of it."""
    return max(1.0, 100.0 * (1.0 - pressure.value / 2))


def plainest(start: float) -> Law:
    """The plainest form of the law, for one node: cuts at once, grows by 1.05."""
    window, calm, hold, cause = start, 0, 0, 0.0

    def step(pressure: Pressure, sample: Sample, in_force: float) -> float:
        nonlocal window, calm, hold, cause
        p, held, hold = pressure.value, hold > 0, hold - 1
        calm = calm + 1 if p < 0.8 else 0
        if calm >= 3:
            window *= min(1.05, p**-0.25)
        elif p > 1.2 and (not held or p > 2 * cause):
            window *= max(0.5, p ** -(0.5 if p > 2 else 0.25))
            hold, cause = max(1, math.ceil(sample.sojourn_s / TICK_S)), p
        window = min(100.0, max(1.0, window))
        return window

    return step


def legs(windows: list[float]) -> int:
    """Alternating ways of ln W that are longer than `SWING`."""
    low = high = math.log(windows[0])
    direction = count = 0
    for window in windows:
        value = math.log(window)
        low, high = min(low, value), max(high, value)
        if direction >= 0 and high - value > SWING:
            direction, low, count = -1, value, count + 1
        elif direction <= 0 and value - low > SWING:
            direction, high, count = 1, value, count + 1
    return count


def settled_after_s(seen: list[tuple[float, float]], low: float = 0.5, high: float = 2.0) -> float:
    """The time of the last tick at which P was outside [low, high], and one more."""
    outside = [number for number, (p, _) in enumerate(seen) if not low <= p <= high]
    return (outside[-1] + 1) * TICK_S if outside else 0.0


def share_in_band(seen: list[tuple[float, float]]) -> float:
    return sum(0.5 <= p <= 2.0 for p, _ in seen) / len(seen)


DELAYS_S = st.floats(0.0, 0.3)
NOISES = st.floats(0.0, 0.3)
CLIENTS = st.sampled_from([1, 20, 1_000])
SEEDS = st.integers(0, 2**32)


@st.composite
def starts(draw: st.DrawFn) -> tuple[float, float, float]:
    """Return floor, window at the objective, and first window, up to eighty times off either way.

    From further off no law could settle within 5 s: it is 2 s of work already admitted, or more
    than 5 s of growth by 1.10 a tick.
    """
    floor = draw(st.sampled_from([1.0, 0.05]))
    at_objective = floor * math.exp(draw(st.floats(0.25, math.log(80.0 / floor))))
    start = at_objective * math.exp(draw(st.floats(-math.log(80.0), math.log(80.0))))
    return floor, at_objective, min(100.0, max(floor, start))


@pytest.mark.slow
@given(starts(), CLIENTS, DELAYS_S, NOISES, SEEDS)
@example((1.0, 6.0, 100.0), 20, 0.3, 0.3, 1)
@example((1.0, 75.0, 1.0), 20, 0.3, 0.3, 2)
@example((1.0, 1.3, 100.0), 1_000, 0.3, 0.3, 3)
@example((0.05, 0.1, 8.0), 1_000, 0.3, 0.3, 4)
def test_constant_load_settles_within_five_seconds_and_does_not_cycle(
    windows: tuple[float, float, float], clients: int, delay_s: float, noise: float, seed: int
) -> None:
    floor, at_objective, start = windows
    plant = Plant(
        objective_window=at_objective, clients=clients, delay_s=delay_s, noise=noise, seed=seed
    )
    seen: list[tuple[float, float]] = []
    run(plant, law_of(start, floor), start, 15.0, seen)
    assert all(floor <= window <= 100.0 for _, window in seen)
    settled = seen[50:]
    assert share_in_band(settled) >= 0.95
    assert legs([window for _, window in settled]) <= 2, "a cycle would repeat"


@pytest.mark.slow
@given(st.floats(4.0, 24.0), st.floats(0.8, 1.2), CLIENTS, DELAYS_S)
def test_a_capacity_step_of_four_either_way_is_settled_within_two_seconds(
    at_objective: float, pressure: float, clients: int, delay_s: float
) -> None:
    """From anywhere in the dead band: P is back in [0.5, 2] for good, and in use all the time."""
    for factor in (0.25, 4.0):
        plant = Plant(
            objective_window=at_objective, clients=clients, delay_s=delay_s, noise=0.0, seed=0
        )
        law = law_of(at_objective * pressure)
        window = run(plant, law, at_objective * pressure, 3.0, [])
        plant.rate *= factor
        served, seen = plant.served, list[tuple[float, float]]()
        run(plant, law, window, 10.0, seen)
        assert settled_after_s(seen) <= 2.0
        assert legs([window for _, window in seen]) <= 2, "at most one overshoot, no ringing"
        assert plant.served - served >= 0.999 * 10.0 * plant.rate


@given(st.floats(5.0, 100.0), DELAYS_S)
def test_from_the_maximum_it_settles_within_two_seconds(
    at_objective: float, delay_s: float
) -> None:
    plant = Plant(objective_window=at_objective, clients=20, delay_s=delay_s, noise=0.0, seed=0)
    seen: list[tuple[float, float]] = []
    run(plant, law_of(100.0), 100.0, 10.0, seen)
    assert settled_after_s(seen) <= 2.0


@given(DELAYS_S, NOISES, SEEDS)
def test_a_memoryless_map_oscillates_in_the_same_plant(
    delay_s: float, noise: float, seed: int
) -> None:
    """The control: what is measured here is the law's doing, not the plant's."""
    plant = Plant(objective_window=6.0, clients=20, delay_s=delay_s, noise=noise, seed=seed)
    seen: list[tuple[float, float]] = []
    run(plant, memoryless, 100.0, 15.0, seen)
    settled = seen[50:]
    assert share_in_band(settled) < 0.5
    assert legs([window for _, window in settled]) >= 10
    assert fmean(pressure for pressure, _ in settled) > 4.0


def mean_legs(law: Callable[[], Law]) -> float:
    """In ten seconds, with 30 % noise, over delays of 0 to 300 ms and ten seeds each."""
    counts = []
    for delay_s in (0.0, 0.1, 0.2, 0.3):
        for seed in range(10):
            plant = Plant(objective_window=6.0, clients=20, delay_s=delay_s, noise=0.3, seed=seed)
            seen: list[tuple[float, float]] = []
            run(plant, law(), 100.0, 15.0, seen)
            counts.append(legs([window for _, window in seen[50:]]))
    return fmean(counts)


@pytest.mark.slow
def test_it_swings_less_with_noise_than_the_law_plainest() -> None:
    assert mean_legs(lambda: law_of(100.0)) <= 0.15
    assert mean_legs(lambda: plainest(100.0)) >= 0.5


@pytest.mark.parametrize(("law", "low", "high"), [(law_of(5.0), 1.0, 2.1), (plainest(5.0), 2.9, 4)])
def test_it_uses_a_quadrupled_capacity_sooner_than_the_law_plainest(
    law: Law, low: float, high: float
) -> None:
    """Time until P is in the dead band again."""
    for delay_s in (0.0, 0.3):
        plant = Plant(objective_window=5.0, clients=20, delay_s=delay_s, noise=0.0, seed=0)
        window = run(plant, law, 5.0, 5.0, [])
        plant.rate *= 4.0
        seen: list[tuple[float, float]] = []
        run(plant, law, window, 10.0, seen)
        assert low <= settled_after_s(seen, 0.79, 1.21) <= high


def test_a_node_behind_a_bottleneck_is_not_flooded_when_the_bottleneck_goes() -> None:
    """Anti-windup: at half its objective and more it allows twice what is in force, not 100."""

    def worst(law: Law) -> float:
        plant = Plant(objective_window=9.0, clients=20, delay_s=0.2, noise=0.0, seed=0)
        plant.other_window = 6.0
        window = run(plant, law, 9.0, 10.0, [])
        plant.other_window = math.inf
        seen: list[tuple[float, float]] = []
        run(plant, law, window, 10.0, seen)
        return max(p for p, _ in seen)

    law = WindowLaw(100.0, 1.0, 9.0)
    assert worst(law_of(9.0)) <= 1.4
    assert worst(lambda pressure, sample, in_force: law.step(pressure, sample)[0]) >= 10.0


def test_one_cut_per_feedback_delay_does_not_overshoot() -> None:
    """A hundredfold overload: every cut waits for the one before to show, none is too many."""
    plant = Plant(objective_window=6.0, clients=20, delay_s=0.0, noise=0.0, seed=0)
    seen: list[tuple[float, float]] = []
    run(plant, law_of(100.0), 100.0, 10.0, seen)
    windows = [window for _, window in seen]
    assert all(later <= earlier for earlier, later in pairwise(windows))
    assert 0.8 * 6.0 <= windows[-1] <= 1.3 * 6.0
