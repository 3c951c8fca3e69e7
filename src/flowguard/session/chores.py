"""Chores: work that is too much for one stretch of the loop, done piece by piece, by turns.

Ten thousand filters of one SUBSCRIBE, or of a session that is over, are known to be that much
before they are begun. A piece of it is a few milliseconds at most; between two pieces everybody
else is served. Who has more than one piece goes behind the others that wait.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, final

from mypy_extensions import mypyc_attr

FILTERS_PIECE: Final = 200
"""Filters subscribed, unsubscribed or looked at in one stretch: up to three milliseconds."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Chore:
    """Something to do, of which `step` does a piece."""

    __slots__ = ()

    def step(self, now_s: float) -> bool:
        """Do a piece; True: there is more."""
        raise NotImplementedError

    def failed(self, error: Exception, now_s: float) -> bool:
        """A piece has raised `error`, and no other follows; whether somebody has heard of it."""
        return False


@final
class Pieces(Chore):
    """A chore that a function does."""

    __slots__ = ("_step",)

    def __init__(self, step: Callable[[float], bool]) -> None:
        """`step` is called with the time, and returns True if there is more."""
        self._step = step

    def step(self, now_s: float) -> bool:
        return self._step(now_s)


@final
class Chores:
    """The chores of one node that are not done."""

    def __init__(self, on_error: Callable[[Exception], None] | None) -> None:
        """`on_error` is told of what broke and nobody has heard of; None: it is raised."""
        self._on_error = on_error
        self._waiting: deque[Chore] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, chore: Chore) -> None:
        """`chore.step` follows, until it says that there is no more."""
        self._waiting.append(chore)

    def run(
        self, time_s: float, clock: Callable[[], float], settle: Callable[[float], None]
    ) -> None:
        """Do pieces for so long, one at least; `settle(now_s)` is called behind each."""
        now_s = clock()
        until_s = now_s + time_s
        while self._waiting and now_s < until_s:
            self.step(now_s)
            settle(now_s)
            now_s = clock()

    def step(self, now_s: float) -> None:
        """Do one piece of the next one; there is one."""
        chore = self._waiting.popleft()
        try:
            more = chore.step(now_s)
        except Exception as error:
            if not chore.failed(error, now_s):
                if self._on_error is None:
                    raise
                self._on_error(error)
            return
        if more:
            self._waiting.append(chore)
