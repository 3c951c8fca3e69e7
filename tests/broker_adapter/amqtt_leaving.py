"""Connections of amqtt that end while a packet of theirs waits: a script for amqtt's interpreter.

It says how many packets are in process after one that has given up reading before its packet was
admitted, and after one whose packet was admitted at the moment of its end.
"""

import asyncio

from broker_adapter.amqtt_plugin import GuardedReader
from broker_adapter.asyncio_guard import AsyncioBell
from broker_adapter.host_guard import HostGuard
from broker_adapter.waits import AsyncGuard
from flowguard.codec.encoder import encode
from flowguard.config import FlowSettings
from flowguard.types import MQTT_311, Publish


async def waiting(host: AsyncGuard) -> "tuple[GuardedReader, asyncio.Task[bytes]]":
    """A reader with one packet in process, and another one that waits for it."""
    frames = [encode(Publish("a", b"x", 1, packet_id=number), MQTT_311) for number in (1, 2)]
    stream = asyncio.StreamReader()
    stream.feed_data(b"".join(frames))
    reader = GuardedReader(host, stream)
    await reader.read(len(frames[0]))
    task = asyncio.create_task(reader.read(len(frames[1])))
    while not host.guard.waiting_count:  # noqa: ASYNC110
        await asyncio.sleep(0)
    return reader, task


async def main() -> None:
    guard = HostGuard(FlowSettings(window_max=1))
    host = AsyncGuard(guard, asyncio.get_running_loop().time, AsyncioBell)
    for gives_up in (True, False):
        reader, task = await waiting(host)
        if gives_up:
            task.cancel()
            await asyncio.wait([task])
        reader.answered(1)
        reader.end()
        await asyncio.wait([task])
        print(guard.in_process, guard.waiting_count)


asyncio.run(main())
