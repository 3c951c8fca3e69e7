"""The rule of the dominance table, and its cases: each can be loaded, one runs to its figures."""

from itertools import pairwise
from math import inf

import pytest

from benchmarks.law.__main__ import run_all
from benchmarks.law.cases import CASES
from benchmarks.law.dominance import OURS, WORSE, dominates, gains, report
from benchmarks.law.figures import Step, look_at, observe, run_step
from benchmarks.law.random_loads import DURATION_S, load_of
from simulations.crowd.publishers import FINE_BOUNDS_S
from simulations.scenario_files.loading import load

BASE = {"t99 s": 10.0, "attempts": 2.0, "acknowledged": 1_000.0, "deaths": 0.0}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, {}),
        ({"t99 s": 9.2}, {}),
        ({"t99 s": 8.0}, {"t99 s"}),
        ({"t99 s": 8.0, "attempts": 2.05}, {"t99 s"}),
        ({"t99 s": 8.0, "attempts": 2.1}, {}),
        ({"t99 s": 8.0, "acknowledged": 975.0}, {"t99 s"}),
        ({"t99 s": 8.0, "acknowledged": 960.0}, {}),
        ({"acknowledged": 1_200.0}, {"acknowledged"}),
        ({"t99 s": 8.0, "deaths": 1.0}, {}),
    ],
)
def test_who_is_better_by_a_tenth_and_worse_by_three_in_a_hundred_dominates(
    change: dict[str, float], found: set[str]
) -> None:
    assert set(dominates(BASE, BASE | change)) == set(found)


def test_what_never_happened_is_worse_than_what_did() -> None:
    never = BASE | {"t99 s": inf}
    assert set(dominates(never, BASE)) == {"t99 s"}
    assert not dominates(BASE, never)
    assert not gains(never, never)


@pytest.mark.parametrize("case", CASES)
def test_each_case_can_be_loaded(case: str) -> None:
    assert load(CASES[case].scenario, CASES[case].changes).scenario.clients


def test_a_case_is_told_with_its_figures_and_whom_nobody_dominates() -> None:
    row, violation = observe(CASES["crowd_that_fits"], OURS, 1)
    assert violation is None
    assert row["t99 s"] < 10.0
    told = report({("crowd_that_fits", OURS): [row]}, {}, 1)
    (check,) = told.checks
    assert check.passed
    assert told.grids[0].rows[0][0] == OURS


def test_a_random_load_is_its_number() -> None:
    loads = [load_of(seed) for seed in range(1, 101)]
    assert loads == [load_of(seed) for seed in range(1, 101)]
    assert len({load.model_dump_json() for load in loads}) == 100
    assert {load.nodes for load in loads} == {1, 2, 3}


def test_in_a_random_load_packets_that_come_together_cost_less_than_as_many_alone() -> None:
    for seed in range(1, 101):
        scenario = load_of(seed)
        node = scenario.node
        alone_s = node.read_s + node.publish_s
        assert any(alone_s == pytest.approx(drawn_s) for drawn_s in (0.001_2, 0.002_4, 0.004))
        assert node.read_s + 10 * node.publish_s < 3 * alone_s
        assert node.send_s + 10 * node.delivery_s < 3 * (node.send_s + node.delivery_s)
        assert scenario.store.op_s < 0.01 * alone_s
        assert node.wake_s > alone_s
        assert 0.0 < node.handoff_s < scenario.store.commit_s


def test_a_random_load_has_the_objectives_of_its_machine_and_the_patience_of_its_clients() -> None:
    loads = [load_of(seed) for seed in range(1, 101)]
    for one in loads:
        flow = one.flow
        assert flow.queue_objective_s >= 25 * (one.node.read_s + one.node.publish_s)
        assert flow.loop_objective_s == pytest.approx(2 * flow.queue_objective_s)
    patience_s = {one.populations["crowd"].timeout_s: one.flow.connect_patience_s for one in loads}
    assert patience_s == {5.0: 8.0, 10.0: 8.0, 20.0: 16.0}


def test_the_p99_of_two_runs_is_told_apart_to_a_hundredth() -> None:
    bounds_s = FINE_BOUNDS_S
    assert all(high / low < 1.0 + WORSE for low, high in pairwise(bounds_s))
    assert bounds_s[-1] > DURATION_S


@pytest.mark.parametrize("seed", [9_051, 9_190])
def test_where_memory_is_short_sockets_wait_while_those_accepted_take_all_places(seed: int) -> None:
    """The buffer is empty then, and memory has no room for more than are on their way to it."""
    assert look_at(load_of(seed), OURS)[1] is None


def test_a_run_is_found_by_the_process_it_is_given_to() -> None:
    """A spawned process imports the module that it stands in, but never a package's main one."""
    steps = [Step("crowd_that_fits", OURS, 1)]
    rows, violations = run_all(steps, jobs=1)
    assert not violations
    assert len(rows["crowd_that_fits", OURS]) == 1
    assert not run_step.__module__.endswith("__main__")
