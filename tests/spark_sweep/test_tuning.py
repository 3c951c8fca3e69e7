"""`flowguard tune --like`: what is simulated for a recorded run, without the choice."""

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flowguard.cli import app
from flowguard.config import FlowSettings
from simulations.scenario import PopulationPlan, Scenario
from spark_analysis.tuner.objective import Objective
from spark_sweep import command as sweeper
from spark_sweep import tuning
from spark_sweep.grid import load_grid
from spark_sweep.plan import make_plan
from spark_sweep.tuning import limits_to_try, load_objective
from tests.simulations.recording import RUN_ID, record

CROWD = Scenario(
    duration_s=3.0,
    flow={"connects_in_process_max": 2},
    populations={"crowd": PopulationPlan(clients=30, start_over_s=0.1)},
)


def tune(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["tune", *map(str, words)])


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Arguments of the sweep and of the choice, which are not run."""
    found: list[tuple[object, ...]] = []

    def note(name: str) -> Callable[..., None]:
        return lambda *arguments: found.append((name, *arguments))

    def choose(runs: list[Path], objective: Objective, out: Path, *_: object) -> bool:
        found.append(("choose", runs, objective))
        (out / "limits.toml").write_text("[flow]\n")
        return True

    monkeypatch.setattr(sweeper, "sweep", note("sweep"))
    monkeypatch.setattr(tuning, "choose", choose)
    return found


def test_a_recorded_run_is_simulated_with_its_limits_and_others(
    tmp_path: Path, told: list[tuple[object, ...]]
) -> None:
    run, out = record(CROWD, tmp_path / "live"), tmp_path / "out"
    done = tune("--like", run, "--objective", "connect", "--out", out)
    assert done.exit_code == 0, done.output
    (_, grid, sweep_out, _), (_, runs, objective) = told
    assert (grid, sweep_out, objective) == (
        out / "grid.toml",
        out / "sweep",
        load_objective("connect"),
    )
    assert runs == [out / "sweep" / "runs"]
    plan = make_plan(load_grid(out / "grid.toml"), out / "grid.toml")
    assert {planned.loaded.name for planned in plan.runs} == {RUN_ID}
    assert {planned.loaded.scenario.seed for planned in plan.runs} == set(range(1, 7))
    tried = {planned.loaded.scenario.flow.connects_in_process_max for planned in plan.runs}
    assert tried == {2, 16, 128, 1_024}
    text = (out / "limits.toml").read_text()
    assert str(run) in text.splitlines()[0]
    assert tomllib.loads(text) == {"flow": {}}


def test_windows_are_tried_for_an_objective_of_messages() -> None:
    limits = limits_to_try(load_objective("goodput"), FlowSettings(window_max=7))
    assert limits["window_max"] == [7, 10, 30, 100, 300]
    assert "connects_in_process_max" not in limits


def test_either_runs_or_a_recorded_run_is_required(tmp_path: Path) -> None:
    for words in ((), (tmp_path, "--like", tmp_path)):
        done = tune(*words, "--objective", "connect", "--out", tmp_path / "out")
        assert done.exit_code == 2
        assert "Give RUNS, or --like" in done.output


def test_a_directory_without_a_run_is_rejected(tmp_path: Path) -> None:
    done = tune("--like", tmp_path, "--objective", "connect", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "name one recorded run" in done.output
