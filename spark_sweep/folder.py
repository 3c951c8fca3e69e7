"""Folder: the directory of a sweep; finished runs stay, and are not run again.

DIR/runs/RUN_ID/     finished runs, as `flowguard simulate --out` writes them
DIR/runs.csv         their scenarios and parameters
DIR/failed.csv       those that failed, with the command that runs each of them alone
DIR/unfinished/      those at work
"""

import csv
import fcntl
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, final

from flowguard.errors import ConfigError
from spark_sweep.plan import PlannedRun, SweepPlan
from spark_sweep.task import AT_WORK, END, RunOutcome

_DESCRIBED: Final = ("scenario", "policy", "seed", "parameters")
_RUNS: Final = ("run_id", *_DESCRIBED, "digest")
_FAILED: Final = ("run_id", *_DESCRIBED, "error", "command")


@final
class SweepFolder:
    """The directory of one sweep; a single process works in it at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.runs = self.path / "runs"
        self.unfinished = self.path / "unfinished"
        self.failed = self.path / "failed.csv"
        self._list = self.path / "runs.csv"

    @contextmanager
    def opened(self, tell: Callable[[str], object] = str) -> Iterator[None]:
        """Create and lock the folder, and delete unfinished runs of a killed sweep. Raises
        ConfigError.

        `tell` is called with a text before the folder waits for another process.
        """
        try:
            self.runs.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise ConfigError(f"--out: cannot make {self.path}: {error.strerror}") from error
        with closing(lock):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigError(f"--out: {self.path}: another sweep is at work there") from error
            try:
                _throw_away(self.unfinished, fcntl.LOCK_NB)
            except BlockingIOError:
                tell("waiting for the last runs of a sweep that was killed to end")
                _throw_away(self.unfinished)
            self.unfinished.mkdir()
            (self.unfinished / AT_WORK).touch()
            try:
                yield
            finally:
                _throw_away(self.unfinished)

    def missing(self, plan: SweepPlan) -> list[PlannedRun]:
        """Return the runs that are not finished, in their order, and write the plan.

        Raises ConfigError if a finished run was made from something else.
        """
        listed = self._listed()
        finished = {
            tuple(row[column] for column in _DESCRIBED): row
            for row in listed.values()
            if self._is_finished(row["run_id"])
        }
        missing = []
        for run in plan.runs:
            found = finished.get(tuple(run.described.values()))
            if found is None and not self._is_finished(run.run_id):
                missing.append(run)
            elif found is None or found["digest"] != run.digest:
                found_id = run.run_id if found is None else found["run_id"]
                raise ConfigError(
                    f"--out: {self.runs / found_id} was made by something else than what "
                    f"{run.loaded.name} and flowguard are now; name another directory"
                )
        listed |= {run.run_id: _row(run) | {"digest": run.digest} for run in plan.runs}
        _write(self._list, _RUNS, (listed[key] for key in sorted(listed)))
        return missing

    def _is_finished(self, run_id: str) -> bool:
        return (self.runs / run_id / END).is_file()

    def others_count(self, plan: SweepPlan) -> int:
        """The number of finished runs that belong to an earlier plan, not to this one."""
        planned = {run.run_id for run in plan.runs}
        return sum(path.parent.name not in planned for path in self.runs.glob(f"*/{END}"))

    def report_failures(self, runs: Iterable[PlannedRun], outcomes: Sequence[RunOutcome]) -> None:
        """Write down the failed runs with the reasons; without any, reports of earlier ones are
        removed."""
        errors = {one.run_id: one.error for one in outcomes if one.error is not None}
        rows = [
            _row(run) | {"error": errors[run.run_id], "command": run.command}
            for run in sorted(runs, key=lambda run: run.run_id)
            if run.run_id in errors
        ]
        if rows:
            _write(self.failed, _FAILED, rows)
        else:
            self.failed.unlink(missing_ok=True)

    def _listed(self) -> dict[str, Mapping[str, str]]:
        try:
            with self._list.open(newline="") as file:
                return {row["run_id"]: row for row in csv.DictReader(file)}
        except FileNotFoundError:
            return {}
        except (OSError, KeyError, csv.Error, UnicodeDecodeError) as error:
            raise ConfigError(f"--out: {self._list} cannot be read: {error}") from error


def _throw_away(unfinished: Path, waits: int = 0) -> None:
    """Remove it as soon as no process writes there any more. Runs that Spark has given up, or that
    belong to a killed sweep, write until they notice that no process waits for them.

    With `LOCK_NB` it does not wait for that, and raises BlockingIOError.
    """
    with suppress(FileNotFoundError), (unfinished / AT_WORK).open("a") as at_work:
        fcntl.flock(at_work, fcntl.LOCK_EX | waits)
        shutil.rmtree(unfinished, ignore_errors=True)


def _row(run: PlannedRun) -> dict[str, str]:
    return {"run_id": run.run_id, **run.described}


def _write(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, str]]) -> None:
    """Write all of it or nothing."""
    unfinished = path.with_suffix(".csv.part")
    with unfinished.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    unfinished.replace(path)
