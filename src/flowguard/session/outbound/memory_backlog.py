"""MemoryBacklog: the first messages of a backlog, which can be sent at once."""

from bisect import bisect_left
from collections import deque
from operator import itemgetter
from typing import final

from flowguard.records import NEVER_S, Delivery

Waiting = tuple[int, Delivery, int]
"""Position, message, and its size in bytes."""


@final
class MemoryBacklog:
    """Messages, oldest first; a backlog has one of these only while it is not empty."""

    __slots__ = ("expires_s", "messages", "size_bytes")

    def __init__(self) -> None:
        self.messages: deque[Waiting] = deque()
        self.size_bytes = 0
        self.expires_s = NEVER_S
        """No message has expired before this time."""

    def append(self, waiting: Waiting) -> None:
        self.messages.append(waiting)
        self._count(waiting)

    def insert(self, waiting: Waiting) -> None:
        """Add a message at its position."""
        self.messages.insert(bisect_left(self.messages, waiting[0], key=itemgetter(0)), waiting)
        self._count(waiting)

    def _count(self, waiting: Waiting) -> None:
        self.size_bytes += waiting[2]
        expires_at_s = waiting[1].expires_at_s
        if expires_at_s < self.expires_s:
            self.expires_s = expires_at_s

    def split_expired(self, now_s: float, count_max: int) -> list[Waiting]:
        """Remove and return expired messages, but leave their bytes counted. O(messages)."""
        expired: list[Waiting] = []
        rest: deque[Waiting] = deque()
        self.expires_s = NEVER_S
        for waiting in self.messages:
            expires_at_s = waiting[1].expires_at_s
            if expires_at_s <= now_s and len(expired) < count_max:
                expired.append(waiting)
            else:
                rest.append(waiting)
                self.expires_s = min(self.expires_s, expires_at_s)
        self.messages = rest
        return expired
