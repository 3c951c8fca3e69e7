"""Queues with two bounds, and budgets that many queues share.

A queue is bounded in items and in bytes, and draws its bytes from a node-wide budget as well, so
that a million small queues are as harmless as one large one. A refusal names its reason.
"""

from collections import deque
from typing import Generic, TypeVar, final

from flowguard.flow.verdict import Reason

T = TypeVar("T")


@final
class Budget:
    """Bytes that many owners share; `used_bytes` never exceeds `limit_bytes`."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, size_bytes: int) -> bool:
        """Reserve; False (and nothing reserved) when it would not fit."""
        if self.used_bytes + size_bytes > self.limit_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """Return what was taken."""
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0


@final
class BoundedQueue(Generic[T]):
    """FIFO of items with a size each, bounded in items and bytes.

    The deque is made with the first item: an idle client pays for two integers.
    """

    __slots__ = ("_budget", "_bytes_max", "_items", "_items_max", "size_bytes")

    def __init__(self, items_max: int, bytes_max: int, budget: Budget) -> None:
        self._items: deque[tuple[T, int]] | None = None
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._budget = budget
        self.size_bytes = 0

    def __len__(self) -> int:
        return 0 if self._items is None else len(self._items)

    def offer(self, item: T, size_bytes: int) -> Reason | None:
        """Append `item`; None when it was taken, else why there is no room. Cost O(1)."""
        items = self._items
        if items is not None and len(items) >= self._items_max:
            return Reason.QUEUE_MESSAGES
        if self.size_bytes + size_bytes > self._bytes_max:
            return Reason.QUEUE_BYTES
        if not self._budget.take(size_bytes):
            return Reason.NODE_QUEUE_BYTES
        if items is None:
            items = self._items = deque()
        items.append((item, size_bytes))
        self.size_bytes += size_bytes
        return None

    def peek(self) -> T | None:
        """The oldest item, left in place."""
        return self._items[0][0] if self._items else None

    def take(self) -> T | None:
        """The oldest item, removed; None when empty."""
        if not self._items:
            return None
        item, size_bytes = self._items.popleft()
        self.size_bytes -= size_bytes
        self._budget.give_back(size_bytes)
        if not self._items:
            self._items = None
        return item

    def clear(self) -> int:
        """Drop everything, give the bytes back; the number of items dropped."""
        count = len(self)
        self._budget.give_back(self.size_bytes)
        self.size_bytes = 0
        self._items = None
        return count
