"""A service with one worker that takes 10 ms for everything: on trio and asyncio, in virtual time.

Twenty clients flood it, a hundred packets each at once, and again when one is done; three quiet
ones send one packet a second and note how long it took.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

import trio

from broker_adapter import AsyncGuard, GuardedClient, RefusedError

WORK_S = 0.010
FLOODING = 20
OUTSTANDING = 100
QUIET = 3
ROUNDS = 12


@dataclass
class Seen:
    """The result of the run."""

    quiet_s: list[float] = field(default_factory=list)
    served: int = 0
    refused: int = 0
    in_process_max: int = 0


Door = Callable[[GuardedClient], AbstractAsyncContextManager[object]]


@asynccontextmanager
async def open_door() -> AsyncIterator[None]:
    """The host without a guard."""
    yield


async def request(
    guard: AsyncGuard, door: Door, client: GuardedClient, work: Callable[[], object], seen: Seen
) -> float | None:
    """Process one packet. Return its duration, or None if it was rejected."""
    began_s = guard.clock()
    try:
        async with door(client):
            seen.in_process_max = max(seen.in_process_max, guard.guard.in_process)
            await work()  # type: ignore[misc]
    except RefusedError:
        seen.refused += 1
        return None
    seen.served += 1
    return guard.clock() - began_s


async def crowd_on_trio(guard: AsyncGuard, door: Door) -> Seen:
    worker, seen = trio.Lock(), Seen()

    async def work() -> None:
        async with worker:  # First come, first served.
            await trio.sleep(WORK_S)

    async def flood(client: GuardedClient) -> None:
        while True:
            if await request(guard, door, client, work, seen) is None:
                await trio.sleep(1)

    async def ask(client: GuardedClient) -> None:
        for _ in range(ROUNDS):
            await trio.sleep(1)
            took_s = await request(guard, door, client, work, seen)
            assert took_s is not None
            seen.quiet_s.append(took_s)

    async with trio.open_nursery() as nursery:
        for _ in range(FLOODING):
            client = guard.client()
            for _ in range(OUTSTANDING):
                nursery.start_soon(flood, client)
        async with trio.open_nursery() as asking:
            for _ in range(QUIET):
                asking.start_soon(ask, guard.client())
        nursery.cancel_scope.cancel()
    return seen


async def crowd_on_asyncio(guard: AsyncGuard, door: Door) -> Seen:
    worker, seen = asyncio.Lock(), Seen()

    async def work() -> None:
        async with worker:
            await asyncio.sleep(WORK_S)

    async def flood(client: GuardedClient) -> None:
        while True:
            if await request(guard, door, client, work, seen) is None:
                await asyncio.sleep(1)

    async def ask(client: GuardedClient) -> None:
        for _ in range(ROUNDS):
            await asyncio.sleep(1)
            took_s = await request(guard, door, client, work, seen)
            assert took_s is not None
            seen.quiet_s.append(took_s)

    flooding = []
    for _ in range(FLOODING):
        client = guard.client()
        flooding += [asyncio.create_task(flood(client)) for _ in range(OUTSTANDING)]
    await asyncio.gather(*(ask(guard.client()) for _ in range(QUIET)))
    for task in flooding:
        task.cancel()
    await asyncio.gather(*flooding, return_exceptions=True)
    return seen
