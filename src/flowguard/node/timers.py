"""Deadlines: keep-alive and connect timeout on a wheel, everything rarer on a heap.

Connections move their deadline with every packet, so the wheel looks at a connection only when its
bucket is due and then decides whether it is really late: nothing is paid per packet. Buckets are
whole seconds, rounded up: nobody is cut off early.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from math import floor
from typing import final

from flowguard.session.connection import ServerConnection


@final
class Wheel:
    """Connections by the second in which somebody should look at them."""

    __slots__ = ("_buckets", "_next_s")

    def __init__(self, now_s: float) -> None:
        self._buckets: dict[int, list[ServerConnection]] = {}
        self._next_s = floor(now_s)

    def watch(self, connection: ServerConnection, due_s: float) -> None:
        """Look at `connection` once `due_s` has passed; replaces what was asked before."""
        slot_s = max(floor(due_s) + 1, self._next_s)
        connection.watched_s = slot_s
        bucket = self._buckets.get(slot_s)
        if bucket is None:
            bucket = self._buckets[slot_s] = []
        bucket.append(connection)

    def due(self, now_s: float) -> list[ServerConnection]:
        """Connections to look at now, each once."""
        found: list[ServerConnection] = []
        while self._next_s <= now_s:
            slot_s = self._next_s
            self._next_s += 1
            for connection in self._buckets.pop(slot_s, ()):
                if connection.watched_s == slot_s and not connection.ended:
                    connection.watched_s = 0
                    found.append(connection)
        return found


@final
class Timers:
    """One-shot calls at an instant; what is no longer wanted, the callee notices itself."""

    __slots__ = ("_heap", "_sequence")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._sequence = 0

    def at(self, due_s: float, call: Callable[[float], None]) -> None:
        """Call `call(now_s)` at or after `due_s`; ties in the order of asking."""
        self._sequence += 1
        heappush(self._heap, (due_s, self._sequence, call))

    def fire(self, now_s: float) -> None:
        """Make every call that is due."""
        while self._heap and self._heap[0][0] <= now_s:
            heappop(self._heap)[2](now_s)
