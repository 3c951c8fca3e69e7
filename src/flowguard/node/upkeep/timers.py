"""Deadlines: keep-alive and connect timeout on a wheel, everything rarer on a heap.

Connections move their deadline with every packet, so the wheel looks at a connection only when its
bucket is due and then decides whether it is really late: nothing is paid per packet. Buckets are
tenths of a second, rounded up: nobody is cut off early.

What is due at once is bounded: a hundred thousand sessions that expire in one instant are a crowd,
too. The rest keeps its order and comes first the next time.
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
    """A connection, as far as the wheel looks at it; hashable by identity."""

    watched_slot: int
    """The wheel's own."""

    @property
    def ended(self) -> bool:
        """Nobody needs to look at it any more."""


C = TypeVar("C", bound=Watched)


@final
class Wheel(Generic[C]):
    """Connections by the slot in which somebody should look at them; ended ones are let go."""

    def __init__(self, now_s: float) -> None:
        self._buckets: dict[int, dict[C, None]] = {}
        self._next_slot = floor(now_s * SLOTS_PER_S)

    def watch(self, connection: C, due_s: float) -> None:
        """Look at `connection` once `due_s` has passed; replaces what was asked before."""
        self.forget(connection)
        slot = max(floor(due_s * SLOTS_PER_S) + 1, self._next_slot)
        connection.watched_slot = slot
        bucket = self._buckets.get(slot)
        if bucket is None:
            bucket = self._buckets[slot] = {}
        bucket[connection] = None

    def forget(self, connection: C) -> None:
        """Never look at `connection` again; hours of keep-alive must not hold what is over."""
        bucket = self._buckets.get(connection.watched_slot)
        if bucket is not None:
            bucket.pop(connection, None)

    def due(self, now_s: float, count_max: int = DUE_MAX) -> list[C]:
        """Connections to look at now, each once; not all, but those due longest."""
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
    """A call that is still to be made, or None if it was made or cancelled."""

    call: Callable[[float], None] | None
    name: str
    """For the log."""


@final
class Timers:
    """One-shot calls at an instant. Cancelled ones leave as soon as they are half of all."""

    def __init__(self, on_error: Callable[[Exception], None] | None = None) -> None:
        """`on_error` gets what a call raises, with the timer's name. Without it `fire` raises."""
        self._on_error = on_error
        self._heap: list[tuple[float, int, Timer]] = []
        self._sequence = 0
        self._cancelled_count = 0

    def __len__(self) -> int:
        """Timers held, cancelled ones included."""
        return len(self._heap)

    def at(self, due_s: float, call: Callable[[float], None], name: str) -> Timer:
        """Call `call(now_s)` at or after `due_s`; ties in the order of asking."""
        self._sequence += 1
        timer = Timer(call, name)
        heappush(self._heap, (due_s, self._sequence, timer))
        return timer

    def cancel(self, timer: Timer) -> None:
        """Make no call; safe when it was made already. Cost: amortised O(1)."""
        if timer.call is None:
            return
        timer.call = None
        self._cancelled_count += 1
        self._tidy()

    def fire(self, until_s: float, now_s: float, count_max: int = DUE_MAX) -> bool:
        """Make the calls that were due by `until_s`, those due longest; True: there are more."""
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
