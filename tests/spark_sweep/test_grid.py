"""An error of a grid file is one line that names file and key."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flowguard.cli import app
from spark_sweep.grid import load_grid

CROWD = 'scenarios = ["flash_crowd"]\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "grid.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "scenarios: is missing"),
        ("scenarios = []", "scenarios: there is none"),
        ('scenarios = ["flash_crwd"]', "flash_crwd: no scenario of that name; did you mean"),
        ('scenarios = ["mine.toml"]', "mine.toml: there is no such file"),
        (CROWD + "sedes = 3", "sedes: unknown key; did you mean seeds?"),
        ("scenario = ['a']", "scenario: unknown key; did you mean scenarios? (and 1 more)"),
        (CROWD + "zzz = 3", "zzz: unknown key; see docs/operate/sweep.md"),
        (CROWD + "seeds = 0", "seeds: 0 is less than 1"),
        (CROWD + "seeds = []", "seeds: there is none"),
        (CROWD + "seeds = [1, -1]", "seeds.1: -1 is less than 0"),
        (CROWD + 'policies = ["flowgard"]', "policies.0: 'flowgard' is none of 'flowguard'"),
        (CROWD + 'costs = "none.toml"', "none.toml: cannot be read: No such file"),
        (CROWD + "[limits]\nflow.window_mx = [1]", "flow.window_mx is no limit; did you mean"),
        (CROWD + "[limits]\nnode.connect_s = [1]", "node is no limit; flowguard settings has"),
        (CROWD + "[limits]\nflow.policy = ['vegas']", "flow.policy is no limit"),
        (CROWD + "[limits]\nflow.window_max = []", "limits.flow.window_max.values: there is none"),
        (CROWD + "[limits]\nflow.window_max = 3", "flow.window_max: 3 is neither a list of values"),
        (CROWD + "[limits]\nflow.window_max = [-1]", "flow.window_max: -1 is less than 1"),
        (CROWD + "[limits]\nflow.window_max = {from = 1}", "neither a list of values nor a table"),
        (CROWD + "[limits]\nflow.window_max = {from = 9, to = 3}", "from 9 is not less than to 3"),
        (CROWD + "[limits]\nflow.window_max = {from = 0, to = 3, log = true}", "has no logarithm"),
        (CROWD + "[limits]\nflow.window_max = {from = 1, to = 3}", "a range needs [sample]"),
        (CROWD + "[sample]\npoints = 3", "sample: there are no [limits] to draw from"),
        (CROWD + "[sample]\npoints = 0", "sample.points: 0 is less than 1"),
        (CROWD + "seeds = 200_000", "seeds: these are 200,000 runs, more than 100,000"),
        (CROWD + f"seeds = {10**15}", "seeds: these are 1,000,000,000,000,000 runs"),
        (CROWD + f"seeds = [{2**63}]", f"seeds.0: {2**63} is more than {2**63 - 1}"),
        (CROWD + "seeds = ['1']", "seeds.0: '1' is no whole number"),
        (
            CROWD + "seeds = 60_000\n[limits]\nflow.window_max = [50]",
            "these are 120,000 runs, more than 100,000; [sample] draws",
        ),
        ('[[scenarios]]\nname = "flash_crowd"\nset.clients = -1', "clients: -1 is less than 1"),
        ('[[scenarios]]\nname = "flash_crowd"\ngrid.nodes = []', "grid.nodes: there is none"),
        ('[[scenarios]]\nname = "flash_crowd"\nset.flow.window_max = 1', "belongs in [limits]"),
        ('[[scenarios]]\nname = "flash_crowd"\nset.seed = 1', "the seeds are the key `seeds`"),
        ("[[scenarios]]\nset.nodes = 1", "scenarios.0.name: is missing"),
        ("scenarios =", "is not valid TOML"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(tmp_path: Path, text: str, line: str) -> None:
    grid = written(tmp_path, text)
    result = CliRunner().invoke(app, ["sweep", str(grid), "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{grid}: ")
    assert line in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_grid_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    grid = tmp_path / "nothing.toml"
    result = CliRunner().invoke(app, ["sweep", str(grid), "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert result.stderr == f"{grid}: cannot be read: No such file or directory\n"


def test_limits_are_the_same_with_and_without_quotes(tmp_path: Path) -> None:
    plain = load_grid(written(tmp_path, CROWD + "[limits]\nflow.window_max = [50]"))
    quoted = load_grid(written(tmp_path, CROWD + '[limits]\n"flow.window_max" = [50]'))
    assert plain == quoted
    assert list(plain.limits) == ["flow.window_max"]


def test_a_number_of_seeds_means_the_first_ones(tmp_path: Path) -> None:
    assert load_grid(written(tmp_path, CROWD + "seeds = 4")).seeds == (1, 2, 3, 4)
    assert load_grid(written(tmp_path, CROWD + "seeds = [7, 9]")).seeds == (7, 9)
