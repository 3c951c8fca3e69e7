"""Chores: background tasks that exceed one time slice, done piece by piece, in turn.

Examples are ten thousand filters of one SUBSCRIBE, or of an ended session. A piece takes a few
milliseconds at most, and all clients are served between two pieces. After a piece, the task goes
behind the others that wait.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, final

FILTERS_PIECE: Final = 200
"""Filters subscribed, unsubscribed or checked in one time slice: up to three milliseconds."""


Step = Callable[[float], bool]
"""Does a piece of a task; takes the time, and returns True if there is more."""
Failed = Callable[[Exception, float], bool]
"""Handles the error of the last piece at a time; returns True if it was reported."""


@final
class Chores:
    """The unfinished background tasks of one node."""

    def __init__(self, on_error: Callable[[Exception], None] | None) -> None:
        """`on_error` gets exceptions that no task has reported; without it they are raised."""
        self._on_error = on_error
        self._waiting: deque[tuple[Step, Failed | None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, step: Step, failed: Failed | None = None) -> None:
        """Add a task; `step` is called until it returns False."""
        self._waiting.append((step, failed))

    def run(
        self, time_s: float, clock: Callable[[], float], settle: Callable[[float], None]
    ) -> None:
        """Do pieces for `time_s`, one at least; `settle(now_s)` is called after each."""
        now_s = clock()
        until_s = now_s + time_s
        while self._waiting and now_s < until_s:
            self.step(now_s)
            settle(now_s)
            now_s = clock()

    def step(self, now_s: float) -> None:
        """Do one piece of the next task, which must exist."""
        step, failed = chore = self._waiting.popleft()
        try:
            more = step(now_s)
        except Exception as error:
            if failed is None or not failed(error, now_s):
                if self._on_error is None:
                    raise
                self._on_error(error)
            return
        if more:
            self._waiting.append(chore)
