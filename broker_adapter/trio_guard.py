"""A guard for a host on trio: `async with open_guard(settings) as guard`.

async with guard.connecting(client): ...
async with guard.packet(client, size_bytes=len(data)): ...
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import final

import trio

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
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_tick, guard)
        try:
            yield AsyncGuard(guard, trio.current_time, TrioBell)
        except Exception as error:  # Raised without an exception group.
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _tick(guard: HostGuard) -> None:
    while True:
        guard.tick(trio.current_time())
        await trio.sleep(TICK_S)


@final
class TrioBell:
    """A bell for the running task."""

    __slots__ = ("_event", "_token")

    def __init__(self) -> None:
        self._event = trio.Event()
        self._token = trio.lowlevel.current_trio_token()

    def ring(self) -> None:
        if trio.lowlevel.in_trio_task() and trio.lowlevel.current_trio_token() is self._token:
            self._event.set()
        else:
            self._token.run_sync_soon(self._event.set)

    async def wait(self) -> None:
        await self._event.wait()
