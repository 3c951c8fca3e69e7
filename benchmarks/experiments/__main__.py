"""`python -m benchmarks.experiments`: run, show, and with --write fill benchmarks/results."""

import os
from typing import Annotated, Final

import typer

from benchmarks import machine, pages
from benchmarks.checks import Report
from benchmarks.parts import Strict, Write, split

from . import (
    e01_fan_out,
    e02_flash_crowd,
    e03_retry_storm,
    e04_cascade,
    e05_slow_store,
    e06_noisy_neighbour,
    e10_stability,
    e11_resume,
    e13_partition,
    e14_zone,
    speed,
)
from .cases import Experiment
from .running import run_all

EXPERIMENTS: Final[dict[str, Experiment]] = {
    module.EXPERIMENT.key: module.EXPERIMENT
    for module in (
        *(e01_fan_out, e02_flash_crowd, e03_retry_storm, e04_cascade, e05_slow_store),
        *(e06_noisy_neighbour, e10_stability, e11_resume, e13_partition, e14_zone),
    )
}
SPEED: Final = "scale"
"""The simulator's own bench; run only when asked for."""
console = pages.console()


def main(
    only: Annotated[
        str, typer.Option(help=f"Of {', '.join((*EXPERIMENTS, SPEED))}, by comma.")
    ] = "",
    scale: Annotated[
        float,
        typer.Option(min=0.005, max=1.0, help="Clients and node speed, of the published ones."),
    ] = 1.0,
    seeds: Annotated[int, typer.Option(min=1, max=1_000, help="Runs of each.")] = 3,
    jobs: Annotated[
        int, typer.Option(min=1, max=64, help="Runs at a time; for scale always one.")
    ] = len(os.sched_getaffinity(0)),
    write: Write = False,
    strict: Strict = False,
) -> None:
    """The simulated experiments, with their pass columns, each beside a control that has to fail.

    Exit status 1 with --strict: a bound was missed.
    """
    good = True
    for key in choose(only):
        where = "Virtual time" if key != SPEED else machine.describe()
        report = run_all_of(key, scale, seeds, jobs)
        good &= pages.tell(report, where, console, pages.RESULTS if write else None)
    if strict and not good:
        raise typer.Exit(1)


def choose(only: str) -> list[str]:
    wanted = {word.upper() if word != SPEED else word for word in split(only)} or set(EXPERIMENTS)
    if unknown := sorted(wanted - {*EXPERIMENTS, SPEED}):
        known = ", ".join((*EXPERIMENTS, SPEED))
        raise typer.BadParameter(f"unknown experiments {unknown}; there are {known}")
    return [key for key in (*EXPERIMENTS, SPEED) if key in wanted]


def run_all_of(key: str, scale: float, seeds: int, jobs: int) -> Report:
    if key == SPEED:
        return speed.measure_all(scale, console)
    experiment = EXPERIMENTS[key]
    return experiment.report(run_all(experiment, scale, seeds, jobs, console))


if __name__ == "__main__":
    typer.run(main)
