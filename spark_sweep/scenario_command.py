"""`flowguard scenario`: a scenario that is like a recorded run, and a check of how like it is."""

from pathlib import Path
from typing import Annotated, Final

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from flowguard.errors import ConfigError
from simulations.fitting.fit import fit
from simulations.fitting.recorded import RecordedRun, read_run
from simulations.fitting.writing import scenario_toml
from simulations.scenario_files.loading import load
from spark_analysis import terminal
from spark_sweep.likeness import TOLERANCE, Likeness, compare

SEEDS: Final = 3
COLUMNS: Final = ("figure", "recorded", "95 %", "simulated", "95 %", "deviation")

scenario = typer.Typer(
    help="Make a scenario from a recorded run, and compare both.",
    no_args_is_help=True,
    add_completion=False,
)
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a recorded run.")]


@scenario.command("from")
def from_run(
    run: Run,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="Scenario, TOML.")],
) -> None:
    """Make a scenario that is like the recorded run of a broker.

    It has the run's clients, messages, costs and limits. Each assumption is printed, and is a
    comment in the file.
    """
    console = Console(markup=False, highlight=False, soft_wrap=True)
    try:
        notes = write_like(read_run(run), out)
    except (ConfigError, OSError) as error:
        raise terminal.refused(Console(stderr=True), error, terminal.EXIT_ARGUMENT) from None
    for note in notes:
        console.print(f"- {note}")
    console.print(f"written to {out}; next:")
    console.print(f"flowguard scenario check {run} {out}")


def write_like(run: RecordedRun, out: Path) -> list[str]:
    """Write a scenario that is like the run, and return what the recording does not show."""
    fitted = fit(run)
    comments = [
        f"Made from the recorded run {run.run_id} by flowguard scenario from.",
        *fitted.notes,
    ]
    out.write_text(scenario_toml(fitted.table, comments))
    return fitted.notes


@scenario.command("check")
def check(
    run: Run,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Scenario, TOML.")],
    seeds: Annotated[int, typer.Option(min=2, help="Number of simulations.")] = SEEDS,
) -> None:
    """Compare the simulated scenario with the recorded run.

    The exit code is 1 if a figure is more than 20 % off.
    """
    try:
        recorded, loaded = read_run(run), load(str(file))
        figures = compare(recorded, loaded.scenario, range(1, seeds + 1))
    except ConfigError as error:
        raise terminal.refused(Console(stderr=True), error, terminal.EXIT_ARGUMENT) from None
    Console(markup=False).print(likeness_table(figures, recorded.run_id))
    if not all(figure.agrees for figure in figures):
        raise typer.Exit(1)


def likeness_table(figures: list[Likeness], run_id: str) -> Table:
    table = Table(
        *COLUMNS, title=f"{run_id}: at most {TOLERANCE:.0%} off", box=box.SIMPLE, pad_edge=False
    )
    for figure in figures:
        table.add_row(*cells(figure), style="green" if figure.agrees else "red")
    return table


def cells(figure: Likeness) -> tuple[str, ...]:
    """Return a figure as texts, in the order of COLUMNS."""
    of_parts = figure.recorded_interval
    return (
        figure.name,
        f"{figure.recorded:.4g}",
        "" if of_parts is None else f"± {of_parts.half:.2g}",
        f"{figure.simulated.mean:.4g}",
        f"± {figure.simulated.half:.2g}",
        f"{figure.deviation:+.0%}",
    )
