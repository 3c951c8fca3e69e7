"""`python -m benchmarks.likeness`: recorded runs of real brokers beside their fitted scenarios.

Three loads are recorded: a steady fleet, a crowd, a wide fan-out. Each becomes a scenario by
`flowguard scenario from`, and is compared as by `flowguard scenario check`.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks import machine, pages
from benchmarks.checks import Grid, Report, at_most
from benchmarks.parts import Strict, Write
from flowguard import build
from flowguard.cli.descriptors import use_all_descriptors
from simulations.calibration.process import broker_process
from simulations.calibration.runs import driven
from simulations.fitting.recorded import read_run
from simulations.scenario import PopulationPlan, PublishPlan, Scenario
from simulations.scenario_files.loading import load
from spark_sweep.likeness import TOLERANCE, Likeness, compare
from spark_sweep.scenario_command import COLUMNS, cells, write_like

KEY = "likeness"
TITLE = "Scenarios from recorded runs"
SECONDS = 30.0
SEEDS = 3
LOAD = "load"
"""File with the mean number of programs that wanted a core while a run was recorded."""
PAIRS = 100
RECEIVERS = 300
console = pages.console()


def fleet(clients: int) -> dict[str, PopulationPlan]:
    """Pairs whose publishers send 5 messages per second each."""
    publish = PublishPlan(rate_per_s=5.0, to="receivers", spread="one")
    return {
        "receivers": PopulationPlan(clients=clients, start_over_s=0.5, subscribes=True),
        "senders": PopulationPlan(
            clients=clients, start_s=0.5, start_over_s=2.0, durable=False, publish=publish
        ),
    }


def scenarios(seconds: float, clients: int) -> dict[str, Scenario]:
    crowd = PopulationPlan(clients=clients, start_s=seconds / 3, start_over_s=0.5)
    one = PublishPlan(rate_per_s=8.0, to="receivers", spread="all")
    wide = fleet(RECEIVERS)
    wide["senders"] = wide["senders"].model_copy(update={"clients": 1, "publish": one})
    populations = {
        "steady fleet": fleet(PAIRS),
        "flash crowd": {"crowd": crowd, **fleet(PAIRS // 5)},
        "wide fan-out": wide,
    }
    return {
        name: Scenario(duration_s=seconds, populations=plans) for name, plans in populations.items()
    }


def record(scenario: Scenario, folder: Path) -> None:
    """Record a run of the load on a real broker below `folder`."""
    with broker_process("rocks", {"telemetry": {"record_dir": str(folder)}}) as broker:
        driven(broker, scenario, scenario.duration_s)
        broker.finish()
    (folder / LOAD).write_text(f"{os.getloadavg()[0]:.0f}\n")


@dataclass(frozen=True)
class Likenesses:
    figures: Mapping[str, Sequence[Likeness]]
    notes: Mapping[str, Sequence[str]]
    build: str
    folder: Path

    def report(self) -> Report:
        rows = [(name, *cells(figure)) for name in self.figures for figure in self.figures[name]]
        checks = [
            at_most(f"{name}: {figure.name}, off by", abs(figure.deviation), TOLERANCE, digits=2)
            for name in self.figures
            for figure in self.figures[name]
        ]
        words = [f"{name}: {note}" for name in self.notes for note in self.notes[name]]
        loads = ", ".join(f"{load_of(self.folder, name)} ({name})" for name in self.figures)
        text = (
            f"{self.build}. Programs that wanted a core while it was recorded: {loads}.\n\n"
            "Assumptions, as `flowguard scenario from` prints them:\n\n"
        ) + "\n".join(f"- {each}" for each in words)
        return Report(KEY, TITLE, text, tuple(checks), (Grid(("run", *COLUMNS), tuple(rows)),))


def load_of(folder: Path, name: str) -> str:
    return (folder / name.replace(" ", "-") / LOAD).read_text().strip()


def main(
    seconds: Annotated[float, typer.Option(min=5, help="Duration of each run.")] = SECONDS,
    clients: Annotated[int, typer.Option(min=50, help="Clients of the crowd.")] = 1_500,
    only: Annotated[str, typer.Option(help="A part of the names of the runs.")] = "",
    keep: Annotated[Path | None, typer.Option(help="Directory for the recordings.")] = None,
    write: Write = False,
    strict: Strict = False,
) -> None:
    """Record runs of real brokers, and compare them with simulations."""
    use_all_descriptors()
    figures: dict[str, Sequence[Likeness]] = {}
    notes: dict[str, Sequence[str]] = {}
    with TemporaryDirectory(prefix="likeness-") as temporary:
        for name, scenario in scenarios(seconds, clients).items():
            if only not in name:
                continue
            folder = (keep or Path(temporary)) / name.replace(" ", "-")
            if not folder.exists():
                console.print(f"recording {name}")
                record(scenario, folder)
            console.print(f"fitting {name}")
            run, file = read_run(folder), folder / "like.toml"
            notes[name] = write_like(run, file)
            figures[name] = compare(run, load(str(file)).scenario, range(1, SEEDS + 1))
        kind = "Compiled" if build.is_up_to_date(build.CHECKOUT) else "Pure Python"
        found = Likenesses(figures, notes, kind, keep or Path(temporary))
        to = pages.RESULTS if write else None
        passed = pages.tell(found, machine.describe(), console, to)
    if strict and not passed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
