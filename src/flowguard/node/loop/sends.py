"""Sends: the connections whose bytes go to their sockets at the end of a slice.

A few connections are sent to at once. A message for a thousand subscribers is sent to a limited
number of them per slice, so that messages with few subscribers do not wait for all these sends.
A client that publishes to a thousand subscribers seldom sends one message only. So these wait a
short time for its next messages, which then go with the same send: the system call is most of the
work. The newest connection is that of the publisher; it goes first and does not wait for these
sends.
"""

from collections import deque
from typing import Final, Generic, TypeVar, final

SENDS_MAX: Final = 512
"""Maximum number of sends to many connections in a slice: four milliseconds."""
JOIN_S: Final = 0.01
"""Maximum time that many connections wait for further messages, in seconds."""

C = TypeVar("C")


@final
class Sends(Generic[C]):
    """Connections with data to send; none is added again before its turn."""

    def __init__(self) -> None:
        self._waiting: list[C] = []
        """Connections that wait for further messages, all since the first was added."""
        self._since_s = 0.0
        self._due: deque[C] = deque()

    def __len__(self) -> int:
        """Number of connections that wait for their turn."""
        return len(self._waiting) + len(self._due)

    def next(self, connections: list[C], now_s: float, *, more: bool) -> list[C]:
        """Return the connections to send to now, after `connections` were added.

        `more` if pending work may have further messages for those that wait.
        """
        connections = connections[::-1]
        if len(connections) > SENDS_MAX:
            if not self._waiting:
                self._since_s = now_s
            self._waiting += connections[1:]
            connections = connections[:1]
        due = self._due
        if not due and self._waiting and not (more and now_s - self._since_s < JOIN_S):
            due.extend(self._waiting)
            self._waiting = []
        if due:
            count = min(SENDS_MAX, len(due))
            connections = connections + [due.popleft() for _ in range(count)]
        return connections
