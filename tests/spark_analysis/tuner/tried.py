"""Runs that tried limits, and what was measured of them, written by hand."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from spark_analysis.runs.examination import Run
from spark_analysis.tuner.choosing import Choice
from spark_analysis.tuner.job import tune
from spark_analysis.tuner.measuring import Measures, Value
from spark_analysis.tuner.objective import Objective
from spark_analysis.tuner.page import TuningRecord
from spark_analysis.tuner.trials import Candidate, sort_out

GOODPUT = "goodput.in_time_per_s"
MEMORY = "memory.headroom_ratio"
FLOW = {"window_max": "100", "queue_objective_s": "0.025", "unfinished_bytes_max": ""}
"""The defaults of these runs."""


@dataclass(frozen=True)
class Tried:
    """One run."""

    seed: int
    value: Value
    """Of the first objective, population all."""
    limits: Mapping[str, str] = field(default_factory=dict)
    scenario: str = "crowd"
    load: Mapping[str, str] = field(default_factory=dict)
    memory: Value = 0.5
    is_violated: bool = False
    policy: str = "flowguard"
    ended_by: str = "duration"
    copy: int = 0
    version: str = "0.1"
    source: str = "simulation"

    @property
    def run_id(self) -> str:
        words = [f"{key}={value}" for key, value in [*self.load.items(), *self.limits.items()]]
        name = "-".join([self.scenario, self.policy, str(self.seed), *words])
        return f"{name}-{self.copy}" if self.copy else name

    @property
    def run(self) -> Run:
        changed = {f"flow.{key}": value for key, value in self.limits.items()}
        row = {
            "run_id": self.run_id,
            "source": self.source,
            "flowguard_version": self.version,
            "scenario": self.scenario,
            "policy": self.policy,
            "seed": self.seed,
            "parameters": {**self.load, **changed},
            "limits": {**FLOW, **self.limits},
            "command": f"flowguard simulate {self.run_id}",
        }
        return Run("", row, {"run_id": self.run_id, "ended_by": self.ended_by}, {})


def objective(**changes: object) -> Objective:
    """More goodput, with a tenth of the memory left."""
    values: dict[str, object] = {
        "title": "more goodput",
        "objectives": [{"metric": GOODPUT}],
        "constraints": [{"metric": MEMORY, "at_least": 0.1}],
    }
    return Objective.model_validate({**values, **changes})


def measures(tried: Iterable[Tried], metric: str = GOODPUT) -> Measures:
    """As Spark would have measured them."""
    tried = list(tried)
    values: dict[tuple[str, str, str], Value] = {}
    for one in tried:
        values[metric, "all", one.run_id] = one.value
        values[MEMORY, "all", one.run_id] = one.memory
    return Measures(values, frozenset(one.run_id for one in tried if one.is_violated))


def tuned(
    tried: Iterable[Tried], wanted: Objective | None = None, metric: str = GOODPUT
) -> TuningRecord:
    """What comes out."""
    tried = list(tried)
    trials = sort_out([one.run for one in tried], "flowguard")
    return tune(wanted or objective(), trials, measures(tried, metric), [])


def chosen(tried: Iterable[Tried], wanted: Objective | None = None) -> Choice:
    """Only the choice."""
    return tuned(tried, wanted).choice


def candidate(**limits: str) -> Candidate:
    """By its limits."""
    return Candidate(tuple(sorted(limits.items())))


# Of seeds 1 to 8, half of them held out.
SEEDS = range(1, 9)
TRAINING = (2, 4, 6, 7)
HELD_OUT = (1, 3, 5, 8)


def grid(
    effects: Mapping[Candidate, float],
    *,
    noise: float = 0.01,
    scenario: str = "crowd",
    seeds: Iterable[int] = SEEDS,
) -> list[Tried]:
    """Defaults at 100 messages a second, and candidates so many times as good.

    Seeds differ much, in all alike; a candidate's own noise alternates with the seed.
    """
    found = []
    for seed in seeds:
        luck = 1 + 0.1 * (seed % 3)
        found.append(Tried(seed, 100 * luck, scenario=scenario))
        for one, effect in effects.items():
            own = 1 + noise * (-1) ** seed
            value = 100 * luck * effect * own
            found.append(Tried(seed, value, dict(one.limits), scenario=scenario))
    return found
