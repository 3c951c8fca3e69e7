"""`python -m benchmarks.law`: the dominance table; with --write its page in benchmarks/results."""

from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Annotated, get_args

import typer

from benchmarks import pages
from benchmarks.experiments.running import in_processes
from benchmarks.parts import Strict, Write, split
from flowguard.config import PolicyName

from .cases import CASES
from .dominance import OURS, report
from .figures import Row, Step, run_step

console = pages.console()
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)


def main(
    only: Annotated[
        str, typer.Option(help=f"How names begin, by comma, of: {'; '.join(CASES)}.")
    ] = "",
    policies: Annotated[str, typer.Option(help="By comma; flowguard is always there.")] = "",
    seeds: Annotated[int, typer.Option(min=1, max=1_000, help="Runs of each.")] = 5,
    jobs: Annotated[int, typer.Option(min=1, max=64, help="Runs at a time.")] = 2,
    write: Write = False,
    strict: Strict = False,
) -> None:
    """Every policy in every case: is flowguard dominated anywhere?

    Exit status 1 with --strict: it is.
    """
    starts = split(only)
    cases = [name for name in CASES if not starts or any(name.startswith(s) for s in starts)]
    if not cases:
        raise typer.BadParameter(f"no case begins so; there are {'; '.join(CASES)}")
    wanted = set(split(policies)) or set(POLICIES)
    if unknown := sorted(wanted - set(POLICIES)):
        raise typer.BadParameter(f"unknown policies {unknown}; there are {', '.join(POLICIES)}")
    chosen = [policy for policy in POLICIES if policy in wanted or policy == OURS]
    steps = [
        Step(case, policy, seed)
        for case in cases
        for policy in chosen
        for seed in range(1, seeds + 1)
    ]
    rows, violations = run_all(steps, jobs)
    told = report(rows, violations, seeds)
    good = pages.tell(told, "Virtual time", console, pages.RESULTS if write else None)
    if strict and not good:
        raise typer.Exit(1)


def run_all(
    steps: list[Step], jobs: int
) -> tuple[dict[tuple[str, PolicyName], list[Row]], dict[tuple[str, PolicyName], str]]:
    """The figures of all runs, and what was violated, with progress."""
    rows: dict[tuple[str, PolicyName], list[Row]] = defaultdict(list)
    violations: dict[tuple[str, PolicyName], str] = {}
    pool = ProcessPoolExecutor(jobs, get_context("spawn"))
    for step, (row, violation) in in_processes(pool, run_step, steps, "law", console):
        rows[step.case, step.policy].append(row)
        if violation is not None:
            violations[step.case, step.policy] = violation
    return rows, violations


if __name__ == "__main__":
    typer.run(main)
