"""What policies are compared by: each figure, which way is better, and what is too little to count.

How long an acknowledgement takes is judged for open-loop publishers only. One that always has more
to send waits for what it has outstanding, by its throughput, under every policy (Little's law):
there throughput counts.
"""

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from flowguard.config import PolicyName
from flowguard.flow.load.histogram import Histogram
from simulations.crowd.publishers import FINE_BOUNDS_S, Publishers
from simulations.results.run import Summary, run
from simulations.scenario import Scenario
from simulations.scenario_files.loading import load
from simulations.world import World

from .cases import CASES, LawCase


@dataclass(frozen=True)
class Kind:
    """How a figure is judged."""

    more_is_better: bool
    least: float
    """A difference below it is none."""


KINDS = {
    "t50 s": Kind(False, 0.15),
    "t99 s": Kind(False, 0.15),
    "attempts": Kind(False, 0.02),
    "declined %": Kind(False, 2.0),
    "memory MiB": Kind(False, 3.0),
    "deaths": Kind(False, 0.1),
    "in time %": Kind(True, 0.5),
    "p99 s": Kind(False, 0.001_5),
    "acknowledged": Kind(True, 1.0),
}
"""By how the name of the figure begins."""

Row = dict[str, float]
"""A run's figures by name; infinite: it never happened."""


class Step(NamedTuple):
    """A run of a case."""

    case: str
    policy: PolicyName
    seed: int

    def __str__(self) -> str:
        return f"{self.case}: {self.policy}, seed {self.seed}"


def run_step(step: Step) -> tuple[Row, str | None]:
    """Its figures, and what was violated; here, because no spawned process finds it in a package's
    `__main__`."""
    return observe(CASES[step.case], step.policy, step.seed)


def kind_of(name: str) -> Kind:
    return next(kind for start, kind in KINDS.items() if name.startswith(start))


def observe(case: LawCase, policy: PolicyName, seed: int) -> tuple[Row, str | None]:
    """One run here and now: its figures, and the invariant it violated, if there is one."""
    return look_at(load(case.scenario, {**case.changes, "seed": seed}).scenario, policy)


def look_at(scenario: Scenario, policy: PolicyName) -> tuple[Row, str | None]:
    """The same of a scenario."""
    worlds: list[World] = []

    def attach(world: World) -> None:
        worlds.append(world)
        measure_finely(world)

    summary = run(scenario, policy, attach=attach, watch=lambda world: world.violation is None)
    return row_of(summary, worlds[0]), summary.violation


def measure_finely(world: World) -> None:
    """Use buckets of 1 % for the latencies of a world that has not begun."""
    for population in world.populations:
        if population.publishers is not None:
            population.publishers.acknowledgements = Histogram(FINE_BOUNDS_S)


def row_of(summary: Summary, world: World) -> Row:
    """Return the figures of a finished run."""
    row = {
        "t50 s": _known(summary.connected_50_s),
        "t99 s": _known(summary.connected_99_s),
        "attempts": summary.attempts_per_client,
        "declined %": 100.0 * summary.declined_count / summary.clients,
        "memory MiB": summary.memory_peak_bytes / 2**20,
        "deaths": float(summary.deaths_count),
    }
    for population in world.populations:
        if population.publishers is not None:
            row |= _published(population.name, population.publishers)
    return row


def _published(name: str, publishers: Publishers) -> Row:
    row = {f"acknowledged {name}": float(publishers.acknowledged_count)}
    if publishers.plan.rate_per_s is not None or publishers.plan.trace is not None:
        in_time = publishers.in_time_count / max(1, publishers.due_count)
        row[f"in time % {name}"] = 100.0 * in_time
        row[f"p99 s {name}"] = _known(publishers.acknowledgements.percentile(0.99))
    return row


def _known(value: float | None) -> float:
    return inf if value is None else value
