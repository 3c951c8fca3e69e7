"""`flowguard sweep` on Spark."""

import csv
import shlex
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from flowguard.cli import app
from spark_analysis.comparing import parameter_sets
from spark_analysis.runs.examination import examine, find_runs
from spark_sweep.command import sweep
from spark_sweep.folder import SweepFolder

GRID = """
seeds = {seeds}
[[scenarios]]
name = "flash_crowd"
set = {{ clients = {clients}, connects_per_s = 50 }}
[[scenarios]]
name = "noisy_neighbour"
set = {{ clients = 11, duration_s = 2 }}
[limits]
flow.queue_objective_s = [0.05]
"""


def swept(folder: Path, clients: int = 40, seeds: object = 1) -> Result:
    grid = folder / "grid.toml"
    grid.write_text(GRID.format(clients=clients, seeds=seeds))
    words = ["sweep", str(grid), "--out", str(folder / "out")]
    return CliRunner().invoke(app, words)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def times(folder: Path) -> dict[str, int]:
    """When each finished run was written."""
    return {path.name: path.stat().st_mtime_ns for path in (folder / "out" / "runs").iterdir()}


def test_flowguard_finds_it_as_one_of_its_commands() -> None:
    (found,) = entry_points(group="flowguard.commands", name="sweep")
    assert found.load() is sweep


def test_a_dry_run_says_how_many_there_would_be(tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text(GRID.format(clients=40, seeds=3))
    result = CliRunner().invoke(
        app, ["sweep", str(grid), "--out", str(tmp_path / "o"), "--dry-run"]
    )
    assert result.exit_code == 0
    assert result.stdout.startswith("12 runs: 2 sets of limits (one of them the defaults) in 2 ")
    assert not (tmp_path / "o").exists()


@pytest.mark.spark
def test_runs_go_through_spark_can_be_analysed_and_are_not_repeated(
    spark: SparkSession, tmp_path: Path
) -> None:
    first = swept(tmp_path)
    assert first.exit_code == 0, first.output
    assert "4 finished, 0 reused, 0 failed" in first.stderr
    assert " s  starting Spark" in first.stderr
    assert " s  simulating" in first.stderr
    runs, left_out = examine(find_runs([tmp_path / "out"]))
    assert not left_out
    sets = parameter_sets(runs).to_pylist()
    assert sorted((row["scenario"], row["parameters"]) for row in sets) == [
        ("flash_crowd", "clients=40, connects_per_s=50"),
        ("flash_crowd", "clients=40, connects_per_s=50, flow.queue_objective_s=0.05"),
        ("noisy_neighbour", "clients=11, duration_s=2"),
        ("noisy_neighbour", "clients=11, duration_s=2, flow.queue_objective_s=0.05"),
    ]
    before = times(tmp_path)
    again = swept(tmp_path, seeds=2)
    assert again.exit_code == 0, again.output
    assert "4 finished, 4 reused, 0 failed" in again.stderr
    assert len(times(tmp_path)) == 8
    assert times(tmp_path).items() >= before.items()
    fewer = swept(tmp_path)
    assert "0 finished, 4 reused, 0 failed" in fewer.stderr
    assert "4 other runs are in " in fewer.stderr


@pytest.mark.spark
def test_a_run_that_fails_is_reported_and_the_others_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    result = swept(tmp_path, clients=10**14)  # more than there is memory for
    assert result.exit_code == 1, result.output
    assert "2 finished, 0 reused, 2 failed" in result.stderr
    assert {name.partition("-")[0] for name in times(tmp_path)} == {"noisy_neighbour"}
    failed = rows(tmp_path / "out" / "failed.csv")
    assert [(row["scenario"], row["seed"]) for row in failed] == [("flash_crowd", "1")] * 2
    assert all(row["error"].startswith("MemoryError") for row in failed)
    words = shlex.split(failed[0]["command"])
    assert words[:3] == ["flowguard", "simulate", "flash_crowd"]
    assert "clients=100000000000000" in words
    assert not (tmp_path / "out" / "unfinished").exists()


@pytest.mark.spark
def test_a_sweep_that_was_killed_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    assert swept(tmp_path).exit_code == 0
    folder = SweepFolder(tmp_path / "out")
    lost = min((tmp_path / "out" / "runs").iterdir())
    (folder.unfinished / "begun").mkdir(parents=True)
    lost.rename(folder.unfinished / "begun" / lost.name)
    (folder.unfinished / "begun" / lost.name / "end-00000.parquet").unlink()
    before = times(tmp_path)
    result = swept(tmp_path)
    assert "1 finished, 3 reused, 0 failed" in result.stderr
    assert times(tmp_path).items() > before.items()
    assert not folder.unfinished.exists()
    assert not examine(find_runs([tmp_path / "out"]))[1]


@pytest.mark.spark
def test_the_same_seed_is_the_same_crowd_whatever_the_limits(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert swept(tmp_path).exit_code == 0
    first: list[Any] = []
    for run in sorted((tmp_path / "out" / "runs").glob("flash_crowd-*")):
        attempts = pq.read_table(run / "attempts-00000.parquet").to_pylist()
        found = [row for row in attempts if row["number"] == 0]
        first.append(sorted((row["client"], row["started_s"], row["node"]) for row in found))
    assert len(first) == 2
    assert len(first[0]) == 40
    assert first[0] == first[1]


@pytest.mark.spark
def test_runs_of_a_scenario_that_has_changed_are_not_mixed(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "mine.toml").write_text("populations.a.clients = 10\nduration_s = 1.0")
    (tmp_path / "grid.toml").write_text("scenarios = ['mine.toml']\nseeds = 1")
    words = ["sweep", str(tmp_path / "grid.toml"), "--out", str(tmp_path / "out")]
    assert CliRunner().invoke(app, words).exit_code == 0
    (tmp_path / "mine.toml").write_text("populations.a.clients = 11\nduration_s = 1.0")
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "was made by something else than what mine and flowguard are now" in result.stderr
    assert result.stderr.count("\n") == 1


def test_two_sweeps_do_not_share_a_directory(tmp_path: Path) -> None:
    with SweepFolder(tmp_path / "out").opened():
        result = swept(tmp_path)
    assert result.exit_code == 2
    assert "another sweep is at work there" in result.stderr


def test_a_place_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    result = swept(tmp_path)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"--out: cannot make {tmp_path / 'out'}")
    assert result.stderr.count("\n") == 1
