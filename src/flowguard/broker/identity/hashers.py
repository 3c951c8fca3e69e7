"""Hashers: threads for work that takes tens of milliseconds, beside a loop that others wait for.

A thread that is nice gets a tenth of the processor that both want, but in pieces as long as the
kernel's tick, and who is connected waits for each. One that takes only what is left (`SCHED_IDLE`)
is never waited for; where nothing is left, because of the loop or of another program, it gets next
to nothing, and may hold the interpreter's lock meanwhile. So it is asked where the loop has slept
enough lately and had a processor whenever it wanted one, and the nice one where it has not.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from time import thread_time
from types import TracebackType
from typing import Any, Final, Self, TypeVar, final

import trio

from flowguard.priority import give_way, take_what_is_left

LOOK_S: Final = 0.1
"""Time over which it is judged what is left, at least, seconds."""
LATELY_S: Final = 1.0
"""What it was over a longer time says nothing of now, seconds."""
IDLE_SHARE: Final = 0.2
"""Of that time the loop must have slept."""
RUNNING_SHARE: Final = 0.8
"""Of the rest it must have run."""
LATE_S: Final = 0.5
"""Work that takes longer there is begun anew by the nice thread, seconds."""

T = TypeVar("T")


@final
class SpareTime:
    """Whether the loop leaves time of its processor, and nobody else takes it."""

    def __init__(
        self,
        clock: Callable[[], float],
        idle_s: Callable[[], float],
        ran_s: Callable[[], float] = thread_time,
    ) -> None:
        """How long the loop has waited for events, and how long it has run, both in all."""
        self._asked = (clock, idle_s, ran_s)
        self._seen = self._look()
        self._is_left = False

    def _look(self) -> list[float]:
        return [ask() for ask in self._asked]

    @property
    def is_left(self) -> bool:
        """As it was lately; False as long as nothing is known. Only the loop's thread asks."""
        seen = self._look()
        elapsed_s, idle_s, ran_s = (now - then for now, then in zip(seen, self._seen, strict=True))
        if elapsed_s >= LOOK_S:
            self._seen = seen
            busy_s = elapsed_s - idle_s
            is_left = idle_s >= IDLE_SHARE * elapsed_s and ran_s >= RUNNING_SHARE * busy_s
            self._is_left = is_left and elapsed_s <= LATELY_S
        return self._is_left


@final
class Hashers:
    """Does work of this kind, one piece at a time; a context, whose end waits for what the nice
    thread has begun. What is left of a processor may be nothing: nobody waits for the other one."""

    def __init__(self, spare: SpareTime) -> None:
        self._spare = spare
        self._nice = ThreadPoolExecutor(1, "identities-nice", _give_way)
        self._last = ThreadPoolExecutor(1, "identities-last", _take_what_is_left)
        self._begun: Future[Any] | None = None
        """What the latter has begun last."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._last.shutdown(wait=False)
        self._nice.shutdown()

    async def do(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, and raise what it raises. It may be done twice."""
        if self._spare.is_left and (self._begun is None or self._begun.done()):
            with trio.move_on_after(LATE_S):
                return await self._result(self._last, work)
        return await self._result(self._nice, work)

    async def _result(self, thread: Executor, work: Callable[[], T]) -> T:
        future = thread.submit(work)
        if thread is self._last:
            self._begun = future
        done, token = trio.Event(), trio.lowlevel.current_trio_token()
        future.add_done_callback(lambda _: _tell(token, done))
        await done.wait()
        return future.result()


def _give_way() -> None:
    give_way(threading.get_native_id())


def _take_what_is_left() -> None:
    take_what_is_left(threading.get_native_id())


def _tell(token: trio.lowlevel.TrioToken, done: trio.Event) -> None:
    try:
        token.run_sync_soon(done.set)
    except trio.RunFinishedError:
        pass  # Nobody waits any more.
