"""Disk: how long a group commit takes.

One commit is under way at a time; work that arrives meanwhile is in the next one (that is the
journal's doing). A commit costs a fixed time and one per operation. A fault makes the disk
slower, or stops it: a commit under way then ends when the disk goes on.
"""

from typing import final

from simulations.scenario import StorePlan


@final
class Disk:
    """The disk of one node; survives its process."""

    __slots__ = ("_plan", "factor", "stopped")

    def __init__(self, plan: StorePlan) -> None:
        self._plan = plan
        self.factor = 1.0
        """The factor by which it is slower than planned."""
        self.stopped = False

    def commit_s(self, ops_count: int) -> float:
        """How long a commit of so many operations takes."""
        return (self._plan.commit_s + ops_count * self._plan.op_s) * self.factor

    def pages_s(self, pages_count: int) -> float:
        """How long reading so many pages of backlogs takes."""
        return pages_count * self._plan.page_s * self.factor
