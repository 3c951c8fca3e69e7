"""`flowguard analyze`: from runs to tables and a report.

Found by `flowguard` as an entry point; what needs Spark is imported when the command is called, and
`flowguard` says what to install where it is missing.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn

from spark_analysis.terminal import (
    EXIT_ARGUMENT,
    LOCAL,
    PARTITIONS,
    Master,
    Memory,
    Partitions,
    Runs,
    check_directories,
    progress,
    quiet_console,
    refused,
    say,
    step,
)


def analyze(
    runs: Runs,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where report.html and tables/ go.")
    ],
    master: Master = LOCAL,
    memory: Memory = None,
    partitions: Partitions = PARTITIONS,
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
    console = quiet_console()
    with step(console, "loading Spark"):
        from spark_analysis.following import FollowingFailed
        from spark_analysis.java import JavaMissing, find_java
        from spark_analysis.job import JobFailed, follow_job, run_job

    check_directories(console, runs)
    if follow and len(runs) != 1:
        raise refused(console, "--follow watches one directory.", EXIT_ARGUMENT)
    try:
        java = find_java()
        if follow:
            follow_job(runs[0], out, master, memory_gib=memory, console=Console())
            return
        with progress(console, BarColumn(), MofNCompleteColumn()) as shown:
            result = run_job(
                runs, out, master, memory_gib=memory, partitions=partitions, progress=shown
            )
    except (JavaMissing, JobFailed, FollowingFailed) as failure:
        raise refused(console, failure) from None
    say(console, result.lines())
    say(console, [f"{java}, Spark on {master}"], style="dim")
