"""`flowguard tune`: from runs and an objective to limits, or to a reason why there are none."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from spark_analysis.tuner.objective import Objective

EXIT_REFUSED: Final = 3
"""Nothing is recommended, because the runs do not support it."""


def tune(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS...", help="Directories of runs, or directories with such below them."
        ),
    ],
    objective: Annotated[
        str,
        typer.Option(metavar="OBJECTIVE", help="A TOML file, or one of: goodput, connect."),
    ],
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Where limits.toml, tuning.html and tables/ go."),
    ],
    policy: Annotated[str, typer.Option(help="Whose limits.")] = "flowguard",
    master: Annotated[str, typer.Option(metavar="URL", help="Where Spark works.")] = "local[*]",
    memory: Annotated[
        int | None,
        typer.Option(
            metavar="GIB", min=1, help="Memory of Spark's driver. Default: a quarter, 1 to 8."
        ),
    ] = None,
    partitions: Annotated[
        int, typer.Option(min=1, help="Into how many parts data is shuffled.")
    ] = 16,
) -> None:
    """Choose limits by recorded runs: limits.toml, and a page that says why.

    Runs whose parameters have a key of section `flow` try other limits; those without are the
    defaults, and everything is compared with them, seed by seed. Limits are chosen on one part of
    the seeds and judged on the other.

    Where the runs do not support a recommendation there is none: a sentence says why, and the exit
    code is 3.
    """
    console = Console(stderr=True)
    logging.getLogger().addHandler(logging.NullHandler())  # else py4j prints a trace at Ctrl-C
    from spark_analysis.java import JavaMissing, find_java
    from spark_analysis.job import JobFailed
    from spark_analysis.tuner.job import run_tuning

    wanted = _wanted(runs, objective, console)
    try:
        java = find_java()
        with _progress(console) as progress:
            result = run_tuning(
                runs,
                wanted,
                out,
                master,
                policy=policy,
                memory_gib=memory,
                partitions=partitions,
                progress=progress,
            )
    except (JavaMissing, JobFailed) as failure:
        console.print(str(failure), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    for line in result.lines():
        console.print(line, markup=False, soft_wrap=True, highlight=False)
    console.print(f"{java}, Spark on {master}", style="dim", markup=False, highlight=False)
    if result.limits is None:
        raise typer.Exit(EXIT_REFUSED)


def _wanted(runs: list[Path], name: str, console: Console) -> "Objective":
    """The objective; ends with exit code 2 where an argument is wrong."""
    from spark_analysis.tuner.objective import ObjectiveFailed, load_objective

    for path in runs:
        if not path.is_dir():
            console.print(f"There is no directory {path}.", style="red", markup=False)
            raise typer.Exit(2)
    try:
        return load_objective(name)
    except ObjectiveFailed as failure:
        console.print(str(failure), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(2) from None


def _progress(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
