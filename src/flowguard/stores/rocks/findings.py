"""What somebody who reads a whole store finds: so much of each kind, and what is wrong."""

from dataclasses import dataclass, field
from typing import Final

PROBLEMS_MAX: Final = 1_000
"""More are counted, not told."""


@dataclass(slots=True)
class Findings:
    """Counts of what could be read."""

    sessions: int = 0
    groups: int = 0
    """Shared subscriptions that have a queue."""
    entries: int = 0
    retained: int = 0
    problems: list[str] = field(default_factory=list)
    problems_count: int = 0

    def wrong(self, problem: str) -> None:
        """One more thing is not as it should be."""
        self.problems_count += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)
