"""Runs of random loads: one run, many of them, and the file that keeps them.

A file has one JSON object per line, in the format of `Run`. A measure of a later commit reads the
file of an earlier one, so that the law of that commit is compared without its code.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Final, NamedTuple, get_args

from rich.console import Console

from benchmarks import pages
from flowguard.config import PolicyName
from simulations.crowd.clients import Population
from simulations.results.run import SAMPLE_S, run
from simulations.world import World

from .dominance import OURS
from .figures import Row, measure_finely, row_of
from .random_loads import load_of

POLICIES: Final[tuple[PolicyName, ...]] = get_args(PolicyName)
RIVALS: Final[tuple[PolicyName, ...]] = ("unlimited", "static-1", "static-10", "static-100")
"""The policies that a search runs by default, beside flowguard."""
CROWD, WITHOUT_END = "crowd", "greedy"
CLASSES: Final = (CROWD, "steady", "wide", WITHOUT_END)
"""The populations of a random load that count; "wide" is in half of the loads."""
SEED_STEP: Final = 1_000_000
"""Distance between the seeds of two runs of a load."""

Parts = dict[str, float]
"""The result of a run by class of its clients.

The crowd: share of the client-seconds since each client's first attempt in which it was connected.
Open-loop publishers: messages in time, of those that were due since each client's first attempt.
Publishers without end: messages acknowledged, a count.
"""


class Step(NamedTuple):
    """A run of a random load."""

    load: int
    run: int
    """Number of the run, from 1; the same number has the same crowd under every policy."""
    policy: PolicyName
    copy: int = 0
    """Number of the copy of the policy, which has other noise; 0: the policy itself."""

    @property
    def name(self) -> str:
        return f"{self.policy}, copy {self.copy}" if self.copy else self.policy

    def __str__(self) -> str:
        return f"{self.load}, run {self.run}: {self.name}"


@dataclass(frozen=True)
class Run:
    """A finished run; a line of the file."""

    load: int
    run: int
    policy: str
    parts: Parts
    figures: Row
    violation: str | None
    """The invariant that did not hold, and ended the run."""
    commit: str


_commit = cache(pages.commit)


def run_step(step: Step) -> Run:
    """Run it here and now."""
    scenario = load_of(step.load)
    seed = scenario.seed + SEED_STEP * (step.run - 1)
    scenario = scenario.model_copy(update={"seed": seed})
    worlds: list[World] = []
    connected = Counter[str]()

    def attach(world: World) -> None:
        worlds.append(world)
        measure_finely(world)
        for machine in world.machines if step.copy else ():
            if machine.broker is not None:
                # Tick jitter, hints and noise of the node. Draws of clients do not depend on it.
                machine.broker.random.seed(f"{seed}, {machine.name}, copy {step.copy}")

    def watch(world: World) -> bool:
        connected.update({p.name: p.connected_count for p in world.populations})
        return world.violation is None

    summary = run(scenario, step.policy, attach=attach, watch=watch)
    (world,) = worlds
    parts = {}
    for population in world.populations:
        if population.name in CLASSES:
            parts[population.name] = _part(population, connected[population.name])
    figures = row_of(summary, world)
    return Run(step.load, step.run, step.name, parts, figures, summary.violation, _commit())


def _part(population: Population, connected_count: int) -> float:
    """`connected_count`: the sum over all samples."""
    duration_s = population.world.scenario.duration_s
    wanted_s = sum(max(0.0, duration_s - start_s) for start_s in population.starts_s)
    publishers = population.publishers
    if publishers is None:
        # The trapezoidal rule. No client is connected at the beginning.
        return (connected_count - population.connected_count / 2.0) * SAMPLE_S / wanted_s
    rate_per_s = publishers.plan.rate_per_s
    if rate_per_s is None:
        return float(publishers.acknowledged_count)
    return min(1.0, publishers.in_time_count / (rate_per_s * wanted_s))


def steps_of(
    loads: Iterable[int], runs: int, policies: Iterable[PolicyName], copies: int
) -> list[Step]:
    """All runs of a load beside each other, so that a search that is cut short has compared."""
    whole = [(policy, 0) for policy in policies] + [(OURS, n) for n in range(1, copies + 1)]
    return [
        Step(load, number, policy, copy)
        for load in loads
        for number in range(1, runs + 1)
        for policy, copy in whole
    ]


def run_all(steps: list[Step], jobs: int, file: Path | None, console: Console) -> Iterator[Run]:
    """Run them with progress; each finished run is appended to `file`."""
    with (
        nullcontext() if file is None else file.open("a") as kept,
        ProcessPoolExecutor(jobs, get_context("spawn")) as pool,
        pages.progress(console) as shown,
    ):
        task = shown.add_task("random loads", total=len(steps))
        for step, found in zip(steps, pool.map(run_step, steps), strict=True):
            shown.update(task, description=f"load {step}", advance=1)
            if kept is not None:
                print(json.dumps(asdict(found)), file=kept, flush=True)
            yield found


def read(file: Path) -> list[Run]:
    """Return the runs that a file keeps."""
    return [Run(**json.loads(line)) for line in file.read_text().splitlines()]
