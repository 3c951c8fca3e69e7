"""What an experiment is: scenarios with changes, under policies; and who judges what they did."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from benchmarks.checks import Report
from flowguard.config import PolicyName

from .figures import Figure, Figures
from .probe import Observed

OURS: PolicyName = "flowguard"
WITHOUT_TURNS: Final[dict[str, Any]] = {"node.takes_turns": False}
"""Everybody is served until nothing of it is left, as where a loop works off what a socket has: a
control for what turns do, whatever the policy."""


def no_turns(case: str) -> str:
    """The name of the same case `WITHOUT_TURNS`."""
    return f"{case}, no turns"


@dataclass(frozen=True)
class Case:
    """One scenario of the library, changed, under several policies on the same arrivals."""

    name: str
    scenario: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    """By dotted key or parameter, as `flowguard simulate --set` has them."""
    policies: tuple[PolicyName, ...] = (OURS, "unlimited")
    latencies_from_s: float = 0.0
    """What was acknowledged or delivered before counts in no percentile, virtual time."""


@dataclass(frozen=True)
class Runs:
    scale: float
    """Clients and node speed, of the published ones."""
    seeds: int
    observed: Mapping[tuple[str, str], Sequence[Observed]]
    """By case and policy, one per seed."""

    def figures(self, case: str, figure: Figure, policy: str = OURS) -> Figures:
        return Figures(tuple(figure(one) for one in self.observed[case, policy]))

    def all_of(self, policy: str) -> list[Observed]:
        return [one for (_, name), runs in self.observed.items() if name == policy for one in runs]


@dataclass(frozen=True)
class Experiment:
    """One row of the design's table."""

    key: str
    cases: Callable[[float], Sequence[Case]]
    """At a scale, 0 to 1."""
    judge: Callable[[Runs], Report]
    unscaled: str
    """Sizes and times that a scale below 1 keeps: a sentence for the page."""

    def report(self, runs: Runs) -> Report:
        """The page of the runs; at a smaller scale it names what was not scaled."""
        told = self.judge(runs)
        if runs.scale >= 1.0:
            return told
        return replace(told, scaled=f"{told.scaled} Scale {runs.scale:g}: {self.unscaled}")
