"""Plan: the runs of a sweep, each with its scenario, in the order in which they are begun."""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from flowguard import __version__
from flowguard.config import PolicyName
from flowguard.errors import ConfigError
from simulations.calibration.costs import flat_costs
from simulations.results.archive import command, run_id
from simulations.scenario import RetryPlan, Scenario
from simulations.scenario_files.loading import SUFFIXES, LoadedScenario, load, seen_from
from spark_sweep.grid import FLOW, RUNS_MAX, Grid, ScenarioChoice
from spark_sweep.points import Point, full_grid, points

DIGEST_BYTES: Final = 16


@dataclass(frozen=True)
class PlannedRun:
    """One run; it is sent to its Spark task as it is, so that files are read once, here."""

    loaded: LoadedScenario
    policy: PolicyName

    @cached_property
    def run_id(self) -> str:
        """The id that `flowguard simulate --out` would give the run."""
        return run_id(self.loaded, self.policy)

    @property
    def command(self) -> str:
        return command(self.loaded, self.policy)

    @property
    def described(self) -> dict[str, str]:
        """The run for people: scenario, policy, seed and parameters; a scenario's file may say
        something else another time."""
        parameters = {key: value for key, value in self.loaded.changes.items() if key != "seed"}
        return {
            "scenario": self.loaded.name,
            "policy": self.policy,
            "seed": str(self.loaded.scenario.seed),
            "parameters": json.dumps(parameters, sort_keys=True, default=str),
        }

    @property
    def digest(self) -> str:
        """A hash of everything that determines the run, so that changed files are noticed."""
        text = f"{__version__} {self.policy} {self.loaded.scenario.model_dump_json()}"
        return blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


@dataclass(frozen=True, slots=True)
class SweepPlan:
    runs: tuple[PlannedRun, ...]
    """The longest first, so that no processor is left with one at the end."""
    limits_count: int
    scenarios_count: int

    @property
    def assumptions(self) -> str:
        """The behaviour of simulated clients and network, in two sentences."""
        scenarios = [run.loaded.scenario for run in self.runs]
        plans = [plan for scenario in scenarios for plan in scenario.populations.values()]
        timeouts = sorted({plan.timeout_s for plan in plans})
        timeout_s = " to ".join(f"{s:.3g}" for s in dict.fromkeys((timeouts[0], timeouts[-1])))
        retries = sorted({_retries(plan.retry) for plan in plans})
        return (
            f"Simulated clients wait {timeout_s} s for CONNACK. After a failure they "
            f"{', or '.join(retries)}. No packet is lost, except by faults of a scenario."
        )


def _retries(retry: RetryPlan) -> str:
    if retry.kind == "none":
        return "give up"
    until = f", doubled up to {retry.max_s:.3g} s" if retry.kind == "backoff" else " each time"
    obedient = f" ({retry.obedient:.0%} obey retry-after-ms)" if retry.obedient else ""
    return f"retry after {retry.first_s:.3g} s{until}{obedient}"


def make_plan(grid: Grid, path: Path) -> SweepPlan:
    """The plan of a grid; `path` is the grid's file; raises ConfigError, which names it."""
    try:
        return _make_plan(grid, path.parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _make_plan(grid: Grid, folder: Path) -> SweepPlan:
    costs = {} if grid.costs is None else flat_costs(folder / grid.costs)
    variants = [
        (source, costs | changes)
        for choice in grid.scenarios
        for source, changes in _variants(choice, folder)
    ]
    _check_size(grid, len(variants))
    defaults = [load(source, changes).scenario for source, changes in variants]
    sets = _different(points(grid.limits, grid.sample), defaults)
    runs: dict[tuple[str, ...], PlannedRun] = {}
    for run in _runs(grid, variants, sets):
        _check_same(runs.setdefault(tuple(run.described.values()), run), run)
    return SweepPlan(tuple(sorted(runs.values(), key=_order)), len(sets), len(variants))


def _runs(
    grid: Grid, variants: Sequence[tuple[str, dict[str, Any]]], sets: Sequence[Point]
) -> Iterator[PlannedRun]:
    everything = itertools.product(variants, sets, grid.policies, grid.seeds)
    for (source, changes), limits, policy, seed in everything:
        yield PlannedRun(load(source, {**changes, **limits, "seed": seed}), policy)


def _variants(choice: ScenarioChoice, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    path = Path(choice.name)
    is_file = path.suffix in SUFFIXES or len(path.parts) > 1
    source = str((folder / path).resolve()) if is_file else choice.name
    for combination in full_grid(choice.grid):
        changes = {**choice.set, **combination}
        yield source, {key: seen_from(folder, key, value) for key, value in changes.items()}


def _check_size(grid: Grid, variants_count: int) -> None:
    """Refuse a grid that is too large, before a product of long lists is made."""
    levels = [len(dimension.values or ()) for dimension in grid.limits.values()]
    sets_count = 1 + (grid.sample.points if grid.sample else math.prod(levels) if levels else 0)
    count = variants_count * sets_count * len(grid.policies) * len(grid.seeds)
    if count > RUNS_MAX:
        raise ConfigError(f"these are {count:,} runs, more than {RUNS_MAX:,}; [sample] draws some")


def _different(sets: Iterable[Point], defaults: Sequence[Scenario]) -> list[Point]:
    """The sets without limits that are the defaults of all scenarios, and each set once."""
    usual: dict[str, Any] = {}
    for name in type(defaults[0].flow).model_fields:
        values = {getattr(scenario.flow, name) for scenario in defaults}
        if len(values) == 1:
            usual[f"{FLOW}{name}"] = values.pop()
    found: dict[tuple[Any, ...], Point] = {}
    for point in sets:
        other = {k: v for k, v in point.items() if k not in usual or usual[k] != v}
        found.setdefault(tuple(other.items()), other)
    return list(found.values())


def _check_same(first: PlannedRun, run: PlannedRun) -> None:
    """Check that two scenarios of one name are the same one."""
    if (first.loaded.source, first.loaded.changes) != (run.loaded.source, run.loaded.changes):
        raise ConfigError(
            f"{first.command} and {run.command} would have one description; "
            "rename a scenario's file"
        )


def _order(run: PlannedRun) -> tuple[float, int, str]:
    """The runs with the most clients and the longest time first: roughly those with most work."""
    scenario = run.loaded.scenario
    return -scenario.clients * scenario.duration_s, scenario.seed, run.run_id
