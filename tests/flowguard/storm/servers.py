"""What storms are thrown at in these tests: a real broker, and servers that misbehave."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio

from flowguard.broker.memory import bounds_of
from flowguard.broker.server import Running, listen, serve
from flowguard.config import Settings
from flowguard.stores import MemoryStore, Store
from flowguard.storm import Target
from flowguard.types import MQTT_5
from tests.support.real import TEST_S

LINGER_ZERO = b"\1\0\0\0\0\0\0\0"
"""SO_LINGER of no time at all: close becomes a reset."""


@asynccontextmanager
async def broker(
    settings: dict[str, dict[str, Any]] | None = None, store: Store | None = None, port: int = 0
) -> AsyncIterator[Running]:
    """flowguard on a port, 0 a free one; cut off without a word at the end."""
    async with trio.open_nursery() as nursery:
        start = partial(
            serve,
            bounds_of(Settings.model_validate(settings or {})),
            store or MemoryStore(),
            listen("127.0.0.1", port),
        )
        yield await nursery.start(lambda task_status: start(task_status=task_status))
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def server(
    handle: Callable[[trio.SocketStream], Awaitable[None]],
) -> AsyncIterator[tuple[str, int]]:
    """A TCP server on a free port that treats each connection with `handle`, then closes it."""
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, handle, 0, host="127.0.0.1"))
        yield listeners[0].socket.getsockname()[:2]
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    """Poll: the loops of a storm have no events to wait for."""
    with trio.fail_after(TEST_S):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.01)


def target(address: tuple[str, int], version: int = MQTT_5) -> Target:
    return Target.resolve(*address, version)
