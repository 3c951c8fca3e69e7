"""A run in a process of its own, whatever happens to it."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from simulations.results.archive import Archive
from simulations.scenario_files.loading import load
from spark_sweep.plan import PlannedRun
from spark_sweep.task import AT_WORK, END, RunOutcome, record, run_apart

# The tests' own process has threads; Spark's workers have none.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

CROWD = {"clients": 40, "connects_per_s": 50, "seed": 2}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    runs, unfinished = tmp_path / "runs", tmp_path / "unfinished"
    runs.mkdir()
    unfinished.mkdir()
    (unfinished / AT_WORK).touch()
    return runs, unfinished


def crowd() -> PlannedRun:
    return PlannedRun(load("flash_crowd", CROWD), "flowguard")


@dataclass(frozen=True)
class Failing(PlannedRun):
    """A run whose scenario cannot be loaded; the test decides the effect."""

    happens: Callable[[], Any] = lambda: None

    @property
    def loaded(self) -> Any:
        if os.getpid() != TESTS:
            self.happens()
        return crowd().loaded

    @loaded.setter
    def loaded(self, _: Any) -> None: ...


TESTS = os.getpid()


def test_its_files_are_those_of_flowguard_simulate(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    run = crowd()
    assert run_apart(run, *folders) == RunOutcome(run.run_id, None)
    archive = Archive(tmp_path / "simulated")
    archive.record(run.loaded, run.policy, lambda _: True, even_if_stopped=True)
    made = sorted((folders[0] / run.run_id).iterdir())
    assert [path.name for path in made] == sorted(
        path.name for path in (tmp_path / "simulated" / run.run_id).iterdir()
    )
    for path in made:
        assert path.read_bytes() == (tmp_path / "simulated" / run.run_id / path.name).read_bytes()


def error() -> None:
    raise ZeroDivisionError("too\n  bad")


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("happens", "words"),
    [
        (error, "ZeroDivisionError: too bad (test_task.py:"),
        (killed, "its process was killed by SIGKILL: out of memory?"),
        (lambda: os._exit(3), "its process ended with exit code 3"),
    ],
)
def test_a_run_that_fails_leaves_a_line_and_nothing_else(
    folders: tuple[Path, Path], happens: Callable[[], None], words: str
) -> None:
    run = Failing(crowd().loaded, "flowguard", happens)
    outcome = run_apart(run, *folders)
    assert outcome.run_id == run.run_id
    assert outcome.error is not None
    assert outcome.error.startswith(words)
    assert [path.name for path in (*folders[0].iterdir(), *folders[1].iterdir())] == [AT_WORK]


def test_a_run_that_nobody_waits_for_any_more_is_not_complete(tmp_path: Path) -> None:
    run = crowd()
    outcome = record(run, tmp_path, lambda _: False)
    assert outcome.error == "stopped"
    assert not (tmp_path / run.run_id / END).exists()


def test_a_twin_that_was_faster_is_as_good(folders: tuple[Path, Path]) -> None:
    run = crowd()
    for _ in range(2):
        assert run_apart(run, *folders).error is None
    assert (folders[0] / run.run_id / END).is_file()


def test_a_place_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    outcome = run_apart(crowd(), tmp_path / "runs", tmp_path / "nowhere")
    assert outcome.error is not None
    assert outcome.error.startswith("FileNotFoundError")
