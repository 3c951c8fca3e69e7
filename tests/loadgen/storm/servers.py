"""Targets of storms in these tests: a real broker, and servers that misbehave."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from flowguard.broker.memory import bounds_of
from flowguard.broker.server import Running, listen, serve
from flowguard.config import Settings
from flowguard.stores import MemoryStore, Store
from flowguard.types import MQTT_5
from loadgen.storm import Target, Traffic
from tests.support.real import TEST_S

PATIENT = {"connect_patience_s": TEST_S, "connect_timeout_s": TEST_S}
LINGER_ZERO = b"\1\0\0\0\0\0\0\0"
"""SO_LINGER of no time at all: close becomes a reset."""


@asynccontextmanager
async def broker(
    settings: dict[str, dict[str, Any]] | None = None, store: Store | None = None, port: int = 0
) -> AsyncIterator[Running]:
    """flowguard on a port, 0 a free one; cut off without a word at the end. However long the
    machine does something else, it gives up nobody who comes."""
    settings = dict(settings or {})
    settings["flow"] = PATIENT | settings.get("flow", {})
    async with trio.open_nursery() as nursery:
        start = partial(
            serve,
            bounds_of(Settings.model_validate(settings)),
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


def end_by_the_books(patch: pytest.MonkeyPatch, running: Running, slow: int = 1) -> None:
    """Storms with so many slow subscribers are over when the broker has delivered or dropped what
    it was sent, not when nothing has come for some seconds. A broker has one of them."""

    def is_over(storm: Traffic, now_s: float, ended_s: float) -> bool:
        if all(publisher.settled for publisher in storm.publishers):
            return True
        owed = sum(each.sent * len(each.subscribers) for each in storm.publishers)
        had = storm.tally.received + running.node.counters.publish_dropped
        acknowledged = storm.tally.acknowledged == storm.tally.sent
        return storm.plan.slow == slow and acknowledged and had >= owed

    patch.setattr(Traffic, "_is_over", is_over)


def target(address: tuple[str, int], version: int = MQTT_5) -> Target:
    return Target.resolve(*address, version)
