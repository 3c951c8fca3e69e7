"""Rounds: whose turn it is, among the conversations that have packets and may have room for them.

With a thousand clients that flood a node, such a queue is never empty, and to work it off takes
long. So it is worked off in rounds, a part of it in each turn of the reactor: sockets are read and
commits answered in between. In a round everybody is run once at most, and who was not in the round
before goes first: a client that sends little does not wait for those that always want more, and
they wait for each other only. That is what FQ-CoDel does for sparse flows (RFC 8290, 4.2).
"""

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar, final

from flowguard.flow.signals import TICK_S

C = TypeVar("C")


@final
class Rounds(Generic[C]):
    """Conversations, hashable by identity; none joins again before it was run."""

    __slots__ = ("_before", "_later", "_members", "_newcomers", "_told_s", "_waiting", "since_s")

    def __init__(self) -> None:
        self.since_s = 0.0
        """When the round began."""
        self._told_s = 0.0
        self._newcomers: deque[C] = deque()
        self._waiting: deque[C] = deque()
        self._later: list[C] = []
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
        """Those who have come to wait since the last turn; once per turn."""
        if self.is_over:
            self.since_s = self._told_s = now_s
            self._waiting.extend(self._later)
            self._members.update(self._later)
            self._later.clear()
        members = self._members
        for connection in connections:
            if connection in members:
                self._later.append(connection)
                continue
            members.add(connection)
            if connection in self._before:
                self._waiting.append(connection)
            else:
                self._newcomers.append(connection)

    def next(self) -> C:
        """Who is run now; the round is not over."""
        connection = (self._newcomers or self._waiting).popleft()
        if self.is_over:
            self._before, self._members = self._members, self._before
            self._members.clear()
            if not self._later:
                self._before.clear()
        return connection

    def wait_s(self, turn_s: float, now_s: float) -> float:
        """How long who came to wait in this round waits on the average: half of it.

        At the end of a turn that began at `turn_s`: if the round is over and took more than that
        turn, and every `TICK_S` as long as it is not over; else 0, nothing to tell.
        """
        is_news = self.since_s < turn_s if self.is_over else now_s - self._told_s >= TICK_S
        if not is_news:
            return 0.0
        self._told_s = now_s
        return (now_s - self.since_s) / 2
