import tomllib
from pathlib import Path
from typing import Any

import pytest

from flowguard.config import FlowSettings
from spark_analysis.tuner.limits_file import (
    NAME,
    conclusion,
    effects,
    limits_text,
    write_limits,
)
from spark_analysis.tuner.page import TuningRecord
from tests.spark_analysis.tuner.tried import HELD_OUT, candidate, grid, tuned

W50 = candidate(window_max="50")
Q50 = candidate(queue_objective_s="0.05")
RULE = candidate(cluster_rule="max")
BOTH = candidate(queue_objective_s="0.05", window_max="50")


def written(tuning: TuningRecord) -> dict[str, Any]:
    return tomllib.loads(limits_text(tuning.choice, tuning.trials))


def test_it_holds_the_limits_that_are_to_be_changed_and_the_broker_takes_them() -> None:
    found = written(tuned(grid({BOTH: 1.3, W50: 1.1, Q50: 1.15})))
    assert set(found) == {"flow", "evidence"}
    assert found["flow"] == {"queue_objective_s": 0.05, "window_max": 50}
    settings = FlowSettings.model_validate(found["flow"])
    assert (settings.window_max, settings.queue_objective_s) == (50, 0.05)


def test_words_stay_words() -> None:
    found = written(tuned(grid({RULE: 1.3})))
    assert found["flow"] == {"cluster_rule": "max"}
    assert FlowSettings.model_validate(found["flow"]).cluster_rule == "max"


def test_every_value_has_its_reason_its_interval_and_the_runs_behind_it() -> None:
    tuning = tuned(grid({W50: 1.2}))
    found = written(tuning)["evidence"]
    assert found["objective"] == "more goodput"
    assert found["held_out_seeds"] == list(HELD_OUT)
    assert (found["dataset_runs_count"], found["candidates_count"]) == (16, 1)
    assert found["improvement"] == pytest.approx(0.194, abs=0.001)
    limit = found["window_max"]
    assert limit["improvement_low"] < limit["improvement"] < limit["improvement_high"]
    assert limit["reason"].startswith("50 instead of 100: +19.4")
    assert (limit["default"], limit["is_alone"], limit["as_good"]) == (100, True, [])
    seeds = sorted(HELD_OUT)
    assert limit["runs"] == sorted(
        [f"crowd-flowguard-{seed}" for seed in seeds]
        + [f"crowd-flowguard-{seed}-window_max=50" for seed in seeds]
    )
    assert limit["runs_count"] == 8


def test_a_limit_among_others_is_compared_with_the_same_without_it() -> None:
    choice = tuned(grid({BOTH: 1.3, W50: 1.1, Q50: 1.17})).choice
    by_key = {effect.key: effect for effect in effects(choice)}
    assert by_key["window_max"].other == Q50
    assert by_key["window_max"].interval.mean == pytest.approx(0.1054, abs=1e-4)  # ln 1.3 / 1.17
    assert by_key["queue_objective_s"].other == W50


def test_what_a_limit_does_alone_is_not_made_up_where_nobody_tried_it() -> None:
    tuning = tuned(grid({BOTH: 1.3, W50: 1.1}))
    by_key = {effect.key: effect for effect in effects(tuning.choice)}
    assert by_key["window_max"].other is None
    assert by_key["queue_objective_s"].other == W50
    found = written(tuning)["evidence"]
    assert found["window_max"]["is_alone"] is False
    assert "what this one does alone was not tried" in found["window_max"]["reason"]
    assert found["window_max"]["improvement"] == found["improvement"]


def test_values_that_are_not_surely_worse_are_named() -> None:
    others = {candidate(window_max=value): effect for value, effect in (("9", 1.1), ("60", 1.2))}
    choice = tuned(grid({W50: 1.2001, **others})).choice
    assert choice.chosen is not None
    (effect,) = effects(choice)
    assert {effect.value, *effect.as_good} <= {"50", "60"}
    assert "9" not in effect.as_good


def test_an_older_file_is_taken_away_where_nothing_is_recommended(tmp_path: Path) -> None:
    good, bad = tuned(grid({W50: 1.2})), tuned(grid({W50: 0.9}))
    path = write_limits(good.choice, good.trials, tmp_path)
    assert path == tmp_path / NAME
    assert conclusion(good.choice).startswith("Take window_max = 50: beside the defaults +19.4")
    first = path.read_bytes()
    assert write_limits(good.choice, good.trials, tmp_path) == path
    assert path.read_bytes() == first
    assert write_limits(bad.choice, bad.trials, tmp_path) is None
    assert not path.exists()
    assert write_limits(bad.choice, bad.trials, tmp_path / "nowhere") is None
