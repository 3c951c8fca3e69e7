"""Simulated experiments: what their figures say, who passes, and one of them in small."""

from collections.abc import Sequence
from math import exp, sin

import pytest
from rich.console import Console

from benchmarks.checks import Check, Report
from benchmarks.experiments import speed
from benchmarks.experiments.__main__ import EXPERIMENTS, choose
from benchmarks.experiments.cases import OURS, Case, Experiment, Runs
from benchmarks.experiments.figures import (
    Figures,
    connected_99_s,
    cut_s,
    first_at_least,
    percentile,
    rate,
    recovery_s,
    settled_s,
    swing,
)
from benchmarks.experiments.judging import at_least, at_most, held, misses, none_of
from benchmarks.experiments.probe import STEP_S, fair_shares, jain
from benchmarks.experiments.running import Step, observe, run_all
from simulations.results.run import run
from simulations.scenario_files.loading import load


def totals(*pieces: tuple[float, float]) -> list[float]:
    """Running totals of pieces of (length in seconds, rate per second)."""
    series = [0.0]
    for length_s, per_s in pieces:
        series += [series[-1] + per_s * STEP_S * n for n in range(1, round(length_s / STEP_S) + 1)]
    return series


# --- seeds together ------------------------------------------------------------------------------


def test_what_never_happened_in_one_seed_has_no_mean() -> None:
    assert Figures((1.0, 3.0)).mean == 2.0
    assert Figures((1.0, None)).mean is None
    assert Figures((1.0, None)).text() == "never in 1 of 2"
    assert Figures(()).mean is None


def test_the_interval_is_students() -> None:
    assert Figures((1.0, 3.0)).half_width == pytest.approx(12.71 * 2**0.5 / 2**0.5)
    assert Figures((5.0,)).half_width == 0.0
    assert Figures((5.0, 5.0)).text(" s") == "5.0 s"


@pytest.mark.parametrize(
    ("check", "passed"),
    [
        (at_most("a", Figures((1.0, 2.0)), 1.5), True),
        (at_most("a", Figures((1.0, 2.1)), 1.5), False),
        (at_most("a", Figures((1.0, None)), 1.5), False),
        (at_least("a", Figures((1.0, 2.0)), 1.5), True),
        (at_least("a", Figures((1.0, None)), 0.5), False),
        (none_of("a", Figures((0.0, 0.0))), True),
        (none_of("a", Figures((0.0, 1.0))), False),
    ],
)
def test_a_figure_is_judged_by_all_its_seeds(check: Check, passed: bool) -> None:
    assert check.passed is passed
    assert misses(check, "control").passed is not passed


# --- over time -----------------------------------------------------------------------------------


def test_a_rate_is_that_of_its_interval() -> None:
    series = totals((10.0, 5.0), (10.0, 20.0))
    assert rate(series, 0.0, 10.0) == pytest.approx(5.0)
    assert rate(series, 10.0, 20.0) == pytest.approx(20.0)
    assert rate(series, 10.0, 30.0) is None


def test_recovery_is_when_the_rate_is_back_for_good() -> None:
    series = totals((10.0, 100.0), (10.0, 0.0), (7.0, 20.0), (60.0, 100.0))
    assert recovery_s(series, 100.0, 20.0) == pytest.approx(7.0, abs=0.5)
    relapse = totals((10.0, 100.0), (10.0, 0.0), (20.0, 100.0), (60.0, 10.0))
    assert recovery_s(relapse, 100.0, 20.0) is None


def test_a_cut_is_half_of_what_a_window_was() -> None:
    windows = [100.0] * 50 + [80.0] * 3 + [40.0] * 10
    assert cut_s(windows, 5.0) == pytest.approx(0.3)
    assert cut_s([100.0] * 60, 5.0) is None


def test_who_falls_below_once_more_is_not_back() -> None:
    series = [10.0] * 10 + [2.0] * 10 + [10.0] * 5 + [2.0] * 5 + [10.0] * 10
    assert first_at_least(series, 9.0, 1.0) == pytest.approx(2.0)
    assert first_at_least(series[:-10], 9.0, 1.0) is None


def test_a_law_that_rings_swings_and_one_that_moves_once_does_not() -> None:
    ringing = [10.0 * exp(0.5 * sin(0.6 * n)) for n in range(200)]
    assert swing(ringing) == pytest.approx(1.0, abs=0.1)
    held_long = [window for window in (1.0, 100.0) * 4 for _ in range(10)]
    assert swing(held_long) > 4.0
    once = [100.0] * 20 + [10.0 + n / 10 for n in range(100)]
    assert swing(once) == 0.0


def test_settled_is_within_the_band_for_nearly_all_of_the_rest() -> None:
    pressures = [8.0] * 15 + [1.0] * 185
    assert settled_s(pressures, 0.0, 20.0) == pytest.approx(1.5)
    assert settled_s([8.0, 1.0] * 100, 0.0, 20.0) is None


def test_what_goes_out_of_bounds_after_a_step_is_not_settled_before_it_is_back() -> None:
    pressures = [1.0] * 3 + [3.0] * 6 + [1.0] * 191
    assert settled_s(pressures, 0.0, 20.0) == pytest.approx(0.9)


def test_a_percentile_is_a_value_that_was_seen() -> None:
    assert percentile([float(n) for n in range(1, 101)], 0.99) == 99.0
    assert percentile([], 0.99) == 0.0


# --- fairness ------------------------------------------------------------------------------------


def test_who_wants_little_gets_it_and_the_rest_is_shared() -> None:
    inf = float("inf")
    assert fair_shares(10.0, [inf, 1.0, inf]) == [4.5, 1.0, 4.5]
    assert fair_shares(10.0, [1.0, 2.0]) == [1.0, 2.0]


def test_jain_is_one_where_all_have_the_same() -> None:
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)


# --- experiments ---------------------------------------------------------------------------------


@pytest.mark.parametrize("key", list(EXPERIMENTS))
@pytest.mark.parametrize("scale", [0.02, 1.0])
def test_every_case_is_a_scenario_and_has_a_control_beside_it(key: str, scale: float) -> None:
    cases = EXPERIMENTS[key].cases(scale)
    assert len({case.name for case in cases}) == len(cases)
    assert any(len(case.policies) > 1 for case in cases)
    for case in cases:
        assert load(case.scenario, case.changes).scenario.clients
        assert case.policies[0] == OURS


def test_experiments_are_chosen_by_name() -> None:
    assert choose("e3,E2") == ["E2", "E3"]
    assert choose("scale") == ["scale"]
    assert choose("") == list(EXPERIMENTS)


TINY = Case("tiny", "flash_crowd", {"clients": 60, "connects_per_s": 3.0}, (OURS, "unlimited"))


def test_a_probe_changes_nothing() -> None:
    """The run is the same as without a probe, including its invariants."""

    watched = observe(Step(TINY, OURS, 1)).summary
    alone = run(load(TINY.scenario, {**TINY.changes, "seed": 1}).scenario, OURS)
    assert watched.events_count == alone.events_count
    assert watched.connected_99_s == alone.connected_99_s


def test_an_experiment_from_its_cases_to_its_verdict() -> None:
    def judge(runs: Runs) -> Report:
        ours, control = (
            runs.figures("tiny", connected_99_s, policy) for policy in (OURS, "unlimited")
        )
        bound = control.mean or 0.0
        return Report("k", "t", "s", (at_most("t99", ours, bound, " s"), held(runs)))

    experiment = Experiment("X", lambda _: [TINY], judge, "the crowd is not scaled.")
    runs = run_all(experiment, 1.0, 2, 2, Console(quiet=True))
    assert {key: len(found) for key, found in runs.observed.items()} == {
        ("tiny", OURS): 2,
        ("tiny", "unlimited"): 2,
    }
    by_seed: Sequence[int] = [seen.summary.seed for seen in runs.observed["tiny", OURS]]
    assert by_seed == [1, 2]
    for seen in runs.all_of(OURS):
        assert not seen.violation
        assert seen.series.connected["crowd"][-1] > 0
        assert seen.clients == {"crowd": 60}
    assert experiment.report(runs).checks[-1].passed
    assert experiment.report(runs).scaled == "s"
    smaller = Runs(0.1, 2, runs.observed)
    assert experiment.report(smaller).scaled == "s Scale 0.1: the crowd is not scaled."


def test_growth_is_judged_by_the_two_largest_crowds() -> None:
    def measured(clients: int, cpu_s: float) -> speed.Measured:
        return speed.Measured(speed.PURE, clients, 10 * clients, cpu_s, 2**30, 2**26, 100.0)

    linear = speed.judge([measured(1_000, 5.0), measured(10_000, 1.0), measured(100_000, 11.0)])
    assert linear.passed
    assert not speed.judge([measured(10_000, 1.0), measured(100_000, 20.0)]).passed
