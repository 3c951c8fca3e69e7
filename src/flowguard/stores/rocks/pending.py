"""Queues whose record must be written later, spread over commits so that none writes them all.

Time is counted in steps: each commit and each slice of maintenance is one.
"""

from typing import Final, final

from flowguard.stores.rocks.layouts.queue import Queue

TURNS: Final = 64
"""Maximum number of steps until a changed queue's record is written (a power of two)."""
QUIET_STEPS: Final = 256
"""Number of steps without a change after which even a few settled rows are deleted."""
TIDY_MAX: Final = 64


@final
class PendingRecords:
    """Queues by the step that writes their record. Numbers of queues are dense, so the steps have
    about the same number of queues."""

    def __init__(self) -> None:
        self._turns: list[list[Queue]] = [[] for _ in range(TURNS)]
        self._untidy: dict[Queue, int] = {}
        """Steps in which the record was written, by queue; only queues with rows to be deleted."""
        self._step = 0

    def add(self, queue: Queue) -> None:
        if not queue.waiting:
            queue.waiting = True
            self._turns[queue.qno & (TURNS - 1)].append(queue)

    def due(self) -> list[Queue]:
        """Return the queues whose record this step writes."""
        return self._turns[self._step & (TURNS - 1)]

    def quiet(self, steps: int) -> list[Queue]:
        """Return queues with rows to delete, unchanged for `steps`, at most TIDY_MAX."""
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
        """End the step, after the records of the queues of `due` were written."""
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
