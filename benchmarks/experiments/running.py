"""Runs cases, each in a process of its own: a fresh heap, and several at a time."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context

from rich.console import Console
from rich.markup import escape

from benchmarks import pages
from flowguard.config import PolicyName
from simulations.loading import load
from simulations.run import run
from simulations.world import World

from .cases import OURS, Case, Experiment, Runs
from .probe import Observed, Probe


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
    with pages.progress(console) as progress:
        task = progress.add_task(experiment.key, total=len(steps))
        futures: dict[Future[Observed], Step] = {pool.submit(observe, s): s for s in steps}
        try:
            for future in as_completed(futures):
                step = futures[future]
                progress.update(task, description=f"{experiment.key} {escape(str(step))}")
                future.result()
                progress.advance(task)
        finally:
            pool.shutdown(cancel_futures=True)
    for future, step in futures.items():
        observed[step.case.name, step.policy].append(future.result())
    return Runs(scale, seeds, observed)
