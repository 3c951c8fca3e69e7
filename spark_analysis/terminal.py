"""Terminal: what all commands on Spark take and say in the same way; imports no Spark."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import Progress, ProgressColumn, TextColumn, TimeElapsedColumn

Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUNS...", help="Directories of runs, or directories with such below them."
    ),
]
Master = Annotated[str, typer.Option(metavar="URL", help="Where Spark works.")]
Memory = Annotated[
    int | None,
    typer.Option(
        metavar="GIB", min=1, help="Memory of Spark's driver. Default: a quarter, 1 to 8."
    ),
]
Partitions = Annotated[int, typer.Option(min=1, help="Into how many parts data is shuffled.")]
LOCAL: Final = "local[*]"
PARTITIONS: Final = 16
EXIT_FAILED: Final = 1
EXIT_ARGUMENT: Final = 2


def quiet_console() -> Console:
    """Of standard error; what py4j would log at Ctrl-C, a trace, is not shown."""
    logging.getLogger().addHandler(logging.NullHandler())
    return Console(stderr=True)


def check_directories(console: Console, runs: Sequence[Path]) -> None:
    """Ends with exit code 2 where one is not there."""
    for path in runs:
        if not path.is_dir():
            raise refused(console, f"There is no directory {path}.", EXIT_ARGUMENT)


def refused(console: Console, why: object, code: int = EXIT_FAILED) -> typer.Exit:
    """Say why; to be raised."""
    console.print(str(why), style="red", markup=False, soft_wrap=True)
    return typer.Exit(code)


def say(console: Console, lines: Sequence[str], *, style: str | None = None) -> None:
    """As they are: paths are not coloured, and not broken."""
    for line in lines:
        console.print(line, style=style, markup=False, soft_wrap=True, highlight=False)


def progress(console: Console, *columns: ProgressColumn) -> Progress:
    """What is being done, `columns`, since when; for a person who waits, and gone at the end."""
    return Progress(
        TextColumn("{task.description}"),
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
