"""`flowguard simulate --out`: every run is a directory with the command that repeats it."""

import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from flowguard.cli import app
from flowguard.telemetry.schema import TABLES
from simulations.results.archive import run_id, written
from simulations.scenario_files.loading import change, load, names

CROWD = ("simulate", "flash_crowd", "--clients", "300", "--set", "connects_per_s=20")


def flowguard(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})
    return result.exit_code, result.stderr


def row(directory: Path, table: str) -> dict[str, object]:
    (found,) = pq.read_table(directory / f"{table}-00000.parquet").to_pylist()
    assert isinstance(found, dict)
    return found


def test_every_run_has_a_directory_with_its_tables(tmp_path: Path) -> None:
    policies = ("--policy", "flowguard", "--policy", "unlimited")
    code, stderr = flowguard(
        *CROWD, *policies, "--seed", "1", "--seed", "2", "--out", str(tmp_path)
    )
    assert code == 0, stderr
    directories = sorted(tmp_path.iterdir())
    assert len(directories) == 4
    for directory in directories:
        names = {path.name.rpartition("-")[0] for path in directory.iterdir()}
        assert {"run", "samples", "goodput", "attempts", "clients", "end"} <= names <= set(TABLES)
        assert row(directory, "end")["ended_by"] == "connected"
        assert row(directory, "run")["run_id"] == directory.name


def test_the_command_of_a_run_records_the_same_bytes_again(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert flowguard(*CROWD, "--seed", "7", "--out", str(first))[0] == 0
    (directory,) = first.iterdir()
    run = row(directory, "run")
    assert run["parameters"] == [("clients", "300"), ("connects_per_s", "20")]
    words = shlex.split(str(run["command"]))
    assert words[0] == "flowguard"
    assert flowguard(*words[1:], "--out", str(second))[0] == 0
    for path in directory.iterdir():
        assert path.read_bytes() == (second / directory.name / path.name).read_bytes()


@pytest.mark.parametrize(
    "value",
    [
        *("word", "1", "true", "with space", 'a "quote"'),
        *(True, 7, 3e-06, [1, "2"], [{"at_s": 1}], {"kind": "fixed", "first_s": 2}),
    ],
)
def test_what_a_command_says_of_a_change_is_read_as_that_change(value: object) -> None:
    assert change(f"key={written(value)}") == ("key", value)


def test_a_run_that_is_there_already_is_not_run_again(tmp_path: Path) -> None:
    assert flowguard(*CROWD, "--out", str(tmp_path))[0] == 0
    code, stderr = flowguard(*CROWD, "--out", str(tmp_path))
    assert code == 2
    assert "holds this very run already" in stderr
    assert stderr.count("\n") == 1


def test_who_is_named_twice_runs_once(tmp_path: Path) -> None:
    policies = ("--policy", "unlimited", "--policy", "unlimited")
    code, stderr = flowguard(
        *CROWD, *policies, "--seed", "2", "--seed", "2", "--out", str(tmp_path)
    )
    assert code == 0, stderr
    assert len(list(tmp_path.iterdir())) == 1


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, stderr = flowguard(*CROWD, "--out", str(tmp_path / "file"))
    assert code == 2
    assert stderr.startswith(f"--out: cannot make {tmp_path / 'file'}")
    assert stderr.count("\n") == 1


def test_costs_of_a_machine_are_part_of_the_command(tmp_path: Path) -> None:
    costs = tmp_path / "costs.toml"
    costs.write_text("[node]\nping_s = 3e-06\n")
    assert flowguard(*CROWD, "--costs", str(costs), "--out", str(tmp_path / "runs"))[0] == 0
    (directory,) = (tmp_path / "runs").iterdir()
    assert "--set node.ping_s=3e-06" in str(row(directory, "run")["command"])


def test_wrong_costs_are_one_line(tmp_path: Path) -> None:
    costs = tmp_path / "costs.toml"
    costs.write_text("[node]\nping = 3\n")
    code, stderr = flowguard(*CROWD, "--costs", str(costs))
    assert code == 2
    assert str(costs) in stderr
    assert stderr.count("\n") == 1


def recorded(out: Path, *words: str) -> str:
    """The id of the one run that this records."""
    before = set(out.iterdir()) if out.exists() else set()
    code, stderr = flowguard("simulate", *words, "--duration", "1", "--out", str(out))
    assert code == 0, stderr
    (new,) = set(out.iterdir()) - before
    return new.name


def test_files_of_one_name_are_different_runs_and_scenarios(tmp_path: Path) -> None:
    out = tmp_path / "out"
    ids, digests = [], []
    for folder, clients in (("a", 5), ("b", 8)):
        (tmp_path / folder).mkdir()
        mine = tmp_path / folder / "mine.toml"
        mine.write_text(f"populations.cars.clients = {clients}\n")
        ids.append(recorded(out, str(mine)))
        parameters = row(out / ids[-1], "run")["parameters"]
        assert isinstance(parameters, list)
        digests.append(dict(parameters)["file_digest"])
    assert len(set(ids)) == len(set(digests)) == 2


def test_a_file_that_has_changed_is_another_run_and_one_with_another_title_is_not(
    tmp_path: Path,
) -> None:
    out, mine = tmp_path / "out", tmp_path / "mine.toml"
    mine.write_text("populations.cars.clients = 5\n")
    recorded(out, str(mine))
    mine.write_text("populations.cars.clients = 6\n")
    recorded(out, str(mine))
    mine.write_text('title = "six"\npopulations.cars.clients = 6\n')
    code, stderr = flowguard("simulate", str(mine), "--duration", "1", "--out", str(out))
    assert code == 2
    assert "holds this very run already" in stderr


def test_a_trace_that_has_changed_is_another_run(tmp_path: Path) -> None:
    out, trace = tmp_path / "out", tmp_path / "trace.csv"
    words = ("crowd_that_fits", "--set", f"populations.crowd.arrivals.file={trace}")
    trace.write_text("t_s,clients\n0,5\n")
    recorded(out, *words)
    trace.write_text("t_s,clients\n0,6\n")
    recorded(out, *words)


def test_limits_leave_the_digest_of_the_file_as_it_is(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text("populations.cars.clients = 5\n")
    plain, limited = load(str(mine)), load(str(mine), {"flow.window_max": 10})
    assert plain.digest == limited.digest is not None
    assert run_id(plain, "flowguard") != run_id(limited, "flowguard")


@pytest.mark.parametrize("name", names())
def test_a_scenario_of_the_library_has_its_name_alone(name: str) -> None:
    assert run_id(load(name), "flowguard") == f"{name}-flowguard-1"
