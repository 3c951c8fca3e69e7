"""Figures 3 and 4 of the published comparison: their scenarios load, a run becomes curves, curves
become a page with a picture."""

from dataclasses import replace
from itertools import pairwise

import pytest

from benchmarks.published.curves import Curves, Row, Step, observe
from benchmarks.published.figures import FIGURES, OLD, OURS, POLICIES, Figure
from simulations.scenario_files.loading import load

ROWS = tuple(Row(t_s / 2, t_s, 3 * t_s, 10 * t_s, 0.6 * t_s) for t_s in range(1, 61))
CURVES = Curves(OURS, ROWS, 3, 1_000, 0, 1.0, 2.0, 1.0, None)


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.key)
@pytest.mark.parametrize("scale", [0.01, 1.0])
def test_each_figure_has_a_scenario_for_the_old_limiter_ours_and_none(
    figure: Figure, scale: float
) -> None:
    steps = figure.steps(scale)
    assert [step.policy for step in steps] == list(POLICIES)
    assert load(steps[0].scenario, steps[0].changes).scenario.clients


def test_a_run_becomes_curves_that_end_with_everybody_connected() -> None:
    changes = {"clients": 200, "nodes": 1, "connects_per_s": 667.0}
    curves = observe(Step("flash_crowd", changes, OURS))
    attempts = [value for _, value in curves.totals("attempts")]
    assert all(early <= late for early, late in pairwise(attempts))
    assert curves.rows[-1].sessions == 200
    assert curves.t99_s is not None
    assert sum(step_s for _, step_s in curves.rates("busy_s", 1)) > 0


def test_rates_are_of_the_time_between_rows() -> None:
    assert CURVES.rate("published", 5.0) == pytest.approx(20.0)
    assert {round(rate, 9) for _, rate in CURVES.rates("attempts")} == {6.0}


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.key)
def test_a_page_says_where_the_old_limiter_is_not_worse(figure: Figure) -> None:
    worse = replace(CURVES, policy=OLD, declined=5_000, t99_s=4.0)
    slow = tuple(row._replace(published=row.published // 3) for row in ROWS)
    runs = [replace(worse, rows=slow), CURVES, replace(CURVES, policy=POLICIES[2])]
    good = figure.told(figure, runs, 1.0)
    assert good.passed
    assert good.picture is not None
    assert good.picture.count("<polyline") == 6
    bad = figure.told(figure, [replace(CURVES, policy=OLD), CURVES], 1.0)
    assert not bad.passed
