"""Runs of the real simulator, end to end: what Spark says of them is what the simulator said."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from flowguard.cli import app
from spark_analysis.analysis import analyse
from spark_analysis.runs.examination import examine, find_runs

pytestmark = pytest.mark.spark

POLICIES = ("flowguard", "reject-at-limit")
SEEDS = (1, 2)


def simulate(folder: Path, *scenario: str, policies: Sequence[str]) -> list[dict[str, Any]]:
    """The simulator's own summaries of what it records."""
    words = ["simulate", *scenario]
    words += [word for policy in policies for word in ("--policy", policy)]
    words += [word for seed in SEEDS for word in ("--seed", str(seed))]
    result = CliRunner().invoke(app, [*words, "--json", "--out", str(folder)])
    assert result.exit_code == 0, result.stderr
    runs: list[dict[str, Any]] = json.loads(result.stdout)["runs"]
    return runs


def test_a_sweep_is_analysed_to_what_the_simulator_itself_has_seen(
    spark: SparkSession, tmp_path: Path
) -> None:
    crowd = ("flash_crowd", "--clients", "300", "--set", "connects_per_s=10")
    summaries = simulate(tmp_path, *crowd, policies=POLICIES)
    runs, left_out = examine(find_runs([tmp_path]))
    assert not left_out
    keys = {run.run_id: (run.run["policy"], run.run["seed"]) for run in runs}
    assert set(keys.values()) == {(policy, seed) for policy in POLICIES for seed in SEEDS}
    analysis = analyse(spark, runs, left_out)
    whole = {
        keys[row["run_id"]]: row
        for row in analysis.answers["time_to_connect"].to_pylist()
        if row["population"] == "all"
    }
    tries = {
        keys[row["run_id"]]: row
        for row in analysis.answers["retries"].to_pylist()
        if row["population"] == "all"
    }
    assert len(summaries) == len(whole) == len(tries) == len(POLICIES) * len(SEEDS)
    for summary in summaries:
        key = summary["policy"], summary["seed"]
        assert whole[key]["connected_ratio"] == summary["connected_share"] == 1.0
        assert whole[key]["t99_s"] == pytest.approx(summary["connected_99_s"], abs=0.11)
        assert tries[key]["attempts_per_client"] == pytest.approx(summary["attempts_per_client"])


def test_a_storm_of_retries_is_over_for_one_policy_and_never_for_the_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    storm = ("retry_storm", "--set", "trigger_s=5")
    simulate(tmp_path, *storm, policies=("flowguard", "unlimited"))
    analysis = analyse(spark, *examine(find_runs([tmp_path])))
    places = {row["policy"]: row for row in analysis.region.to_pylist()}
    assert {(row["load_ratio"], row["trigger_s"]) for row in places.values()} == {(0.8, 5.0)}
    assert places["unlimited"]["recovered_count"] == 0
    assert places["flowguard"]["recovered_count"] > 0
