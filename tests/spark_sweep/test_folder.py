"""The directory of a sweep while a run that was given up still writes there."""

import fcntl
import shutil
import threading
import time
from pathlib import Path

from spark_sweep.folder import SweepFolder
from spark_sweep.task import AT_WORK

WRITES_S = 0.5


def given_up_run(folder: SweepFolder) -> threading.Thread:
    """A run that writes on for half a second, though nobody waits for it."""
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
