"""Rounds: whose turn it is, among the conversations that have packets and may have room for them.

With a thousand clients that flood a node, such a queue is never empty, and to work it off takes
long. So it is worked off in rounds, a part of it in each turn (`turns`): sockets are read and
commits answered in between. In a round everybody is run once at most, and who was not in the round
before goes first: a client that sends little does not wait for those that always want more, and
they wait for each other only. That is what FQ-CoDel does for sparse flows (RFC 8290, 4.2).
"""

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar, final

C = TypeVar("C")


@final
class Rounds(Generic[C]):
    """Conversations, hashable by identity; none joins again before it was run."""

    def __init__(self) -> None:
        self._newcomers: deque[tuple[C, float]] = deque()
        """With the time since when they wait, as the next two."""
        self._waiting: deque[tuple[C, float]] = deque()
        self._later: list[tuple[C, float]] = []
        """They had their turn in this round: they wait for the next one."""
        self._members: set[C] = set()
        """Of this round, whether or not they still wait."""
        self._before: set[C] = set()
        """Of the round before, while there is a backlog."""

    def __len__(self) -> int:
        """How many wait."""
        return len(self._newcomers) + len(self._waiting) + len(self._later)

    @property
    def is_over(self) -> bool:
        """Whether nobody of this round waits; `join` begins the next one."""
        return not (self._newcomers or self._waiting)

    def join(self, connections: Iterable[C], now_s: float) -> None:
        """Take in those who have come to wait since the last turn; called once per turn."""
        if self.is_over:
            self._waiting.extend(self._later)
            self._members.update([connection for connection, _ in self._later])
            self._later.clear()
        members = self._members
        for connection in connections:
            if connection in members:
                self._later.append((connection, now_s))
                continue
            members.add(connection)
            if connection in self._before:
                self._waiting.append((connection, now_s))
            else:
                self._newcomers.append((connection, now_s))

    def follow(self, connections: Iterable[C], now_s: float) -> None:
        """Take in newcomers after all who wait: their order is somebody else's.

        Called once per turn, instead of `join`; who waited for the next round goes before them.
        """
        self._waiting.extend(self._later)
        self._later.clear()
        self._waiting.extend([(connection, now_s) for connection in connections])

    def next(self) -> C:
        """Return the one to run now; the round is not over."""
        connection, _ = (self._newcomers or self._waiting).popleft()
        if self.is_over:
            self._before, self._members = self._members, self._before
            self._members.clear()
            if not self._later:
                self._before.clear()
        return connection

    def wait_s(self, now_s: float) -> float:
        """How long those who wait have waited on the average: half as long as the first of them.

        Of this round; who waits for the next one counts when that has begun. 0: nobody waits.
        """
        since_s = now_s
        for queue in (self._newcomers, self._waiting):
            if queue:
                since_s = min(since_s, queue[0][1])
        return (now_s - since_s) / 2
