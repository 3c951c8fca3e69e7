"""An asyncio event loop in a thread of its own, for clients that want one."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from tests.interop.broker import PATIENCE_S

T = TypeVar("T")


class EventLoop:
    """Runs coroutines for synchronous callers."""

    def __init__(self) -> None:
        self._started: concurrent.futures.Future[asyncio.AbstractEventLoop] = (
            concurrent.futures.Future()
        )
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)

    async def _main(self) -> None:
        self._started.set_result(asyncio.get_running_loop())
        await self._stop.wait()

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop = self._started.result(PATIENCE_S)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it there, wait for it here."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_S)
