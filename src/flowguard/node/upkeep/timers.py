"""Deadlines: keep-alive and connect timeout on a wheel, everything rarer on a heap.

Every packet moves the deadline of its connection. So the wheel checks a connection only when its
bucket is due, which costs nothing per packet. Buckets are tenths of a second, rounded up, so that
no connection ends early.

The number of deadlines per call is limited, as a hundred thousand sessions may expire in one
instant. The others keep their order and come first in the next call.
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice
from math import floor
from typing import Final, Generic, Protocol, TypeVar, final

SLOTS_PER_S: Final = 10
"""As fine as the node's tick: a keep-alive of one second is enforced after 1.5, not after 2."""
DUE_MAX: Final = 1_000
"""Maximum of connections and calls per slice; a node takes fewer (`flowguard.node.upkeep.due`)."""


class Watched(Protocol):
    """A connection, as the wheel needs it; hashable by identity."""

    watched_slot: int
    """Number of its bucket; for the wheel only."""

    @property
    def ended(self) -> bool:
        """True if it needs no check any more."""


C = TypeVar("C", bound=Watched)


@final
class Wheel(Generic[C]):
    """Connections by the time slot of their next check; ended ones are removed."""

    def __init__(self, now_s: float) -> None:
        self._buckets: dict[int, dict[C, None]] = {}
        self._next_slot = floor(now_s * SLOTS_PER_S)

    def watch(self, connection: C, due_s: float) -> None:
        """Return `connection` from `due` once `due_s` has passed; replaces its earlier deadline."""
        self.forget(connection)
        slot = max(floor(due_s * SLOTS_PER_S) + 1, self._next_slot)
        connection.watched_slot = slot
        bucket = self._buckets.get(slot)
        if bucket is None:
            bucket = self._buckets[slot] = {}
        bucket[connection] = None

    def forget(self, connection: C) -> None:
        """Remove `connection`; hours of keep-alive must not keep ended ones in memory."""
        bucket = self._buckets.get(connection.watched_slot)
        if bucket is not None:
            bucket.pop(connection, None)

    def due(self, now_s: float, count_max: int = DUE_MAX) -> list[C]:
        """Return connections to check now, each once; at most `count_max`, longest due first."""
        found: list[C] = []
        now_slot = floor(now_s * SLOTS_PER_S)
        while self._next_slot <= now_slot:
            bucket = self._buckets.get(self._next_slot)
            if bucket:
                if len(found) == count_max:
                    break
                for connection in list(islice(bucket, count_max - len(found))):
                    del bucket[connection]
                    connection.watched_slot = 0
                    if not connection.ended:
                        found.append(connection)
            if not bucket:
                self._buckets.pop(self._next_slot, None)
                self._next_slot += 1
        return found


@final
@dataclass(slots=True, eq=False)
class Timer:
    """A pending call, or None if it was made or cancelled."""

    call: Callable[[float], None] | None
    name: str
    """Name in the log."""


@final
class Timers:
    """One-shot calls at an instant. Cancelled ones are removed when they are half of all."""

    def __init__(self, on_error: Callable[[Exception], None] | None = None) -> None:
        """`on_error` gets exceptions of calls, with the timer's name. Without it `fire` raises."""
        self._on_error = on_error
        self._heap: list[tuple[float, int, Timer]] = []
        self._sequence = 0
        self._cancelled_count = 0

    def __len__(self) -> int:
        """Number of timers in memory, cancelled ones included."""
        return len(self._heap)

    def at(self, due_s: float, call: Callable[[float], None], name: str) -> Timer:
        """Call `call(now_s)` at or after `due_s`; ties in the order of these calls."""
        self._sequence += 1
        timer = Timer(call, name)
        heappush(self._heap, (due_s, self._sequence, timer))
        return timer

    def cancel(self, timer: Timer) -> None:
        """Cancel a call; does nothing if it was made already. Cost: amortised O(1)."""
        if timer.call is None:
            return
        timer.call = None
        self._cancelled_count += 1
        self._tidy()

    def fire(self, until_s: float, now_s: float, count_max: int = DUE_MAX) -> bool:
        """Make the calls that were due by `until_s`, longest due first; True if there are more."""
        for _ in range(count_max):
            if not self._heap or self._heap[0][0] > until_s:
                break
            timer = heappop(self._heap)[2]
            call, timer.call = timer.call, None
            if call is None:
                self._cancelled_count -= 1
                continue
            try:
                call(now_s)
            except Exception as error:
                if self._on_error is None:
                    raise
                error.add_note(f"timer: {timer.name}")
                self._on_error(error)
        self._tidy()
        return bool(self._heap) and self._heap[0][0] <= until_s

    def _tidy(self) -> None:
        if 2 * self._cancelled_count > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].call is not None]
            heapify(self._heap)
            self._cancelled_count = 0
