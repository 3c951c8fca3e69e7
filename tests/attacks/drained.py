"""Attacks on a store that its own queues have filled: their clients must be able to empty it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio

from flowguard.codec.packets import Puback
from flowguard.types import Publish, ReasonCode
from tests.attacks.attack import Attack, CannotRun, Finding, Size
from tests.attacks.disk import small_disk
from tests.attacks.victim import ANSWER_S, MIB, Refused, Victim, victim
from tests.support.real import Wire
from tests.support.redis_server import PROGRAM, RedisServer

PAYLOAD_BYTES = 50_000
DISK_BYTES = 40 * MIB
RESERVE_BYTES = 8 * MIB
MEMORY_BYTES = 32 * MIB
"""Memory of Redis; an eighth of it is the reserve."""
BOUNDS: dict[str, dict[str, Any]] = {
    "session": {"queue_messages_max": 100_000, "queue_bytes_max": 1024 * MIB},
    "node": {"disk_queue_bytes_max": 1024 * MIB},
}
LOOK_S = 0.02
FULL_S = 2.0
"""A store without space for this time is full; what its log of writes takes twice is given back."""


@asynccontextmanager
async def on_small_disk(size: Size) -> AsyncIterator[Victim]:
    store = {"disk_reserve_bytes": RESERVE_BYTES, "write_buffer_bytes": MIB}
    with small_disk(size.folder, DISK_BYTES) as folder:
        async with victim(folder, BOUNDS | {"store": store}, store="rocks") as broker:
            yield broker


@asynccontextmanager
async def on_small_redis(size: Size) -> AsyncIterator[Victim]:
    """Yield a broker on a small Redis. Raises CannotRun if there is no Redis."""
    if PROGRAM is None:
        raise CannotRun("redis-server is missing")
    server = RedisServer(size.folder / "redis", {"maxmemory": str(MEMORY_BYTES)})
    try:
        server.start()
        settings = BOUNDS | {"store": {"durability": "memory"}, "redis": {"url": server.url}}
        async with victim(size.folder, settings, store="redis") as broker:
            yield broker
    finally:
        server.remove()


async def filled(size: Size, *, on_redis: bool, comes_back: bool = True) -> Finding:
    """A queue fills the store, and then its client comes for it."""
    async with (on_small_redis if on_redis else on_small_disk)(size) as broker:
        kept = await broker.connect("kept", durable=True)
        await kept.subscribe("t", 1)
        await kept.close()
        publisher = await broker.connect("publisher")
        queued_count = 0
        while await has_room(publisher):
            queued_count += 1
        drained_count = 0
        if comes_back:
            try:
                drained_count = await drained(broker, queued_count)
            except Refused as error:
                return Finding(False, f"{queued_count} queued, CONNACK {error.args[0]}")
        is_open = await has_room(publisher)
    said = f"{drained_count} of {queued_count} taken, "
    said += "then the store has room" if is_open else "and the store stays full"
    return Finding(is_open and drained_count == queued_count, said)


async def has_room(publisher: Wire) -> bool:
    """Whether the store takes a message, at once or before long."""
    until_s = trio.current_time() + FULL_S
    while True:
        await publisher.send(Publish("t", bytes(PAYLOAD_BYTES), 1, packet_id=1))
        if (await publisher.expect(Puback)).reason_code == ReasonCode.SUCCESS:
            return True
        if trio.current_time() > until_s:
            return False
        await trio.sleep(LOOK_S)


async def drained(broker: Victim, queued_count: int) -> int:
    """Messages that the client takes and acknowledges."""
    kept = await broker.connect("kept", durable=True)
    count = 0
    with trio.move_on_after(ANSWER_S):
        while count < queued_count:
            message = await kept.expect(Publish)
            await kept.send(Puback(message.packet_id))
            count += 1
    return count


ATTACKS = [
    Attack(
        f"full-{where}-drained",
        f"a queue has filled {what}: its client takes all of it, and the store has room again",
        partial(filled, on_redis=on_redis),
        partial(filled, on_redis=on_redis, comes_back=False),
    )
    for where, what, on_redis in (("disk", "the disk", False), ("redis", "Redis", True))
]
