"""Disk: the disk of one node."""

from dataclasses import dataclass
from typing import final

from simulations.scenario import StorePlan


@final
@dataclass(slots=True)
class Disk:
    """The disk of one node, and the duration of a group commit on it.

    A commit costs a fixed time and one per operation. A fault makes the disk slower, or stops it: a
    commit under way then ends when the disk goes on.
    """

    plan: StorePlan
    factor: float = 1.0
    """The factor by which it is slower than planned."""
    stopped: bool = False

    def commit_s(self, ops_count: int) -> float:
        return (self.plan.commit_s + ops_count * self.plan.op_s) * self.factor

    def pages_s(self, pages_count: int) -> float:
        return pages_count * self.plan.page_s * self.factor
