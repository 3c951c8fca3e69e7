"""`flowguard tune`, from its arguments to its exit code."""

import tomllib
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from flowguard.cli import app
from flowguard.config import FlowSettings
from spark_analysis import java
from spark_analysis.tuner.objective import INCLUDED
from spark_sweep.tuning import EXIT_REFUSED
from tests.spark_analysis.recorded import record

SEEDS = range(1, 7)
OBJECTIVE = """
title = "few attempts"
[[objectives]]
metric = "retries.attempts_per_client"
[[constraints]]
metric = "time_to_connect.connected_ratio"
at_least = 1.0
"""
CROWD = ("flash_crowd", "--clients", "300", "--set", "connects_per_s=10")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["tune", *map(str, arguments)])


def simulate(folder: Path, *changes: str) -> None:
    words = ["simulate", *CROWD, "--out", str(folder), "--json"]
    words += [word for change in changes for word in ("--set", change)]
    words += [word for seed in SEEDS for word in ("--seed", str(seed))]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.stderr


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real runs: the defaults, a patience near to that of the clients, and half of it."""
    folder = tmp_path_factory.mktemp("runs")
    simulate(folder)
    simulate(folder, "flow.connect_patience_s=9.5")
    simulate(folder, "flow.connect_patience_s=4.0")
    return folder


@pytest.mark.parametrize("name", sorted(INCLUDED))
def test_its_help_names_the_objectives_that_are_there(name: str) -> None:
    assert name in run("--help").output


@pytest.mark.spark
def test_runs_of_the_simulator_become_limits_that_the_broker_takes(
    spark: SparkSession, runs: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.toml").write_text(OBJECTIVE)
    result = run(runs, "--objective", tmp_path / "mine.toml", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "Take connect_patience_s = 9.5" in result.output
    assert " s  starting Spark" in result.stderr
    assert " s  looking for violations" in result.stderr
    found = tomllib.loads((tmp_path / "limits.toml").read_text())
    assert FlowSettings.model_validate(found["flow"]).connect_patience_s == 9.5
    evidence = found["evidence"]["connect_patience_s"]
    assert evidence["default"] == 8
    assert 0.01 < evidence["improvement_low"] < evidence["improvement"]
    assert "9.5" in (tmp_path / "tuning.html").read_text()


@pytest.mark.spark
def test_a_refusal_is_a_sentence_and_an_exit_code_of_its_own(
    spark: SparkSession, runs: Path, tmp_path: Path
) -> None:
    worse = sorted(path for path in runs.iterdir() if "9.5" not in limits_of(path))
    (tmp_path / "limits.toml").write_text("old = true")
    result = run(*worse, "--objective", "connect", "--out", tmp_path)
    assert result.exit_code == EXIT_REFUSED, result.output
    assert "No candidate of 1 keeps all constraints" in result.output
    assert "worse in flash_crowd" in result.output
    assert not (tmp_path / "limits.toml").exists()
    assert "worse in flash_crowd" in (tmp_path / "tuning.html").read_text()


def test_a_policy_of_which_there_is_no_run_is_refused_before_spark_starts(tmp_path: Path) -> None:
    for policy in ("flowguard", "vegas"):
        record(tmp_path / policy, policy, run={"policy": policy})
    words = (tmp_path, "--objective", "connect", "--policy", "nosuch", "--out", tmp_path / "out")
    result = run(*words)
    assert result.exit_code == 2
    said = "--policy nosuch: no run is of it; there are flowguard, vegas"
    assert said in result.stderr.splitlines()
    assert "Spark" not in result.stderr


def test_a_place_that_cannot_be_made_is_one_line_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        result = run(tmp_path, "--objective", "connect", "--out", out)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"--out: cannot make {out}")
        assert result.stderr.count("\n") == 1


def limits_of(path: Path) -> str:
    (row,) = pq.read_table(path / "run-00000.parquet")["parameters"].to_pylist()
    return str(dict(row))


def test_what_is_wrong_with_an_argument_is_one_line(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('title = "t"\nobjective = 1')
    for arguments, said in (
        ((tmp_path / "nowhere", "--objective", "connect"), "There is no directory"),
        ((tmp_path, "--objective", "nothing"), "There is no objective nothing"),
        (
            (tmp_path, "--objective", wrong),
            "wrong.toml: objective: unknown key; did you mean objectives?",
        ),
    ):
        result = run(*arguments, "--out", tmp_path / "out")
        assert result.exit_code == 2
        assert said in result.output.replace("\n", "")
    assert not (tmp_path / "out").exists()


def test_without_a_run_that_can_be_read_it_fails_and_says_why(tmp_path: Path) -> None:
    record(tmp_path / "unfinished", "u", is_finished=False)
    result = run(tmp_path, "--objective", "connect", "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "it has no end record" in result.output


def test_without_java_it_says_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_java = java.find_java
    monkeypatch.setattr(java, "find_java", lambda: find_java({"PATH": ""}, tmp_path))
    result = run(tmp_path, "--objective", "connect", "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "Spark needs Java 17 or newer" in result.output
