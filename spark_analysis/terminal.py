"""Terminal: the options and the output that all commands on Spark share; imports no Spark."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Master = Annotated[str, typer.Option(metavar="URL", help="Spark master.")]
Memory = Annotated[
    int | None,
    typer.Option(
        metavar="GIB",
        min=1,
        help="Memory of Spark's driver, GiB; default: a quarter of this machine's, 1 to 8.",
    ),
]
Partitions = Annotated[int, typer.Option(min=1, help="Number of shuffle partitions.")]
LOCAL: Final = "local[*]"
PARTITIONS: Final = 16
EXIT_FAILED: Final = 1
EXIT_ARGUMENT: Final = 2


class JobFailed(Exception):
    """There is no result; the text has the reason."""

    exit_code = EXIT_FAILED


def wrong_argument(why: str) -> JobFailed:
    """The failure of a job whose arguments have no meaning."""
    failure = JobFailed(why)
    failure.exit_code = EXIT_ARGUMENT
    return failure


class SparkOptions(NamedTuple):
    """How Spark is started."""

    master: str
    memory_gib: int | None
    partitions: int


def quiet_console() -> Console:
    """A console on standard error; the trace that py4j would log at Ctrl-C is not shown."""
    logging.getLogger().addHandler(logging.NullHandler())
    return Console(stderr=True)


def check_directories(runs: Sequence[Path]) -> None:
    """Raise JobFailed if a directory is missing."""
    for path in runs:
        if not path.is_dir():
            raise wrong_argument(f"There is no directory {path}.")


def make_directories(*directories: Path) -> None:
    """Raise JobFailed if one of them cannot be made, or written into; before anything is
    read."""
    for path in directories:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = f"--out: cannot make {path}: {error.strerror}; name another directory"
            raise wrong_argument(why) from None
        if not os.access(path, os.W_OK):
            why = f"--out: {path} cannot be written into; name another directory"
            raise wrong_argument(why)


@contextmanager
def exits(console: Console) -> Iterator[None]:
    """Exit with the reason if the work inside fails."""
    try:
        yield
    except JobFailed as failure:
        raise refused(console, failure, failure.exit_code) from None


def refused(console: Console, why: object, code: int = EXIT_FAILED) -> typer.Exit:
    """An exit to be raised, after printing why."""
    console.print(str(why), style="red", markup=False, soft_wrap=True)
    return typer.Exit(code)


def say(console: Console, lines: Sequence[str], *, style: str | None = None) -> None:
    """Print the lines as they are: paths are not coloured, and not broken."""
    for line in lines:
        console.print(line, style=style, markup=False, soft_wrap=True, highlight=False)


def progress(console: Console, *columns: ProgressColumn) -> Progress:
    """The current step, what is done, the time left, `columns`, and the time so far; gone at the
    end.

    If there is no terminal it is a line per step instead, and one per tenth of a long step."""
    shown: type[Progress] = Progress if console.is_terminal else _Lines
    return shown(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class _Lines(Progress):
    """Prints the beginning of each step, with the seconds since the first."""

    _said: str | None = None
    _tenths: int = 0

    def add_task(self, description: str, *options: Any, **fields: Any) -> TaskID:
        task_id = super().add_task(description, *options, **fields)
        self._say(task_id)
        return task_id

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self._say(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._say(task_id)

    def _say(self, task_id: TaskID) -> None:
        """Print a new description; for the same one, each tenth of it."""
        task = self._tasks[task_id]
        tenths = int(10 * task.completed / task.total) if task.total else 0
        is_new = task.description != self._said
        if not is_new and (tenths <= self._tenths or tenths == 10):
            return
        self._said, self._tenths = task.description, tenths
        words = task.description if is_new else f"{task.completed:,.0f} of {task.total:,.0f}"
        if not is_new and task.time_remaining is not None:
            words += f", {task.time_remaining:.0f} s left"
        say(self.console, [f"{task.elapsed or 0:5.0f} s  {words}"], style="dim")
