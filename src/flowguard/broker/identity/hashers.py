"""Hashers: threads for work that takes tens of milliseconds, beside a loop with clients.

A thread with a high nice value gets a tenth of a processor that the loop also wants. But it gets
that in pieces as long as the kernel's tick, and each piece delays all clients. A thread with
`SCHED_IDLE` delays no other work. But if the loop or another program takes the whole processor, it
hardly runs, and may hold the interpreter's lock meanwhile. So the idle thread is used if the loop
has slept enough lately and always got a processor when it wanted one; otherwise the nice thread.
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
"""Minimum time over which spare processor time is measured, seconds."""
LATELY_S: Final = 1.0
"""Maximum time of a measurement; a longer one does not describe the present, seconds."""
IDLE_SHARE: Final = 0.2
"""Minimum share of that time in which the loop must have slept."""
RUNNING_SHARE: Final = 0.8
"""Minimum share of the remaining time in which the loop must have run."""
LATE_S: Final = 0.5
"""Time after which the nice thread repeats the idle thread's unfinished work, seconds."""

T = TypeVar("T")


@final
class SpareTime:
    """Measures if the loop leaves processor time that no other program takes."""

    def __init__(
        self,
        clock: Callable[[], float],
        idle_s: Callable[[], float],
        ran_s: Callable[[], float] = thread_time,
    ) -> None:
        """`idle_s`: total time the loop has waited for events; `ran_s`: total time it has run."""
        self._asked = (clock, idle_s, ran_s)
        self._seen = self._look()
        self._is_left = False

    def _look(self) -> list[float]:
        return [ask() for ask in self._asked]

    @property
    def is_left(self) -> bool:
        """The last measurement, or False before the first. Only the loop's thread may call it."""
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
    """Runs such work, one piece at a time. The end of the context waits for work of the nice thread
    only, because the idle thread may never finish."""

    def __init__(self, spare: SpareTime) -> None:
        self._spare = spare
        self._nice = ThreadPoolExecutor(1, "identities-nice", _give_way)
        self._last = ThreadPoolExecutor(1, "identities-last", _take_what_is_left)
        self._begun: Future[Any] | None = None
        """The last work of the idle thread."""

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
        """Return what `work` returns, and raise what it raises. `work` may run twice."""
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
        pass  # No task waits any more.
