"""`flowguard sweep`: many simulations on Spark, one after the other or many at once on a cluster.

`flowguard` finds it as an entry point. Modules that need Spark are imported when the command is
called; if they are missing, `flowguard` names the package to install.
"""

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.progress import TextColumn

from flowguard.errors import ConfigError
from spark_analysis import terminal
from spark_analysis.terminal import EXIT_FAILED, LOCAL, Master

if TYPE_CHECKING:
    from spark_sweep.folder import SweepFolder
    from spark_sweep.job import Tell
    from spark_sweep.plan import SweepPlan
    from spark_sweep.task import RunOutcome

EXIT_INTERRUPTED: Final = 130
NAMED_MAX: Final = 5
"""Failed runs that are named on the terminal; failed.csv names all."""


def sweep(
    grid: Annotated[
        Path, typer.Argument(metavar="GRID.toml", help="Scenarios, policies, seeds, limits.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory for runs/.")],
    master: Master = LOCAL,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the number of runs and exit.")
    ] = False,
) -> None:
    """Simulate many limits and scenarios on Spark.

    They are a grid or a Latin hypercube.

    The defaults are always among them. Finished runs in DIR are not repeated, so the
    same command continues a sweep. A failed run is reported, and the others continue.
    """
    console = terminal.quiet_console()
    with console.status("loading Spark"):
        from spark_sweep.folder import SweepFolder
        from spark_sweep.grid import load_grid
        from spark_sweep.job import run_job
        from spark_sweep.plan import make_plan

    started_s = time.perf_counter()
    try:
        plan = make_plan(load_grid(grid), grid)
        if dry_run:
            typer.echo(_size(plan))
            return
        folder = SweepFolder(out)
        with folder.opened(console.print):
            missing = folder.missing(plan)
            with _progress(console, len(missing)) as tell:
                outcomes = run_job(missing, folder, master, tell)
    except ConfigError as error:
        raise terminal.refused(console, error, terminal.EXIT_ARGUMENT) from None
    except terminal.JobFailed as failure:
        raise terminal.refused(console, failure) from None
    except KeyboardInterrupt:
        console.print("Stopped; the same command goes on with what is missing.")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    took = f"{time.perf_counter() - started_s:.1f} s, Spark on {master}"
    terminal.say(console, _lines(plan, outcomes, folder, took))
    if any(outcome.error for outcome in outcomes):
        raise typer.Exit(EXIT_FAILED)


def _size(plan: "SweepPlan") -> str:
    from spark_analysis.report.words import count

    sets = count(plan.limits_count, "set of limits", "sets of limits")
    return (
        f"{count(len(plan.runs), 'run')}: {sets} (one of them the defaults) in "
        f"{count(plan.scenarios_count, 'scenario')}, with their policies and seeds"
    )


def _lines(
    plan: "SweepPlan", outcomes: "list[RunOutcome]", folder: "SweepFolder", took: str
) -> list[str]:
    """Lines for the terminal: the result, and the next command."""
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    finished_count, reused_count = len(outcomes) - len(failed), len(plan.runs) - len(outcomes)
    lines = [
        _size(plan),
        plan.assumptions,
        f"{finished_count:,} finished, {reused_count:,} reused, {len(failed):,} failed; {took}",
    ]
    if violated_count := sum(outcome.violated for outcome in outcomes):
        lines.append(f"{violated_count:,} finished runs ended with a violated invariant.")
    if others_count := folder.others_count(plan):
        lines.append(f"{others_count:,} other runs are in {folder.runs}, of earlier grids.")
    lines += [f"failed: {one.run_id}: {one.error}" for one in failed[:NAMED_MAX]]
    if failed:
        lines.append(f"{folder.failed} has all that failed, and the command that repeats each.")
    runs = shlex.quote(str(folder.runs))
    analysis, tuning = (shlex.quote(str(folder.path / name)) for name in ("analysis", "tuning"))
    return [
        *lines,
        f"runs: {folder.runs}",
        f"next: flowguard analyze {runs} --out {analysis}",
        f"  or: flowguard tune {runs} --objective goodput --out {tuning}",
    ]


@contextmanager
def _progress(console: Console, total: int) -> Iterator["Tell"]:
    shown = terminal.progress(console, TextColumn("{task.fields[failed]}", style="red"))
    task = shown.add_task("starting Spark", total=total, failed="")

    def tell(done: int, failed: int) -> None:
        words = f"{failed} failed" if failed else ""
        shown.update(task, description="simulating", completed=done, failed=words)

    with shown:
        yield tell
