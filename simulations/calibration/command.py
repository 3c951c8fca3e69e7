"""`flowguard calibrate`: what work costs a broker on this machine, for the simulator."""

import platform
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Annotated, Final, cast, get_args

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from flowguard import __version__
from flowguard.cli.descriptors import require_descriptors
from flowguard.errors import ConfigError
from simulations.calibration.check import Check, Comparison
from simulations.calibration.costs import Costs, costs_toml, load_costs
from simulations.calibration.estimates import Estimate, estimates
from simulations.calibration.probes import STEPS, Sizes, measure
from simulations.calibration.process import CalibrationError, StoreKind, cpu_model

SLOWNESS_MAX: Final = 2.0
"""Factor of slowness beyond which even ratios mean nothing."""
LOAD_SHARE: Final = 0.9
"""Share of a core that the load took, above which the load limits the measurement."""
OTHERS: Final = 600
"""Maximum number of clients of a check besides both crowds."""
POSITIVE: Final = ("node.connect_s", "node.publish_s")
SCHEDSTAT: Final = Path("/proc/self/schedstat")


def calibrate(
    out: Annotated[
        Path | None, typer.Option(help="Write the costs to this TOML file.", dir_okay=False)
    ] = None,
    store: Annotated[
        str, typer.Option(help="Store of the broker: rocks, memory, or slow.")
    ] = "rocks",
    check: Annotated[
        bool, typer.Option("--check", help="Compare the simulator with the real broker.")
    ] = False,
    costs: Annotated[
        Path | None, typer.Option(help="Check with the costs in this file; measure nothing.")
    ] = None,
    clients: Annotated[int, typer.Option(min=50, help="Clients in a storm.")] = 2_000,
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions of each measurement.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed for the arrivals of --check.")] = 1,
) -> None:
    """Measure what a broker's work costs on this machine.

    The result is for `simulate --costs`.

    A real broker and its clients run on this machine for about a minute. --check takes four more,
    and exits with 1 if ratios of the simulator and of the broker differ too much.
    """
    console = Console(markup=False, emoji=False)
    if costs is not None and not check:
        raise _failed("--costs is for --check only: add --check", 2)
    kind = _prepared(store, clients, out)
    try:
        chosen = None if costs is None else load_costs(costs)
    except ConfigError as error:
        raise _failed(str(error), 2) from error
    try:
        if chosen is None:
            measured = _measured(kind, Sizes(min(clients, Sizes().clients)), repeats)
            console.print(costs_table(measured))
            chosen = costs_of(measured, kind)
            if out is not None:
                out.write_text(costs_toml(chosen, _comments(kind)))
                console.print(f"written to {out}; next:", highlight=False)
                console.print(f"flowguard simulate SCENARIO --costs {out}", highlight=False)
        comparisons = _compared(Check(kind, chosen, clients, seed)) if check else []
    except (CalibrationError, OSError) as error:  # OSError: of the file.
        raise _failed(str(error), 1) from error
    for comparison in comparisons:
        console.print(comparison_table(comparison))
    if not all(figure.agrees for each in comparisons for figure in each.figures):
        raise typer.Exit(1)


def _prepared(store: str, clients: int, out: Path | None) -> StoreKind:
    """Return the kind of store. Raise typer.Exit for every invalid option before anything
    starts."""
    if not SCHEDSTAT.exists():
        raise _failed("this needs Linux with /proc/self/schedstat: CPU time by thread", 2)
    if out is not None and not out.parent.is_dir():
        raise _failed(f"cannot write {out}: there is no such directory", 2)
    try:
        require_descriptors(max(2 * clients + OTHERS, 3 * min(clients, Sizes().clients)))
    except ConfigError as error:
        raise _failed(str(error), 2) from error
    for kind in get_args(StoreKind):
        if store == kind:
            return cast(StoreKind, kind)
    raise _failed(f"--store {store}: there are {', '.join(get_args(StoreKind))}", 2)


def _failed(why: str, code: int) -> typer.Exit:
    console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
    console.print(f"cannot calibrate: {why}", style="red")
    return typer.Exit(code)


def _measured(store: StoreKind, sizes: Sizes, repeats: int) -> dict[str, Estimate]:
    with _progress() as progress:
        on_step = _on_step(progress, "measuring", repeats * STEPS)
        return estimates([measure(store, sizes, on_step) for _ in range(repeats)], store)


def _compared(check: Check) -> list[Comparison]:
    with _progress() as progress:
        return check.run(_on_step(progress, "checking", len(check.cases())))


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _on_step(progress: Progress, what: str, total: int) -> Callable[[str], None]:
    """Return a callback that begins a step and marks the previous one as done."""
    task = progress.add_task(what, total=total)
    begun = iter(range(total))

    def on_step(name: str) -> None:
        progress.update(task, completed=next(begun), description=f"{what}: {name}")

    return on_step


def costs_of(measured: dict[str, Estimate], store: StoreKind) -> Costs:
    """Return the tables of a costs file. Raises CalibrationError if a measurement is no cost."""
    costs: Costs = {}
    for key, each in measured.items():
        table, _, name = key.partition(".")
        if key in POSITIVE and each.value <= 0.0:
            raise CalibrationError(f"{key} is lost in the noise: measure more, with --clients")
        value = round(each.value) if name.endswith("_bytes") else each.value
        costs.setdefault(table, {})[name] = value
    costs["store"]["immediate"] = store == "memory"
    return costs


def _comments(store: StoreKind) -> list[str]:
    return [
        f"Costs of a broker's work, measured by flowguard {__version__} calibrate --store {store}",
        f"on {cpu_model()}, Python {platform.python_version()}, {datetime.now(UTC):%Y-%m-%d}.",
        "Overlays a scenario: flowguard simulate SCENARIO --costs FILE",
    ]


def costs_table(measured: dict[str, Estimate]) -> Table:
    """Return the costs as a table in microseconds and bytes."""
    table = Table(
        *("cost", "here", "from", "to", ""),
        title="Costs of work here",
        title_justify="left",
    )
    table.box, table.pad_edge = box.SIMPLE, False
    for column in table.columns[1:4]:
        column.justify = "right"
    for key, each in measured.items():
        is_time = key.endswith("_s")
        factor = 1e6 if is_time else 1.0
        shown = [f"{factor * value:,.1f}" if is_time else f"{value:,.0f}" for value in each]
        table.add_row(key, *shown, "µs" if is_time else "bytes")
    return table


def comparison_table(comparison: Comparison) -> Table:
    """The median and range of the real values, the simulated value, and the deviation; judged
    figures are green or red."""
    slowness, load = comparison.slowness, comparison.load_share
    busy = (
        f"waiting for a core slowed the loop {slowness:.2f} times; the load took {load:.0%} of one"
    )
    if slowness > SLOWNESS_MAX or load > LOAD_SHARE:
        busy += ": too busy a machine for a verdict"
    header = "", "real", "range", "simulated", "deviation"
    table = Table(*header, title=comparison.name, caption=busy)
    for column in table.columns[1:]:
        column.justify = "right"
    for figure in comparison.figures:
        low, middle, high = min(figure.real), median(figure.real), max(figure.real)
        is_judged = figure.tolerance is not None
        table.add_row(
            figure.name,
            f"{middle:,.4g}",
            f"{low:,.3g} to {high:,.3g}",
            f"{figure.simulated:,.4g}",
            f"{figure.deviation:+.0%}" + (f" of {figure.tolerance:.0%}" if is_judged else ""),
            style=("green" if figure.agrees else "red") if is_judged else "",
        )
    return table
