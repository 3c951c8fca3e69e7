"""`flowguard analyze`: from runs to tables and a report.

Found by `flowguard` as an entry point; what needs Spark is imported when the command is called, and
`flowguard` says what to install where it is missing.
"""

import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


def analyze(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS...", help="Directories of runs, or directories with such below them."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where report.html and tables/ go.")
    ],
    master: Annotated[
        str, typer.Option(metavar="URL", help="Where Spark works.", show_default=True)
    ] = "local[*]",
    memory: Annotated[
        int | None,
        typer.Option(
            metavar="GIB", min=1, help="Memory of Spark's driver. Default: a quarter, 1 to 8."
        ),
    ] = None,
    partitions: Annotated[
        int, typer.Option(min=1, help="Into how many parts data is shuffled.")
    ] = 16,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", help="Watch one directory that a broker writes into; Ctrl-C ends it."
        ),
    ] = False,
) -> None:
    """Analyse runs on Spark: a report to read, tables to compute with.

    Policies and parameter sets stand side by side, with seeds as means and intervals. Runs that
    are damaged, unfinished or of another version are named and left out.

    With --follow instead: a summary per minute on the terminal and in DIR/running.json, which goes
    on where it was after a restart.
    """
    console = Console(stderr=True)
    logging.getLogger().addHandler(logging.NullHandler())  # else py4j prints a trace at Ctrl-C
    from spark_analysis.following import FollowingFailed
    from spark_analysis.java import JavaMissing, find_java
    from spark_analysis.job import JobFailed, follow_job, run_job

    for path in runs:
        if not path.is_dir():
            console.print(f"There is no directory {path}.", style="red", markup=False)
            raise typer.Exit(2)
    if follow and len(runs) != 1:
        console.print("--follow watches one directory.", style="red")
        raise typer.Exit(2)
    try:
        java = find_java()
        if follow:
            follow_job(runs[0], out, master, memory_gib=memory, console=Console())
            return
        with _progress(console) as progress:
            result = run_job(
                runs, out, master, memory_gib=memory, partitions=partitions, progress=progress
            )
    except (JavaMissing, JobFailed, FollowingFailed) as failure:
        console.print(str(failure), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    for line in result.lines():
        console.print(line, markup=False, soft_wrap=True, highlight=False)
    console.print(f"{java}, Spark on {master}", style="dim", markup=False, highlight=False)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
