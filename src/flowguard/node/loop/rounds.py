"""Rounds: the order of conversations that have packets and may have capacity for them.

If a thousand clients flood a node, their queue is never empty and takes long to serve. So it is
served in rounds, a part of it in each turn (`turns`), and sockets are read and commits answered in
between. A round runs each conversation once at most, first those that were not in the round before.
So a client that sends little does not wait for clients that always send, and these wait only for
each other. FQ-CoDel treats sparse flows in the same way (RFC 8290, 4.2).
"""

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar, final

C = TypeVar("C")


@final
class Rounds(Generic[C]):
    """A queue of conversations, hashable by identity; none joins again before it was run."""

    def __init__(self) -> None:
        self._newcomers: deque[tuple[C, float]] = deque()
        """Conversations with the start of their wait, as in the next two."""
        self._waiting: deque[tuple[C, float]] = deque()
        self._later: list[tuple[C, float]] = []
        """Conversations that were run in this round, and wait for the next one."""
        self._members: set[C] = set()
        """All conversations of this round, even if they do not wait any more."""
        self._before: set[C] = set()
        """Conversations of the round before, while there is a backlog."""

    def __len__(self) -> int:
        """Number of conversations that wait."""
        return len(self._newcomers) + len(self._waiting) + len(self._later)

    @property
    def is_over(self) -> bool:
        """True if no conversation of this round waits; `join` begins the next one."""
        return not (self._newcomers or self._waiting)

    def join(self, connections: Iterable[C], now_s: float) -> None:
        """Add the conversations that began to wait since the last turn; called once per turn."""
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
        """Add newcomers behind all others; the pool has decided on their order.

        Called once per turn, instead of `join`. Conversations that wait for the next round go
        before them.
        """
        self._waiting.extend(self._later)
        self._later.clear()
        self._waiting.extend([(connection, now_s) for connection in connections])

    def next(self) -> C:
        """Return the conversation to run now; only if the round is not over."""
        connection, _ = (self._newcomers or self._waiting).popleft()
        if self.is_over:
            self._before, self._members = self._members, self._before
            self._members.clear()
            if not self._later:
                self._before.clear()
        return connection

    def wait_s(self, now_s: float) -> float:
        """Return the mean wait in this round in seconds, half of the longest; 0.0 if none waits.

        Conversations that wait for the next round count when it has begun.
        """
        since_s = now_s
        for queue in (self._newcomers, self._waiting):
            if queue:
                since_s = min(since_s, queue[0][1])
        return (now_s - since_s) / 2
