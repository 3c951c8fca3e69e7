"""Runs of the real simulator, end to end: what Spark says of them is what the simulator said."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from flowguard.cli import app
from spark_analysis.analysis import Analysis, analyse
from spark_analysis.runs.examination import examine, find_runs

pytestmark = pytest.mark.spark

POLICIES = ("flowguard", "reject-at-limit")
SEEDS = (1, 2)


def simulate(
    folder: Path, *scenario: str, policies: Sequence[str], seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """The simulator's own summaries of what it records."""
    words = ["simulate", *scenario]
    words += [word for policy in policies for word in ("--policy", policy)]
    words += [word for seed in seeds for word in ("--seed", str(seed))]
    result = CliRunner().invoke(app, [*words, "--json", "--out", str(folder)])
    assert result.exit_code == 0, result.stderr
    runs: list[dict[str, Any]] = json.loads(result.stdout)["runs"]
    return runs


@dataclass(frozen=True)
class Simulated:
    """Runs of two scenarios, and the analysis of all of them."""

    crowd: Path
    summaries: list[dict[str, Any]]
    """The simulator's own, of the crowd."""
    analysis: Analysis


@pytest.fixture(scope="module")
def simulated(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    folder = tmp_path_factory.mktemp("simulated")
    crowd = ("flash_crowd", "--clients", "300", "--set", "connects_per_s=10")
    summaries = simulate(folder / "crowd", *crowd, policies=POLICIES, seeds=SEEDS)
    storm = ("retry_storm", "--set", "trigger_s=5")
    simulate(folder / "storm", *storm, policies=("flowguard", "unlimited"), seeds=(2, 6))
    runs, left_out = examine(find_runs([folder]))
    assert not left_out
    return Simulated(folder / "crowd", summaries, analyse(spark, runs, left_out))


def test_a_sweep_is_analysed_to_what_the_simulator_itself_has_seen(simulated: Simulated) -> None:
    runs, _ = examine(find_runs([simulated.crowd]))
    keys = {run.run_id: (run.run["policy"], run.run["seed"]) for run in runs}
    assert set(keys.values()) == {(policy, seed) for policy in POLICIES for seed in SEEDS}
    whole, tries = (
        {
            keys[row["run_id"]]: row
            for row in simulated.analysis.answers[question].to_pylist()
            if row["population"] == "all" and row["run_id"] in keys
        }
        for question in ("time_to_connect", "retries")
    )
    assert len(simulated.summaries) == len(whole) == len(tries) == len(POLICIES) * len(SEEDS)
    for summary in simulated.summaries:
        key = summary["policy"], summary["seed"]
        assert whole[key]["connected_ratio"] == summary["connected_share"] == 1.0
        assert whole[key]["t99_s"] == pytest.approx(summary["connected_99_s"], abs=0.11)
        assert tries[key]["attempts_per_client"] == pytest.approx(summary["attempts_per_client"])


def test_a_storm_of_retries_is_over_for_one_policy_and_never_for_the_other(
    simulated: Simulated,
) -> None:
    places = {row["policy"]: row for row in simulated.analysis.region.to_pylist()}
    assert {(row["load_ratio"], row["trigger_s"]) for row in places.values()} == {(0.8, 5.0)}
    assert places["unlimited"]["recovered_count"] == 0
    # Two minutes are hardly enough: of six seeds one or two recover, and the sixth is clear.
    assert places["flowguard"]["recovered_count"] > 0
