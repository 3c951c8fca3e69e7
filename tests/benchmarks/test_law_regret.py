"""Regret on random loads: utilities, copies with other noise, laws of earlier commits, the file."""

import json
from dataclasses import asdict
from math import inf
from pathlib import Path

import pytest

from benchmarks import pages
from benchmarks.law.dominance import OURS
from benchmarks.law.random_loads import load_of
from benchmarks.law.regret import Comparison, compare, interval, weighted_mean, weightings
from benchmarks.law.runs import CLASSES, Run, Step, read, run_all, run_step, steps_of
from benchmarks.law.search import is_own, main, report

FIGURES = {"t99 s": 10.0, "attempts": 2.0, "acknowledged": 1_000.0, "deaths": 0.0}
FULL = {"crowd": 1.0, "steady": 1.0, "wide": 1.0}
COPY = f"{OURS}, copy 1"


def run_of(
    policy: str, greedy: float = 100.0, load: int = 1, run: int = 1, **changes: float
) -> Run:
    """`changes`: of parts and figures."""
    parts = {**FULL, "greedy": greedy}
    parts |= {name: value for name, value in changes.items() if name in parts}
    figures = FIGURES | {name: value for name, value in changes.items() if name in FIGURES}
    return Run(load, run, policy, parts, figures, None, "0123456789")


def compared(*runs: Run) -> Comparison:
    return compare(runs)


def test_regret_is_the_distance_to_the_best_policy_of_each_load() -> None:
    found = compared(
        run_of(OURS, crowd=0.9),
        run_of("static-1", 90.0),
        run_of(OURS, load=2),
        run_of("static-1", 100.0, load=2, steady=0.8),
    )
    assert found.regrets(OURS) == pytest.approx([1.5, 0.0])
    assert found.regrets("static-1") == pytest.approx([0.0, 7.0])
    assert found.gains(OURS, "static-1") == pytest.approx([-1.5, 7.0])
    assert found.best_rivals == ["static-1"]


def test_publishers_without_end_count_by_the_most_of_any_policy_in_the_mean_of_the_runs() -> None:
    found = compared(
        run_of(OURS, 100.0), run_of(OURS, 300.0, run=2),
        run_of("static-1", 300.0), run_of("static-1", 500.0, run=2),
    )  # fmt: skip
    assert found.standings[OURS][1].parts["greedy"] == pytest.approx(0.5)
    assert found.standings["static-1"][1].parts["greedy"] == 1.0


def test_classes_that_a_load_does_not_have_leave_their_weight_to_the_others() -> None:
    assert (
        weighted_mean({"crowd": 1.0, "steady": 0.0}, {"crowd": 3.0, "steady": 1.0, "wide": 9.0})
        == 0.75
    )


def test_a_copy_is_measured_but_is_no_reference() -> None:
    found = compared(
        run_of(OURS, crowd=0.9), run_of(COPY, 200.0), run_of("static-1", 50.0, crowd=0.5)
    )
    assert found.regrets(OURS) == [0.0]
    assert found.regrets(COPY) == pytest.approx([-3.5])
    assert found.rivals == ["static-1"]
    assert COPY not in found.won_shares()


def test_only_runs_that_all_policies_have_are_compared() -> None:
    found = compared(
        run_of(OURS), run_of(OURS, 10.0, run=2), run_of(OURS, load=2), run_of("static-1")
    )
    assert found.loads == [1]
    assert found.standings[OURS][1].parts["greedy"] == 1.0


def test_the_law_of_an_earlier_commit_is_a_policy_and_brings_the_others_along() -> None:
    before = [run_of(OURS, crowd=0.5), run_of("static-1", 50.0), run_of("static-10", 70.0)]
    found = compare([run_of(OURS), run_of("static-10", 60.0)], before)
    assert found.policies == [OURS, "law of 0123456", "static-1", "static-10"]
    assert found.before == ("law of 0123456",)
    assert found.standings["static-10"][1].parts["greedy"] == pytest.approx(0.6)
    assert found.rivals == ["static-1", "static-10"]


def test_weightings_go_to_the_policy_with_the_least_mean_regret() -> None:
    found = compared(run_of(OURS, 0.0), run_of("static-1", 100.0, crowd=0.0, steady=0.0, wide=0.0))
    expected = sum(weights["greedy"] < 0.5 * sum(weights.values()) for weights in weightings())
    assert found.won_shares() == pytest.approx(
        {OURS: expected / 1_000, "static-1": 1.0 - expected / 1_000}
    )
    assert 0.8 < expected / 1_000 < 0.95


def test_the_interval_of_a_mean_contains_it_and_is_the_same_each_time() -> None:
    values = [float(number) for number in range(50)]
    found = interval(values)
    assert found.low < found.mean < found.high
    assert found == interval(values)
    assert interval([2.0, 2.0]) == (2.0, 2.0, 2.0)


def test_a_death_counts_if_another_policy_has_none_in_any_run() -> None:
    found = compared(
        run_of(OURS), run_of(OURS, run=2, deaths=1.0),
        run_of("static-1"), run_of("static-1", run=2),
        run_of(OURS, load=2, deaths=1.0), run_of("static-1", load=2, deaths=1.0),
    )  # fmt: skip
    assert found.died(OURS) == [1]
    assert found.died("static-1") == []


def test_dominated_loads_are_counted_for_rivals_and_for_copies() -> None:
    found = compared(run_of(OURS), run_of(COPY, **{"t99 s": 5.0}), run_of("static-1", attempts=3.0))
    assert found.dominated(OURS, found.copies) == [1]
    assert found.dominated(OURS, found.rivals) == []
    assert found.dominated("static-1", [OURS]) == [1]


def test_the_page_has_every_policy_and_fails_where_a_rival_is_better() -> None:
    runs = [
        run_of(policy, greedy, load=load)
        for load in (1, 2, 3)
        for policy, greedy in ((OURS, 50.0), (COPY, 50.0), ("static-1", 100.0))
    ]
    told = report(compare(runs), 1)
    assert [row[0] for row in told.grids[0].rows] == [OURS, COPY, "static-1"]
    marks = {check.what: check.passed for check in told.checks}
    assert marks["mean regret"] is False
    assert marks["better than static-1"] is False
    assert marks["worst load"] is True
    assert told.picture is not None
    assert "static-1" in told.picture
    assert {is_own(load) for load in range(1, 30)} == {True, False}


def test_runs_are_kept_in_a_file_and_read_again(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    steps = steps_of([9_051], 1, ["static-1"], 0)
    assert steps == [Step(9_051, 1, "static-1")]
    found = list(run_all(steps, 1, file, pages.console()))
    assert read(file) == found
    assert set(found[0].parts) <= set(CLASSES)
    assert all(0.0 <= part <= 1.0 for name, part in found[0].parts.items() if name != "greedy")
    never = Run(1, 1, OURS, {}, {"t99 s": inf}, None, "")
    file.write_text(json.dumps(asdict(never)))
    assert read(file) == [never]


def test_a_copy_has_the_same_crowd_and_other_noise() -> None:
    first, again, copy = (run_step(Step(70_001, 1, OURS, number)) for number in (0, 0, 1))
    assert first == again
    assert copy.policy == COPY
    # The last messages may be on their way when the run ends.
    acknowledged = first.figures["acknowledged steady"]
    assert copy.figures["acknowledged steady"] == pytest.approx(acknowledged, abs=3)
    assert copy.parts != first.parts
    assert load_of(70_001).seed == 70_001


def test_saved_runs_that_are_not_asked_for_do_not_restrict_the_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "runs.jsonl"
    kept = [run_of(policy, load=load) for load in (1, 2) for policy in (OURS, "static-1")]
    kept.append(run_of(COPY))
    file.write_text("\n".join(json.dumps(asdict(one)) for one in kept))
    main(loads=2, first=1, runs=1, policies="static-1", copies=0, jobs=1, save=file)
    assert "2 random loads, from 1 on" in capsys.readouterr().out
