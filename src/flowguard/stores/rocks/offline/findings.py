"""Findings of a reader of a whole store: counts of each kind, and problems."""

from dataclasses import dataclass, field
from typing import Final

PROBLEMS_MAX: Final = 1_000
"""Problems that are listed; more are only counted."""


@dataclass(slots=True)
class Findings:
    """Counts of the rows that could be read."""

    sessions: int = 0
    groups: int = 0
    """Shared subscriptions that have a queue."""
    entries: int = 0
    retained: int = 0
    problems: list[str] = field(default_factory=list)
    problems_count: int = 0

    def wrong(self, problem: str) -> None:
        """Note one more problem."""
        self.problems_count += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)
