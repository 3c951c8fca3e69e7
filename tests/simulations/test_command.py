import json
import subprocess
import sys
from math import inf
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flowguard.cli import app

FEW = ["--clients", "12", "--duration", "0.5"]
SMALL = ["--clients", "300", "--set", "connects_per_s=50"]


def simulate(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["simulate", *arguments])


def summary(*arguments: str) -> dict[str, Any]:
    result = simulate(*arguments, "--json")
    assert result.exit_code == 0, result.output
    said: dict[str, Any] = json.loads(result.stdout)
    return said


def test_policies_meet_the_same_crowd_side_by_side_on_one_screen() -> None:
    result = simulate("flash_crowd", *SMALL, "--policy", "flowguard", "--policy", "reject-at-limit")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("flash_crowd: 300 clients")
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    header = next(line for line in lines if "flowguard" in line)
    assert header.split() == ["flowguard", "reject-at-limit"]
    for label in ("connected", "attempts per client", "nodes died", "worst pressure"):
        assert any(line.startswith(label) for line in lines), label


def test_many_policies_and_long_names_stay_within_80_columns() -> None:
    policies = ["rate-limit-v1", "reject-at-limit", "flashmq-gate", "static-100", "emqx-flag"]
    words = [word for name in policies for word in ("--policy", name)]
    result = simulate("flash_crowd", "--clients", "60", *words)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert all(name in result.stdout for name in policies)


def test_a_scenario_may_have_nodes_that_are_down(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(
        "nodes = 2\nduration_s = 20.0\n[[faults]]\nkind = 'node_down'\nat_s = 5\nuntil_s = 15\n"
    )
    result = simulate(str(mine), "--clients", "60")
    assert result.exit_code == 0, result.output
    down, up, *_ = (line for line in result.stdout.splitlines() if line.startswith("node "))
    assert "x" in down
    assert "x" not in up


def test_names_of_populations_are_shown_as_they_are(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(
        'title = "[red]x[/nothing]"\nduration_s = 2.0\n'
        '[populations."[red]"]\nclients = 2\npublish.rate_per_s = 1.0\n'
        '[populations."[/b]"]\nclients = 2\npublish.rate_per_s = 1.0\n'
    )
    result = simulate(str(mine))
    assert result.exit_code == 0, result.output
    for words in ("mine: [red]x[/nothing]", "  of [red] ", "  of [/b] "):
        assert words in result.stdout


def test_what_is_beyond_all_bounds_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulations.world.Histogram.percentile", lambda *_: inf)
    shown = simulate("fan_out", *FEW).stdout.splitlines()
    assert ["PUBACK", "p99", "beyond", "all", "bounds"] in [line.split() for line in shown]
    said = simulate("fan_out", *FEW, "--json").stdout
    (run,) = json.loads(said, parse_constant=pytest.fail)["runs"]
    assert run["acknowledged_p99_s"] == "beyond all bounds"


def test_the_summary_is_json_for_programs() -> None:
    said = summary("flash_crowd", *SMALL, "--seed", "3", "--seed", "4", "--policy", "unlimited")
    assert said["scenario"] == "flash_crowd"
    assert said["changes"] == {"clients": 300, "connects_per_s": 50, "seed": 3}
    assert [(run["policy"], run["seed"]) for run in said["runs"]] == [
        ("unlimited", 3),
        ("unlimited", 4),
    ]
    for run in said["runs"]:
        assert run["ended_by"] == "connected"
        assert run["connected_share"] == 1.0
        assert 300 / 3 / 50 <= run["connected_100_s"] <= run["ended_s"] + 0.01
        assert run["events_count"] > 300


def test_the_same_seed_gives_the_same_summary_but_for_real_time() -> None:
    runs = [summary("flash_crowd", *SMALL)["runs"][0] for _ in range(2)]
    for run in runs:
        del run["run_s"], run["events_per_s"]
    assert runs[0] == runs[1]


def test_the_scenarios_are_explained() -> None:
    result = simulate("--list")
    assert result.exit_code == 0
    assert "flash_crowd" in result.stdout
    assert "Look at" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["flash_crowd", "--policy", "flowgard"], "no policy of that name; did you mean flowguard"),
        (["flash_crowd", "--nodes", "0"], "nodes: 0 is less than 1"),
        (["flash_crowd", "--clients", "-1"], "clients: -1 is less than 1"),
        (["flash_crowd", "--duration", "0"], "duration_s: 0.0 is not more than 0"),
        (["flash_crwd"], "did you mean flash_crowd"),
        (["./nothing.toml"], "there is no such file"),
        ([], "which SCENARIO?"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(arguments: list[str], line: str) -> None:
    result = simulate(*arguments)
    assert result.exit_code == 2
    assert line in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not result.stdout


@pytest.mark.slow
def test_ctrl_c_ends_it_with_what_is_known_so_far(tmp_path: Path) -> None:
    """The scenario sends the signal itself while it runs: no waiting, no guessing."""
    mine = tmp_path / "mine.py"
    mine.write_text(
        "import os, signal\n"
        "from simulations.scenario import Scenario\n"
        "from simulations.world import World\n"
        "run = World.run\n"
        "def interrupted(world, until_s):\n"
        "    run(world, until_s)\n"
        "    if until_s == 20.0:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "World.run = interrupted\n"
        "def scenario():\n"
        "    return Scenario(duration_s=1_000_000.0)\n"
    )
    command = [sys.executable, "-m", "flowguard", "simulate", str(mine), "--json"]
    command += ["--policy", "flowguard", "--policy", "unlimited"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 130, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert run["policy"] == "flowguard"
    assert run["ended_by"] == "stopped"
    assert run["ended_s"] == 20.0
    assert run["connected_share"] == 1.0
