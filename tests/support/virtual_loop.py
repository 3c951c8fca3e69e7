"""An asyncio loop on virtual time: when nothing is ready, the clock jumps to the next timer."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    """Sockets first; where none is ready, time passes at once."""

    now_s = 1_000.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout:
            self.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time` moves by timers only."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
