"""A guard for a host on asyncio: `async with open_guard(settings) as guard`.

async with guard.connecting(client): ...
async with guard.packet(client, size_bytes=len(data)): ...
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from threading import get_ident
from typing import final

from broker_adapter.host_guard import HostGuard, OnReject, OnWindow
from broker_adapter.waits import AsyncGuard
from flowguard.config import FlowSettings
from flowguard.flow.load.signals import TICK_S


@asynccontextmanager
async def open_guard(
    settings: FlowSettings | None = None,
    *,
    waiting_max: int = 100,
    patience_s: float | None = None,
    on_reject: OnReject | None = None,
    on_window: OnWindow | None = None,
) -> AsyncIterator[AsyncGuard]:
    """Yield a guard that is ticked until the block ends; see `HostGuard` for the arguments."""
    guard = HostGuard(
        settings,
        waiting_max=waiting_max,
        patience_s=patience_s,
        on_reject=on_reject,
        on_window=on_window,
    )
    loop = asyncio.get_running_loop()
    ticking = Ticking(guard, loop)
    try:
        yield AsyncGuard(guard, loop.time, AsyncioBell)
    finally:
        ticking.stop()


@final
class Ticking:
    """Ticks by a timer of the loop, so that there is no task to wait for."""

    __slots__ = ("_guard", "_loop", "_timer")

    def __init__(self, guard: HostGuard, loop: asyncio.AbstractEventLoop) -> None:
        self._guard = guard
        self._loop = loop
        self._tick()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        self._guard.tick(self._loop.time())

    def stop(self) -> None:
        """Stop the ticks until a new start."""
        self._timer.cancel()
        self._guard.rest()


@final
class AsyncioBell:
    """A bell for the running task."""

    __slots__ = ("_event", "_loop", "_thread")

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()

    def ring(self) -> None:
        if get_ident() == self._thread:
            self._event.set()
        else:
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        await self._event.wait()
