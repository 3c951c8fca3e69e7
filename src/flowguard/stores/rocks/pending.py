"""Queues whose record is to be written some time: in turn, so that no commit writes them all.

Time is counted in steps; each commit is one, and each slice of maintenance.
"""

from typing import Final, final

from flowguard.stores.rocks.queue import Queue

TURNS: Final = 64
"""A queue's record is written at the latest so many steps after it changed (a power of two)."""
QUIET_STEPS: Final = 256
"""After so many without a change it is worth deleting what little is settled."""
TIDY_MAX: Final = 64


@final
class Pending:
    """Who waits for its turn; numbers of queues are dense, so the turns are even."""

    __slots__ = ("_step", "_turns", "_untidy")

    def __init__(self) -> None:
        self._turns: list[list[Queue]] = [[] for _ in range(TURNS)]
        self._untidy: dict[Queue, int] = {}
        """Rows to be deleted, and the step in which the record was written."""
        self._step = 0

    def add(self, queue: Queue) -> None:
        """Its turn will come."""
        if not queue.waiting:
            queue.waiting = True
            self._turns[queue.qno & (TURNS - 1)].append(queue)

    def due(self) -> list[Queue]:
        """Whose turn it is in this step."""
        return self._turns[self._step & (TURNS - 1)]

    def quiet(self) -> list[Queue]:
        """Who has rows to delete and did not change for long, at most TIDY_MAX."""
        found: list[Queue] = []
        dropped: list[Queue] = []
        for queue, step in self._untidy.items():
            if queue.dropped:
                dropped.append(queue)
            elif step + QUIET_STEPS > self._step or len(found) == TIDY_MAX:
                break
            else:
                found.append(queue)
        for queue in dropped:
            del self._untidy[queue]
        return found

    def advance(self) -> None:
        """The step is over: those of `due` have been written."""
        index = self._step & (TURNS - 1)
        for queue in self._turns[index]:
            queue.waiting = False
        if self._turns[index]:
            self._turns[index] = []
        self._step += 1

    def recorded(self, queue: Queue) -> None:
        """Its record was written in this step."""
        self._untidy.pop(queue, None)
        if queue.is_untidy and not queue.dropped:
            self._untidy[queue] = self._step

    @property
    def is_empty(self) -> bool:
        return not self._untidy and not any(self._turns)
