"""`flowguard tune`: from runs and an objective to limits, or to a reason why there are none."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from spark_analysis import terminal
from spark_analysis.terminal import (
    EXIT_ARGUMENT,
    LOCAL,
    PARTITIONS,
    Master,
    Memory,
    Partitions,
    Runs,
)

if TYPE_CHECKING:
    from spark_analysis.tuner.objective import Objective

EXIT_REFUSED: Final = 3
"""Nothing is recommended, because the runs do not support it."""


def tune(
    runs: Runs,
    objective: Annotated[
        str,
        typer.Option(metavar="OBJECTIVE", help="A TOML file, or one of: goodput, connect."),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", help="Directory for limits.toml, tuning.html and tables/."
        ),
    ],
    policy: Annotated[str, typer.Option(help="Policy whose limits are chosen.")] = "flowguard",
    master: Master = LOCAL,
    memory: Memory = None,
    partitions: Partitions = PARTITIONS,
) -> None:
    """Choose limits by recorded runs.

    It writes limits.toml and a page with the reasons.

    Runs whose parameters have a key of section `flow` try other limits; those without are the
    defaults, and everything is compared with them, seed by seed. Limits are chosen on one part of
    the seeds and judged on the other.

    If the runs do not support a recommendation, one sentence gives the reason, and the exit
    code is 3.
    """
    console = terminal.quiet_console()
    with terminal.step(console, "loading Spark"):
        from spark_analysis.java import JavaMissing, find_java
        from spark_analysis.job import JobFailed
        from spark_analysis.tables import FOLDER
        from spark_analysis.tuner.job import PolicyUnknown, run_tuning

    terminal.check_directories(console, runs)
    wanted = _wanted(objective, console)
    try:
        java = find_java()
        terminal.make_directories(console, out, out / FOLDER)
        with terminal.progress(console) as shown:
            result = run_tuning(
                runs,
                wanted,
                out,
                master,
                policy=policy,
                memory_gib=memory,
                partitions=partitions,
                progress=shown,
            )
    except PolicyUnknown as failure:
        raise terminal.refused(console, failure, EXIT_ARGUMENT) from None
    except (JavaMissing, JobFailed) as failure:
        raise terminal.refused(console, failure) from None
    terminal.say(console, result.lines())
    terminal.say(console, [f"{java}, Spark on {master}"], style="dim")
    if result.limits is None:
        raise typer.Exit(EXIT_REFUSED)


def _wanted(name: str, console: Console) -> "Objective":
    """Return the objective. Exit with code 2 if it cannot be loaded."""
    from spark_analysis.tuner.objective import ObjectiveFailed, load_objective

    try:
        return load_objective(name)
    except ObjectiveFailed as failure:
        raise terminal.refused(console, failure, EXIT_ARGUMENT) from None
