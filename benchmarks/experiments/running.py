"""Runs cases, each in a process of its own: a fresh heap, and several at a time."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import TypeVar

from rich.console import Console
from rich.markup import escape

from benchmarks import pages
from flowguard.config import PolicyName
from simulations.results.run import run
from simulations.scenario_files.loading import load
from simulations.world import World

from .cases import OURS, Case, Experiment, Runs
from .probe import Observed, Probe

S = TypeVar("S")
R = TypeVar("R")


@dataclass(frozen=True)
class Step:
    case: Case
    policy: PolicyName
    seed: int

    def __str__(self) -> str:
        return f"{self.case.name}: {self.policy}, seed {self.seed}"


def observe(step: Step) -> Observed:
    """Run it here and now."""
    case = step.case
    probes: list[Probe] = []

    def attach(world: World) -> None:
        probes.append(Probe(world, case.latencies_from_s, invariants=step.policy == OURS))

    def watch(world: World) -> bool:
        return world.violation is None

    scenario = load(case.scenario, {**case.changes, "seed": step.seed}).scenario
    summary = run(scenario, step.policy, watch=watch, attach=attach)
    # Thousands of them are nothing that anybody here looks at: the probe has its own.
    return probes[0].observed(replace(summary, samples=[]))


def steps_of(cases: Sequence[Case], seeds: int) -> Iterator[Step]:
    """Policies beside each other, so that a run that is cut short has compared something."""
    for seed in range(1, seeds + 1):
        for case in cases:
            for policy in case.policies:
                yield Step(case, policy, seed)


def run_all(experiment: Experiment, scale: float, seeds: int, jobs: int, console: Console) -> Runs:
    """Every case under every policy with every seed, with progress."""
    steps = list(steps_of(experiment.cases(scale), seeds))
    observed: dict[tuple[str, str], list[Observed]] = defaultdict(list)
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), max_tasks_per_child=1)
    for step, one in in_processes(pool, observe, steps, experiment.key, console):
        observed[step.case.name, step.policy].append(one)
    return Runs(scale, seeds, observed)


def in_processes(
    pool: ProcessPoolExecutor,
    work: Callable[[S], R],
    steps: Sequence[S],
    what: str,
    console: Console,
) -> list[tuple[S, R]]:
    """The result of each step, in their order, with progress; the first error ends them all."""
    with pages.progress(console) as progress:
        task = progress.add_task(what, total=len(steps))
        futures = {pool.submit(work, step): step for step in steps}
        try:
            for future in as_completed(futures):
                description = f"{what} {escape(str(futures[future]))}"
                progress.update(task, description=description, advance=1)
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)
    return [(step, future.result()) for future, step in futures.items()]
