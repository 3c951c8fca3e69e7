"""Laws of the concurrency limit:

1. It stays within [4, maximum], or at the maximum if that is smaller.
2. It grows by 15 % a tick while service is below its objective and half of its slots are in use. It
   doubles with each round of CONNECTs that are fast and use all slots.
3. Only its own effects count: the CONNECTs' own time, beyond that of packets, and a pressure of the
   node above what windows hold. Publishers without end do not wear it down.
4. Afterwards higher pressure never gives a larger next limit, from any state.
5. An unused limit does not grow: after any calm, a crowd meets a gate.
6. Only CONNECTs admitted after a cut judge it: one cut per feedback delay.
7. Against a server of fixed speed it settles at a service time of about its objective.
"""

from collections import deque
from collections.abc import Sequence
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.flow.gate.concurrency import (
    LIMIT_MIN,
    LIMIT_START,
    NODE_FROM,
    UNUSED_S,
    ConcurrencyLimit,
)
from flowguard.flow.load.signals import PRESSURE_MAX, TICK_S
from flowguard.flow.verdict import Cut

OBJECTIVE_S = 0.25
FAST_S = 0.1 * OBJECTIVE_S
CALM_S = 0.5 * OBJECTIVE_S
"""Below the objective, and not fast."""
SLOW_S = 2.0 * OBJECTIVE_S

PRESSURES = st.floats(0.0, PRESSURE_MAX, allow_nan=False)
ROUNDS = st.tuples(st.floats(0.0, 4.0), st.integers(0, 40))
"""Rounds of CONNECTs: their service time and their number."""
HISTORIES = st.lists(st.one_of(PRESSURES, ROUNDS), max_size=40)


class Bench:
    """A limit, and a clock."""

    def __init__(self, limit_max: int = 1_024) -> None:
        self.law = ConcurrencyLimit(limit_max, OBJECTIVE_S)
        self.now_s = 0.0

    @property
    def limit(self) -> int:
        return self.law.limit

    def serve(self, service_s: float, count: int | None = None, *, used: int | None = None) -> None:
        """`count` CONNECTs at once (absent: as many as there are places), all done together."""
        count = self.limit if count is None else count
        admitted_s = self.now_s
        self.law.admitted(count if used is None else used)
        self.now_s += service_s
        for _ in range(count):
            self.law.settled(admitted_s, self.now_s)

    def tick(
        self,
        pressure: float = 0.0,
        in_process: int = 0,
        packet_s: float = 0.0,
    ) -> int:
        self.now_s += TICK_S
        self.law.tick(self.now_s, pressure, in_process, packet_s)
        return self.limit

    def replay(self, history: Sequence[float | tuple[float, int]]) -> "Bench":
        for event in history:
            if isinstance(event, tuple):
                self.serve(*event)
            else:
                self.tick(event)
        return self


def settled_bench(limit_max: int = 1_024) -> Bench:
    """At its maximum, after a crowd that was served fast; what it took is forgotten."""
    bench = Bench(limit_max)
    while bench.limit < limit_max:
        bench.serve(FAST_S)
        bench.tick()
    bench.now_s += 1.0
    bench.tick()
    return bench


@pytest.mark.parametrize(("limit_max", "start"), [(1_024, LIMIT_START), (10, 10), (3, 3), (1, 1)])
def test_it_starts_at_sixteen_or_at_its_maximum(limit_max: int, start: int) -> None:
    assert Bench(limit_max).limit == start


@given(HISTORIES, st.integers(1, 2_000))
def test_it_never_leaves_its_bounds(
    history: list[float | tuple[float, int]], limit_max: int
) -> None:
    bench = Bench(limit_max)
    for event in history:
        bench.replay([event])
        assert min(LIMIT_MIN, limit_max) <= bench.limit <= limit_max
    bench.law.restart(bench.now_s)
    assert bench.limit == min(LIMIT_MIN, limit_max)


def growth(bench: Bench, ticks: int, used: float = 1.0, service_s: float = CALM_S) -> list[int]:
    """The limits after ticks in each of which this share of it was served."""
    seen = []
    for _ in range(ticks):
        bench.serve(service_s, used=ceil(used * bench.limit))
        seen.append(bench.tick())
    return seen


def test_it_grows_by_fifteen_percent_a_tick_after_three_calm_ones() -> None:
    assert growth(Bench(limit_max=40), 10) == [16, 16, 18, 21, 24, 27, 32, 37, 40, 40]


def test_it_doubles_with_each_round_that_is_fast_and_uses_all_slots() -> None:
    bench = Bench(limit_max=200)
    limits = []
    for _ in range(5):
        bench.serve(FAST_S)
        limits.append(bench.limit)
    assert limits == [32, 64, 128, 200, 200]
    assert set(growth(Bench(), 2, used=0.9, service_s=FAST_S)) == {LIMIT_START}


def test_one_connect_that_is_not_fast_begins_the_count_of_a_round_again() -> None:
    bench = Bench()
    bench.law.admitted(LIMIT_START)
    for service_s in [*[FAST_S] * (LIMIT_START - 1), CALM_S, *[FAST_S] * (LIMIT_START - 1)]:
        bench.law.settled(0.0, service_s)
    assert bench.limit == LIMIT_START
    bench.law.settled(0.0, FAST_S)
    assert bench.limit == 2 * LIMIT_START


def test_connects_admitted_before_the_last_doubling_do_not_double_it_again() -> None:
    bench = Bench()
    bench.law.admitted(LIMIT_START)
    for _ in range(4 * LIMIT_START):
        bench.law.settled(0.0, FAST_S)
    assert bench.limit == 2 * LIMIT_START


def test_it_does_not_double_after_a_tick_without_reason_to_grow() -> None:
    bench = Bench()
    bench.tick(NODE_FROM + 0.1)
    limit = bench.limit
    bench.serve(FAST_S)
    assert bench.limit == limit


def test_it_does_not_grow_while_more_than_half_of_its_slots_are_free() -> None:
    assert set(growth(Bench(), 10, used=0.4)) == {LIMIT_START}


def test_one_slow_connect_in_ten_is_not_slow_service() -> None:
    bench = Bench()
    for _ in range(4):
        bench.serve(SLOW_S, 1)
        bench.serve(FAST_S, 9, used=LIMIT_START)
        bench.tick()
    assert bench.limit > LIMIT_START


def test_a_node_that_its_windows_hold_at_the_objective_lets_it_grow() -> None:
    bench = Bench()
    for _ in range(4):
        bench.serve(FAST_S)
        bench.tick(NODE_FROM)
    assert bench.limit > LIMIT_START


def test_each_cut_is_counted_by_what_it_is_for() -> None:
    bench = settled_bench(32)
    assert bench.law.cuts == {}
    bench.tick(2 * NODE_FROM)
    assert bench.law.cuts == {Cut.PRESSURE: 1}
    for _ in range(30):
        bench.serve(4 * OBJECTIVE_S)
        bench.tick()
    assert bench.limit == LIMIT_MIN
    assert bench.law.cuts[Cut.SERVICE] > 0
    counted = dict(bench.law.cuts)
    bench.tick(2 * NODE_FROM)
    assert bench.law.cuts == counted, "at its minimum it is not cut"


@given(HISTORIES, PRESSURES, PRESSURES)
def test_higher_pressure_never_gives_a_larger_next_limit(
    history: list[float | tuple[float, int]], one: float, other: float
) -> None:
    lower, higher = [Bench().replay(history).tick(pressure) for pressure in sorted((one, other))]
    assert higher <= lower


@pytest.mark.parametrize("minimum", [False, True])
def test_after_a_minute_of_calm_a_crowd_finds_the_slots_that_a_node_starts_with(
    minimum: bool,
) -> None:
    bench = settled_bench()
    for _ in range(30 * minimum):
        bench.tick(16.0)
    for _ in range(600):
        bench.tick()
    assert bench.limit == LIMIT_START


def test_after_the_loss_of_a_peer_it_starts_again_at_four_and_grows() -> None:
    bench = settled_bench(64)
    bench.law.restart(bench.now_s)
    assert growth(bench, 7) == [4, 4, 4, 5, 6, 6, 8]


@given(HISTORIES, st.floats(0.01, 4.0), st.floats(0.01, 4.0))
def test_slower_service_never_gives_a_larger_next_limit(
    history: list[float | tuple[float, int]], one: float, other: float
) -> None:
    limits = []
    for service_s in sorted((one, other)):
        bench = Bench().replay(history)
        bench.now_s += 5.0
        for _ in range(200):
            bench.law.settled(bench.now_s - service_s, bench.now_s)
        limits.append(bench.tick())
    assert limits[1] <= limits[0]


@pytest.mark.parametrize(("pressure", "limit"), [(NODE_FROM, 1_024), (4.0, 724), (16.0, 512)])
def test_pressure_that_windows_do_not_hold_cuts_by_its_fourth_root(
    pressure: float, limit: int
) -> None:
    assert settled_bench().tick(pressure) == limit


@pytest.mark.parametrize(("service_s", "limit"), [(SLOW_S, 861), (1_000 * OBJECTIVE_S, 512)])
def test_slow_service_is_pressure_like_any_other(service_s: float, limit: int) -> None:
    bench = settled_bench()
    bench.serve(service_s)
    assert bench.tick() == limit


def test_a_cut_waits_for_its_effect_before_the_next() -> None:
    bench = settled_bench()
    bench.serve(SLOW_S)
    after = bench.tick()
    before_the_cut_s = bench.now_s - 0.01
    for _ in range(ceil(SLOW_S / TICK_S) - 1):
        bench.law.settled(before_the_cut_s, bench.now_s)
        assert bench.tick(2.1) == after
    assert bench.tick(0.0) == after  # As slow as the old ones were, the cut has answered that.
    assert bench.tick(2.1) < after


def test_a_loop_that_stood_still_for_long_waits_for_a_second_and_no_longer() -> None:
    """Earlier CONNECTs took ten seconds, which does not measure the delay of a cut."""
    bench = settled_bench()
    bench.serve(10.0)
    assert bench.tick(16.0) == 512
    assert bench.tick(16.0) == 512
    bench.now_s += 1.0
    assert bench.tick(16.0) == 256


def test_pressure_twice_as_bad_does_not_wait() -> None:
    bench = settled_bench()
    bench.serve(SLOW_S)
    after = bench.tick()
    assert bench.tick(4.0) == after
    assert bench.tick(4.1) < after


def test_service_times_are_forgotten_after_a_second() -> None:
    bench = settled_bench()
    bench.serve(1.1 * OBJECTIVE_S, 100)
    bench.now_s += 1.0
    bench.tick(2.1)
    bench.tick(0.0)
    cut = bench.limit
    for _ in range(3):
        bench.law.admitted(cut)
        bench.tick(0.0)
    assert bench.limit > cut


def test_calm_grows_a_used_limit_by_fifteen_percent_and_an_unused_one_not_at_all() -> None:
    used, unused = settled_bench(), settled_bench()
    for bench in (used, unused):
        bench.tick(16.0)
        bench.tick(0.0)  # Holds.
    for _ in range(2):
        used.serve(FAST_S, 256)
        assert used.tick() == unused.tick() == 512
    used.serve(FAST_S, 256)
    assert (used.tick(), unused.tick()) == (588, 512)


def test_a_limit_that_is_half_used_once_in_a_while_stays() -> None:
    bench = settled_bench(64)
    for tick in range(100):
        if tick % int(0.9 * UNUSED_S / TICK_S) == 0:
            bench.serve(FAST_S, 32)
        assert bench.tick() == 64


def test_growth_takes_three_calm_ticks_in_a_row() -> None:
    bench = settled_bench()
    bench.tick(16.0)
    for late in (0.7, 0.7, 0.9, 0.7, 0.7, 1.1, 0.7, 0.7):
        bench.now_s += 1.0
        bench.serve(late * OBJECTIVE_S, 1, used=256)
        limit = bench.tick()
    assert limit == 512
    bench.now_s += 1.0
    bench.serve(0.7 * OBJECTIVE_S, 1, used=256)
    assert bench.tick() > 512


def test_beside_publishers_without_end_it_is_not_worn_down() -> None:
    """Windows hold the node at its objective, and nothing else, for a minute."""
    bench = settled_bench()
    for _ in range(100):
        bench.serve(0.5 * OBJECTIVE_S, 10, used=1_024)
        bench.tick(1.3)
    assert bench.limit == 1_024


def test_who_waits_no_longer_than_packets_do_is_not_late() -> None:
    """A commit and two turns take a CONNECT as long as a PUBLISH, however few are in process."""
    alone, beside = settled_bench(), settled_bench()
    for bench in (alone, beside):
        bench.serve(2.0 * SLOW_S)
    assert alone.tick() < 1_024
    assert beside.tick(packet_s=SLOW_S) == 1_024


def test_work_that_nobody_finishes_is_no_calm() -> None:
    bench = settled_bench()
    bench.tick(16.0)
    for _ in range(30):
        bench.tick(in_process=512)
    assert bench.limit == 512


@pytest.mark.parametrize("rate", [20.0, 66.7, 500.0, 2_000.0])
def test_against_a_server_of_fixed_speed_it_settles_at_its_objective(rate: float) -> None:
    """A crowd without end: each completed CONNECT is replaced at once; slots are served in turn."""
    law = ConcurrencyLimit(1_024, OBJECTIVE_S)
    inside: deque[float] = deque()
    now_s, ticked_s, pressures = 0.0, 0.0, []
    while now_s < 30.0:
        while len(inside) < law.limit:
            inside.append(now_s)
            law.admitted(len(inside))
        now_s += 1.0 / rate
        law.settled(inside.popleft(), now_s)
        if now_s - ticked_s >= TICK_S:
            ticked_s += TICK_S
            law.tick(now_s, 0.0, len(inside))
            if now_s > 5.0:
                pressures.append(len(inside) / rate / OBJECTIVE_S)
    fine = [pressure for pressure in pressures if 0.5 <= pressure <= 2.0]
    assert len(fine) >= 0.95 * len(pressures)
