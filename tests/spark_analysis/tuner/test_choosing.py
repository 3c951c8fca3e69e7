"""Datasets of which the answer is known."""

import math
import random

import pytest

from spark_analysis.tuner.choosing import Choice
from tests.spark_analysis.tuner.tried import (
    GOODPUT,
    HELD_OUT,
    SEEDS,
    TRAINING,
    Tried,
    candidate,
    chosen,
    grid,
    objective,
)

W20, W50 = candidate(window_max="20"), candidate(window_max="50")
Q50 = candidate(queue_objective_s="0.05")
BOTH = candidate(queue_objective_s="0.05", window_max="50")


def refused(choice: Choice) -> str:
    assert choice.chosen is None
    return choice.refusal


def test_the_best_is_found_and_judged_on_seeds_that_the_choice_has_not_seen() -> None:
    choice = chosen(grid({W20: 0.8, W50: 1.2, Q50: 1.05}))
    assert choice.chosen is not None
    assert choice.chosen.candidate == W50
    assert (choice.split.training, choice.split.held_out) == (TRAINING, HELD_OUT)
    assert choice.chosen.held_out is not None
    score = choice.chosen.held_out.score
    assert score is not None
    # 1, 3 and 5 are odd, 8 is even.
    own = (3 * math.log(1.2 * 0.99) + math.log(1.2 * 1.01)) / 4
    assert score.mean == pytest.approx(own)
    assert set(choice.chosen.held_out.by_seed) == set(HELD_OUT)


def test_training_figures_are_not_what_is_reported() -> None:
    tried = grid({W50: 1.1})
    lucky = [
        Tried(one.seed, one.value * (1.5 if one.seed in TRAINING else 1.0), one.limits)
        if one.limits and one.value is not None
        else one
        for one in tried
    ]
    choice = chosen(lucky)
    assert choice.chosen is not None
    assert choice.chosen.held_out is not None
    assert choice.chosen.held_out.score is not None
    assert math.exp(choice.chosen.held_out.score.mean) == pytest.approx(1.1, abs=0.02)


def test_where_nothing_is_better_nothing_is_recommended() -> None:
    choice = chosen(grid({W20: 0.9, W50: 1.001, Q50: 0.999}, noise=0.02))
    assert refused(choice).startswith("The defaults are within ")
    assert "of the best found (window_max = 50: " in choice.refusal


def test_where_all_are_surely_worse_the_sentence_says_so() -> None:
    choice = chosen(grid({W50: 0.99}, noise=0.001))
    assert refused(choice).startswith("No limits that were tried are better than the defaults")


def test_what_is_not_worth_a_change_is_not_recommended() -> None:
    tried = grid({W50: 1.05}, noise=0.001)
    assert chosen(tried).chosen is not None
    choice = chosen(tried, objective(least_improvement=0.1))
    assert "+10.0\N{NO-BREAK SPACE}% is the least that is worth a change" in choice.refusal


def test_the_best_is_not_taken_if_it_breaks_a_constraint_in_a_single_run() -> None:
    tried = grid({W20: 1.5, W50: 1.2})
    index = next(
        index
        for index, one in enumerate(tried)
        if dict(one.limits) == dict(W20.limits) and one.seed == TRAINING[0]
    )
    tried[index] = Tried(TRAINING[0], tried[index].value, tried[index].limits, memory=0.05)
    choice = chosen(tried)
    assert choice.chosen is not None
    assert choice.chosen.candidate == W50
    (out,) = [one for one in choice.judged if one.candidate == W20]
    assert out.problem == "memory left < 10\N{NO-BREAK SPACE}% in 1 of 4 runs"


@pytest.mark.parametrize("flaw", ["violation", "memory", "worse"])
def test_a_winner_that_fails_on_held_out_seeds_is_not_recommended_nor_is_the_second(
    flaw: str,
) -> None:
    tried = []
    for one in grid({W20: 1.5, W50: 1.2}):
        if one.limits.get("window_max") == "20" and one.seed in HELD_OUT:
            assert one.value is not None
            value = one.value * 0.5 if flaw == "worse" else one.value
            memory = 0.01 if flaw == "memory" else 0.5
            is_violated = flaw == "violation"
            one = Tried(one.seed, value, one.limits, memory=memory, is_violated=is_violated)
        tried.append(one)
    choice = chosen(tried)
    assert choice.best is not None
    assert choice.best.candidate == W20
    assert "window_max = 20, fails on the seeds that were held out" in refused(choice)


def test_without_runs_with_the_defaults_nothing_can_be_said() -> None:
    tried = [one for one in grid({W50: 1.2}) if one.limits]
    for one in (chosen(tried), chosen([])):
        assert refused(one).startswith("There is no run with the defaults")
        assert "Recorded runs of a broker have no seeds: flowguard tune --like RUN" in one.refusal


def test_with_the_defaults_alone_there_is_nothing_to_choose_from() -> None:
    assert refused(chosen(grid({}))).startswith("All runs have the defaults")


def test_too_few_seeds_are_refused_with_their_numbers() -> None:
    choice = chosen(grid({W50: 1.2}, seeds=range(1, 6)))
    assert "2 to choose with and 3 to judge by, and 3 of each are the least" in refused(choice)
    assert "Run everything with more seeds" in choice.refusal
    assert refused(chosen(grid({W50: 1.2}, seeds=[1]))).startswith("There are too few seeds: 0")


def test_a_seed_with_which_the_defaults_violate_an_invariant_is_no_measure() -> None:
    tried = grid({W50: 1.2})
    tried[0] = Tried(1, tried[0].value, is_violated=True)
    choice = chosen(tried)
    assert 1 not in (*choice.split.training, *choice.split.held_out)
    assert choice.chosen is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"objectives": [{"metric": "goodput.in_time_ratio"}]},
        {"objectives": [{"metric": GOODPUT, "population": "quite"}]},
        {"constraints": [{"metric": "loss.lost_count", "at_most": 0}]},
    ],
)
def test_what_no_run_measures_can_neither_be_improved_nor_promised(
    changes: dict[str, object],
) -> None:
    choice = chosen(grid({W50: 1.2}), objective(**changes))
    assert "is measured in no run, so no limits can be judged by it" in refused(choice)


def test_if_nobody_keeps_the_constraints_the_reasons_are_named() -> None:
    tried = [
        Tried(one.seed, one.value, one.limits, memory=0.01 if one.limits else 0.5)
        for one in grid({W20: 1.5, W50: 1.2})
    ]
    choice = chosen(tried)
    assert "window_max = 20: memory left < 10" in refused(choice)
    assert "The defaults do not either" not in choice.refusal
    all_broken = [Tried(one.seed, one.value, one.limits, memory=0.01) for one in tried]
    assert "The defaults do not either: memory left < 10" in chosen(all_broken).refusal


def test_within_noise_of_the_training_seeds_the_one_with_the_fewest_changes_is_taken() -> None:
    sure = grid({BOTH: 1.201, W50: 1.2, Q50: 1.0})  # the same noise in both: no noise between them
    choice = chosen(sure)
    assert choice.chosen is not None
    assert choice.chosen.candidate == BOTH
    own = dict(zip(TRAINING, (1.02, 0.98, 1.02, 0.98), strict=True))
    noisy = [
        Tried(one.seed, (one.value or 0.0) * own.get(one.seed, 1.05), one.limits)
        if len(one.limits) == 2
        else one
        for one in sure
    ]
    choice = chosen(noisy)
    means = {
        one.candidate: one.training.score.mean
        for one in choice.judged
        if one.training is not None and one.training.score is not None
    }
    assert means[BOTH] > means[W50]
    assert choice.chosen is not None
    assert choice.chosen.candidate == W50


def test_better_on_the_whole_is_not_enough_if_one_scenario_is_worse_than_tolerated() -> None:
    tried = [
        *grid({W20: 2.0, W50: 1.1}, scenario="storm"),
        *grid({W20: 0.9, W50: 1.1}, scenario="crowd"),
    ]
    choice = chosen(tried)
    assert choice.chosen is not None
    assert choice.chosen.candidate == W50
    choice = chosen(tried, objective(tolerance=0.2))
    assert choice.chosen is not None
    assert choice.chosen.candidate == W20


def test_a_scenario_that_is_held_out_has_no_say_in_the_choice_but_in_the_judgement() -> None:
    tried = [
        *grid({W20: 1.5, W50: 1.1}, scenario="storm"),
        *grid({W20: 0.8, W50: 1.1}, scenario="crowd"),
    ]
    choice = chosen(tried, objective(held_out={"scenarios": ["crowd"]}))
    assert "window_max = 20, fails on the seeds that were held out" in refused(choice)
    assert "worse in crowd" in choice.refusal


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"held_out": {"scenarios": ["crwod"]}}, "The objective names crwod, and the defaults"),
        ({"held_out": {"scenarios": ["crowd"]}}, "All scenarios are held out"),
        ({"weights": {"crwod": 2.0}}, "The objective names crwod, and the defaults"),
    ],
)
def test_scenarios_of_the_objective_must_have_runs(changes: dict[str, object], said: str) -> None:
    assert refused(chosen(grid({W50: 1.2}), objective(**changes))).startswith(said)


def test_a_candidate_that_lacks_a_run_is_not_judged() -> None:
    tried = [
        one
        for one in grid({W20: 1.5, W50: 1.2})
        if not (one.limits.get("window_max") == "20" and one.seed == 3)
    ]
    choice = chosen(tried)
    assert choice.chosen is not None
    assert choice.chosen.candidate == W50
    (out,) = [one for one in choice.judged if one.candidate == W20]
    assert (out.missing, out.held_out) == (1, None)
    assert out.problem == "1 of the defaults' 8 runs are missing"


def test_a_limit_that_is_taken_away_cannot_be_recommended() -> None:
    absent = candidate(window_max="")
    choice = chosen(grid({absent: 1.5}))
    assert "takes out window_max, which a file of limits cannot say" in refused(choice)


def test_the_order_of_runs_does_not_show() -> None:
    tried = grid({W20: 0.8, W50: 1.2, Q50: 1.05, BOTH: 1.21})
    mixed = list(tried)
    random.Random(1).shuffle(mixed)
    assert chosen(mixed) == chosen(tried)


def test_the_luckiest_of_many_that_are_all_alike_is_hardly_ever_recommended() -> None:
    """Forty candidates that are pure noise; the interval allows one error in forty datasets."""
    wrong = 0
    for dataset in range(100):
        chance = random.Random(dataset)
        tried = [Tried(seed, 100.0) for seed in SEEDS]
        for number in range(40):
            limits = {"window_max": str(number + 1)}
            tried += [Tried(seed, 100 * math.exp(chance.gauss(0, 0.05)), limits) for seed in SEEDS]
        choice = chosen(tried)
        assert choice.best is not None
        assert choice.best.training is not None
        assert choice.best.training.score is not None
        assert choice.best.training.score.mean > 0
        wrong += choice.chosen is not None
    assert wrong <= 6
