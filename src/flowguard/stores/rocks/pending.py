"""Queues whose record is to be written some time: in turn, so that no commit writes them all.

Time is counted in steps; each commit is one, and each slice of maintenance.
"""

from typing import Final, final

from flowguard.stores.rocks.layouts.queue import Queue

TURNS: Final = 64
"""Steps after a change within which a queue's record is written (a power of two)."""
QUIET_STEPS: Final = 256
"""Steps without a change after which even a few settled rows are worth deleting."""
TIDY_MAX: Final = 64


@final
class PendingRecords:
    """The queues whose records wait; numbers of queues are dense, so turns are evenly filled."""

    def __init__(self) -> None:
        self._turns: list[list[Queue]] = [[] for _ in range(TURNS)]
        self._untidy: dict[Queue, int] = {}
        """Queues with rows to be deleted, and the step in which the record was written."""
        self._step = 0

    def add(self, queue: Queue) -> None:
        if not queue.waiting:
            queue.waiting = True
            self._turns[queue.qno & (TURNS - 1)].append(queue)

    def due(self) -> list[Queue]:
        """The queues whose turn it is in this step."""
        return self._turns[self._step & (TURNS - 1)]

    def quiet(self, steps: int) -> list[Queue]:
        """Queues with rows to delete that have not changed for `steps`, at most TIDY_MAX."""
        found: list[Queue] = []
        dropped: list[Queue] = []
        for queue, step in self._untidy.items():
            if queue.dropped:
                dropped.append(queue)
            elif step + steps > self._step or len(found) == TIDY_MAX:
                break
            else:
                found.append(queue)
        for queue in dropped:
            del self._untidy[queue]
        return found

    def advance(self) -> None:
        """End the step: the queues of `due` have been written."""
        index = self._step & (TURNS - 1)
        for queue in self._turns[index]:
            queue.waiting = False
        if self._turns[index]:
            self._turns[index] = []
        self._step += 1

    def recorded(self, queue: Queue) -> None:
        """Note that the queue's record was written in this step."""
        self._untidy.pop(queue, None)
        if queue.is_untidy and not queue.dropped:
            self._untidy[queue] = self._step

    @property
    def is_empty(self) -> bool:
        return not self._untidy and not any(self._turns)
