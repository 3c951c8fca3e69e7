"""Medians over the repetitions, ratios between brokers, verdicts on the goals."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from statistics import median

from .runner import Sample
from .scenarios import Goal, Scenario

OURS = "flowguard"
BUILDS = (OURS, "flowguard-compiled")
"""The same sources twice; every goal is judged for each of them."""


class Verdict(Enum):
    PASS = "pass"
    MISS = "miss"
    OPEN = "not measured"


@dataclass(frozen=True)
class Cell:
    samples: tuple[Sample, ...]

    @property
    def good(self) -> tuple[Sample, ...]:
        return tuple(s for s in self.samples if not s.failure)

    @property
    def failures(self) -> tuple[str, ...]:
        return tuple(s.failure for s in self.samples if s.failure)

    @property
    def notes(self) -> tuple[str, ...]:
        """What stands beside the figure, once each; failed repetitions among them."""
        notes = list(dict.fromkeys(note for s in self.samples for note in s.notes))
        if self.good and self.failures:
            notes.append(
                f"{len(self.failures)} of {len(self.samples)} runs failed: {self.failures[0]}"
            )
        return tuple(notes)

    def median(self, key: str = "value") -> float | None:
        values = self.values(key)
        return median(values) if values else None

    def values(self, key: str = "value") -> list[float]:
        return [s.figures[key] for s in self.good if key in s.figures]


@dataclass(frozen=True)
class Judged:
    """A goal, what was reached, and whether that is enough."""

    goal: Goal
    reached: float | None
    verdict: Verdict


class Results:
    """Every sample of a run, by scenario and broker."""

    def __init__(self, scenarios: Iterable[Scenario], samples: Iterable[Sample]) -> None:
        self.scenarios = tuple(scenarios)
        self.samples = tuple(samples)

    def cell(self, scenario: Scenario, broker: str) -> Cell:
        return self._cell(scenario.key, broker)

    def _cell(self, key: str, broker: str) -> Cell:
        return Cell(tuple(s for s in self.samples if s.scenario == key and s.broker == broker))

    def ratio(self, scenario: Scenario, peer: str, build: str = OURS) -> float | None:
        """Median of a build of flowguard over median of `peer`; None unless both have one."""
        return _ratio(self.cell(scenario, build), self.cell(scenario, peer))

    def judge(self, scenario: Scenario, goal: Goal, build: str = OURS) -> Judged:
        """A failed or lossy repetition of flowguard is a miss, whatever the others reached."""
        cell = self.cell(scenario, build)
        others = self._compared(scenario, goal, build)
        reached = _ratio(cell, others[0]) if others else self._worst(cell, goal)
        if len(others) == 3:
            in_row = _ratio(others[1], others[2])
            reached = reached / in_row if reached and in_row else None
        if cell.failures or any(cell.values("lost")):
            return Judged(goal, reached, Verdict.MISS)
        if reached is None or any(value for other in others for value in other.values("lost")):
            return Judged(goal, reached, Verdict.OPEN)
        enough = reached <= goal.bound if goal.at_most else reached >= goal.bound
        return Judged(goal, reached, Verdict.PASS if enough else Verdict.MISS)

    def _compared(self, scenario: Scenario, goal: Goal, build: str) -> list[Cell]:
        """What a build is compared with: nothing, a cell, or a peer and both in another row."""
        if goal.peer and goal.row:
            row = [self._cell(goal.row, build), self._cell(goal.row, goal.peer)]
            return [self.cell(scenario, goal.peer), *row]
        if goal.peer or goal.row:
            return [self._cell(goal.row or scenario.key, goal.peer or build)]
        return []

    @staticmethod
    def _worst(cell: Cell, goal: Goal) -> float | None:
        """Failures count in every repetition; other figures by their median."""
        values = cell.values(goal.key)
        if goal.key == "failures":
            return max(values, default=None)
        return median(values) if values else None

    def judged(self, build: str = OURS) -> list[tuple[Scenario, Judged]]:
        return [(s, self.judge(s, goal, build)) for s in self.scenarios for goal in s.goals]

    def ours_failed(self) -> bool:
        """Whether a sample of flowguard is missing or cannot be right."""
        return any(s.failure for s in self.samples if s.broker == OURS)


def _ratio(ours: Cell, theirs: Cell) -> float | None:
    over, under = ours.median(), theirs.median()
    return over / under if over is not None and under else None
