"""Sends: whose bytes go to their sockets at the end of a slice.

A few are sent to at once. What a message says to a thousand goes to so many of them in a slice that
nobody else waits for all: who has one reader does not wait for those who have many. And a client
that publishes to a thousand seldom has one message only: those thousand wait a little for the next
ones of it, which then go with the same send. For them a system call is most of the work.
"""

from collections import deque
from typing import Final, Generic, TypeVar, final

SENDS_MAX: Final = 512
"""In a slice, beside those who are few: four milliseconds."""
JOIN_S: Final = 0.01
"""So long many wait for what else they may be told."""

C = TypeVar("C")


@final
class Sends(Generic[C]):
    """Connections that have something to send; none comes again before its turn."""

    def __init__(self) -> None:
        self._waiting: list[C] = []
        """For what else they may be told, all since the first of them came."""
        self._since_s = 0.0
        self._due: deque[C] = deque()

    def __len__(self) -> int:
        """How many wait for their turn."""
        return len(self._waiting) + len(self._due)

    def next(self, connections: list[C], now_s: float, *, more: bool) -> list[C]:
        """Return those to send to now, when `connections` have come; `more`: there is work that may
        tell those who wait something else."""
        if len(connections) > SENDS_MAX:
            if not self._waiting:
                self._since_s = now_s
            self._waiting += connections
            connections = []
        due = self._due
        if not due and self._waiting and not (more and now_s - self._since_s < JOIN_S):
            due.extend(self._waiting)
            self._waiting = []
        if due:
            count = min(SENDS_MAX, len(due))
            connections = connections + [due.popleft() for _ in range(count)]
        return connections
