"""Disk: the disk of one node."""

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from typing import final

from simulations.draws import Draws
from simulations.scenario import StorePlan


@final
@dataclass(slots=True)
class Disk:
    """The disk of one node, and the duration of a group commit on it.

    A commit costs a fixed time and one per operation. A fault makes the disk slower, or stops it: a
    commit under way then ends when the disk goes on.
    """

    plan: StorePlan
    draws: Draws
    factor: float = 1.0
    """The factor by which it is slower than planned."""
    stopped: bool = False
    _commits_count: int = field(default=0, init=False)
    _sums: list[float] = field(init=False)
    """Weights of the commit times, added up."""

    def __post_init__(self) -> None:
        self._sums = list(accumulate(weight for _, weight in self.plan.commit_times))

    def commit_s(self, ops_count: int) -> float:
        fixed_s, sums = self.plan.commit_s, self._sums
        if sums:
            drawn = sums[-1] * self.draws.uniform(0, self._commits_count)
            self._commits_count += 1
            fixed_s = self.plan.commit_times[bisect_right(sums, drawn)][0]
        return (fixed_s + ops_count * self.plan.op_s) * self.factor

    def pages_s(self, pages_count: int) -> float:
        return pages_count * self.plan.page_s * self.factor
