"""The directory of a sweep while a run that was given up still writes there."""

import fcntl
import shutil
import threading
import time
from pathlib import Path

from spark_sweep.folder import SweepFolder
from spark_sweep.task import AT_WORK, END
from tests.spark_sweep.test_plan import planned, scenario

WRITES_S = 0.5


def given_up_run(folder: SweepFolder) -> threading.Thread:
    """A run that writes for half a second more, though no process waits for it."""
    begun = threading.Event()

    def write() -> None:
        with (folder.unfinished / AT_WORK).open("a") as at_work:
            fcntl.flock(at_work, fcntl.LOCK_SH)
            begun.set()
            ends_s = time.monotonic() + WRITES_S
            while time.monotonic() < ends_s:
                (folder.unfinished / "run").mkdir(parents=True, exist_ok=True)

    run = threading.Thread(target=write)
    run.start()
    assert begun.wait(60.0)
    return run


def test_what_is_unfinished_goes_when_the_last_run_that_was_given_up_has_ended(
    tmp_path: Path,
) -> None:
    folder = SweepFolder(tmp_path)
    with folder.opened():
        run = given_up_run(folder)
    run.join()
    assert not folder.unfinished.exists()


def test_a_sweep_waits_for_the_last_run_of_one_that_was_killed_and_says_so(tmp_path: Path) -> None:
    folder, told = SweepFolder(tmp_path), list[str]()
    folder.unfinished.mkdir()
    run = given_up_run(folder)
    with folder.opened(told.append):
        run.join()
        assert [path.name for path in folder.unfinished.iterdir()] == [AT_WORK]
    assert told == ["waiting for the last runs of a sweep that was killed to end"]


def test_somebody_may_delete_what_is_unfinished_while_the_sweep_runs(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    with folder.opened():
        shutil.rmtree(folder.unfinished)
    assert not folder.unfinished.exists()


def test_a_comment_in_a_scenario_of_ones_own_leaves_its_runs_as_they_are(tmp_path: Path) -> None:
    text = (
        "from simulations.scenario import PopulationPlan, Scenario\n"
        "def scenario(seed: int = 1, clients: int = 5) -> Scenario:\n"
        "    crowd = PopulationPlan(clients=clients)\n"
        "    return Scenario(seed=seed, duration_s=9.0 + seed, populations={'crowd': crowd})\n"
    )
    grid = "scenarios = ['mine.py']\nseeds = 2"
    scenario(tmp_path, "mine.py", text)
    folder = SweepFolder(tmp_path / "out")
    plan = planned(tmp_path, grid)
    assert len({run.loaded.digest for run in plan.runs}) == 1
    with folder.opened():
        for run in folder.missing(plan):
            (folder.runs / run.run_id).mkdir()
            (folder.runs / run.run_id / END).touch()
    scenario(tmp_path, "mine.py", text + "# As in the field.\n")
    plan = planned(tmp_path, grid)
    with folder.opened():
        assert folder.missing(plan) == []
        assert folder.others_count(plan) == 0
    listed = (folder.path / "runs.csv").read_text().splitlines()[1:]
    assert len(listed) == len(plan.runs) == 2
    scenario(tmp_path, "mine.py", text.replace("clients=clients", "clients=clients + 1"))
    assert {run.run_id for run in planned(tmp_path, grid).runs}.isdisjoint(
        run.run_id for run in plan.runs
    )
