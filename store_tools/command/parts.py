"""Common parts of the commands of `flowguard store`: error lines, progress, output."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from flowguard.app.failures import SALVAGE
from flowguard.app.workers.data_folder import lock, stored_count
from flowguard.app.workers.seat import name_of
from flowguard.cli.console import refused, shown
from flowguard.errors import ConfigError, CorruptionError, LeasedError, LockedError, StoreError

EXIT_BAD: Final = 1
EXIT_USAGE: Final = 2
PROBLEMS_SHOWN: Final = 50


def wrong(command: str, what: str, code: int = EXIT_USAGE) -> typer.Exit:
    return refused(f"flowguard store {command}: {what}", code=code)


def list_problems(console: Console, problems: Sequence[str]) -> None:
    for problem in problems[:PROBLEMS_SHOWN]:
        console.print(shown(problem), style="red")


def stores_in(directory: Path, command: str) -> list[Path]:
    """Return the directory itself, or those of its workers' stores."""
    workers = stored_count(directory) if directory.is_dir() else None
    if workers is None:
        return [existing(directory, command)]
    return [directory / name_of(index) for index in range(workers)]


def existing(directory: Path, command: str) -> Path:
    if not directory.is_dir():
        raise wrong(command, f"there is no directory {directory}")
    if stored_count(directory) is not None:
        what = "it has the stores of several workers: name one of them"
        raise wrong(command, f"{directory}: {what}, {directory}/worker-0")
    return directory


@contextmanager
def held(data: Path, advice: str) -> Iterator[None]:
    """Keep brokers from the directory of several workers. Raises `StoreError` if one has it."""
    try:
        descriptor = lock(data)
    except ConfigError as error:
        raise StoreError(f"{error}; {advice}") from error
    try:
        yield
    finally:
        os.close(descriptor)


def _until_it_ends(error: LockedError) -> str:
    """Return the holder of a store, and a hint. A store on Redis has no copies to inspect."""
    if isinstance(error, LeasedError):
        return f"{error.held}; stop that broker, and copy then"
    return f"{error.held}; stop that one, or look at a copy: flowguard store backup DIR"


@contextmanager
def complaints(command: str) -> Iterator[None]:
    """Convert an error of the store or of an address to one or two lines, and exit."""
    try:
        yield
    except ConfigError as error:
        raise wrong(command, str(error)) from error
    except LockedError as error:
        raise wrong(command, _until_it_ends(error), EXIT_BAD) from error
    except CorruptionError as error:
        what = "start on a backup: flowguard serve --data COPY"
        if command != "salvage":
            what += f"; or {SALVAGE}"
        raise wrong(command, f"{error}\n{what}", EXIT_BAD) from error
    except StoreError as error:
        raise wrong(command, str(error), EXIT_BAD) from error
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
        raise wrong(command, what, EXIT_BAD) from error


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show progress on standard error if it is a terminal; call the result with done and total."""
    columns = (TextColumn(what), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    errors = Console(stderr=True)
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def to_stdout(lines: Iterator[str]) -> None:
    try:
        sys.stdout.writelines(lines)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe. The rest must not end with an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
