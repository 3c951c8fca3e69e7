"""Task: one run inside a Spark task, in a process of its own.

However that process ends, the Python worker that Spark gave us lives on and reports it:
otherwise Spark would repeat the task, and give up the whole job with it. Each run begins with
the memory of a worker that has run nothing.
"""

import fcntl
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from simulations.results.archive import Archive
from simulations.world import World
from spark_sweep.plan import PlannedRun

END: Final = "end-00000.parquet"
"""The last file of a run: a run that has it is complete."""
AT_WORK: Final = ".at-work"
"""A file of `unfinished` that is locked by all processes that write there."""


class RunOutcome(NamedTuple):
    run_id: str
    error: str | None
    """Why it failed, in a line."""
    violated: bool = False
    """Whether it was ended by an invariant that did not hold."""


def run_apart(run: PlannedRun, runs: Path, unfinished: Path) -> RunOutcome:
    """Simulate; the run's directory appears below `runs` when it is complete.

    It grows below `unfinished`, on the same file system, and is thrown away if it fails.
    """
    try:
        with (
            _locked(unfinished / AT_WORK),
            TemporaryDirectory(prefix=f"{run.run_id}-", dir=unfinished) as directory,
        ):
            outcome = _forked(run, Path(directory))
            if outcome.error is None:
                _publish(Path(directory) / run.run_id, runs / run.run_id)
            return outcome
    except OSError as error:
        return RunOutcome(run.run_id, _words(error))


@contextmanager
def _locked(at_work: Path) -> Iterator[None]:
    """Hold the lock as long as this process has the file open, or the one that it forks.

    Raises OSError if the folder was removed, or is being removed.
    """
    with at_work.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield


def _forked(run: PlannedRun, directory: Path) -> RunOutcome:
    # A fork, as Spark's own workers are: modules need not be imported again.
    context = get_context("fork")
    hears, tells = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(run, directory, tells))
    process.start()
    tells.close()
    with hears, suppress(EOFError):
        outcome: RunOutcome = hears.recv()
        process.join()
        return outcome
    process.join()
    return RunOutcome(run.run_id, _ended(process.exitcode or 0))


def _child(run: PlannedRun, directory: Path, tells: Connection) -> None:
    _die_first()
    try:
        outcome = record(run, directory, _lives(os.getppid()))
    except Exception as error:
        outcome = RunOutcome(run.run_id, _words(error))
    tells.send(outcome)


def record(
    run: PlannedRun, directory: Path, watch: Callable[[World], bool] = lambda _: True
) -> RunOutcome:
    """Simulate in this process; the tables are in `directory`/RUN_ID."""
    archive = Archive(directory)
    summary = archive.record(run.loaded, run.policy, watch, even_if_stopped=False)
    error = "stopped" if summary.ended_by == "stopped" else None
    return RunOutcome(run.run_id, error, summary.violation is not None)


def _lives(parent: int) -> Callable[[World], bool]:
    """A watch that says whether the process that would take the result still exists."""
    return lambda _: os.getppid() == parent


def _publish(made: Path, place: Path) -> None:
    try:
        made.rename(place)
    except OSError:
        if not (place / END).is_file():  # by a twin: Spark may begin a task twice
            raise


def _die_first() -> None:
    """Ask the kernel to kill this process first if memory is short, not Spark or others."""
    with suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text("1000")


def _ended(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    name = signal.Signals(-code).name
    return f"its process was killed by {name}" + (": out of memory?" if name == "SIGKILL" else "")


def _words(error: BaseException) -> str:
    """The error in a line, with its place."""
    said = " ".join(str(error).split())
    where = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(where[-1].filename).name}:{where[-1].lineno})" if where else ""
    return f"{type(error).__name__}: {said}{place}" if said else f"{type(error).__name__}{place}"
