"""`python -m benchmarks.kafka.literal_broker`: TBMQ's way to an application behind MQTT.

The path of `literal.py` with sockets, to be measured beside ours. Codec, driver and the settings of
its batches are ours, and it does what QoS 1 needs and no more: no bounds, no sessions that survive,
nothing for devices. So what it costs beyond ours, its way costs. Prints `listening on HOST:PORT`.
"""

import asyncio
import gc
import signal
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final

import typer
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from benchmarks.brokers import HOST
from benchmarks.kafka.literal import PACK_MAX, READ_MS, Acks
from flowguard.__main__ import GC_THRESHOLDS
from flowguard.codec import (
    PINGRESP_FRAME,
    Connack,
    Connect,
    PacketDecoder,
    Pingreq,
    Puback,
    Suback,
    Subscribe,
    encode,
    puback_frame,
    publish_frame,
)
from flowguard.types import NO_PROPERTIES, PACKET_ID_MAX, Publish

ROUTE_MAX: Final = 2_000
"""Records that the router takes at a time."""
PACKET_BYTES_MAX: Final = 1024 * 1024
BATCH: Final[dict[str, Any]] = {
    "compression_type": "zstd",
    "max_batch_size": 512 * 1024,
    "max_request_size": 1024 * 1024,
}
"""As in `flowguard.stores.kafka.connection.link`."""
Done = Callable[[], None]


class Path:
    """Everything that is shared: producer, admin, the ingress topic and its router."""

    def __init__(self, servers: str, acks: Acks, replicas: int, prefix: str) -> None:
        self._servers = servers
        self._replicas = replicas
        self._prefix = prefix
        self._producer = AIOKafkaProducer(bootstrap_servers=servers, acks=acks, **BATCH)
        self._admin = AIOKafkaAdminClient(bootstrap_servers=servers)
        self._consumers: list[Any] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._wanted: dict[bytes, list[str]] = {}
        """Topics of applications by MQTT topic."""
        self._waiting: list[tuple[bytes, bytes, Done]] = []
        self._has_some = asyncio.Event()

    async def start(self) -> None:
        await self._producer.start()
        await self._admin.start()
        self._ingress = await self._topic("all")
        self._run(self._publish())
        self._run(self._route(await self._consumer(self._ingress, "router")))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in (*self._consumers, self._producer):
            await client.stop()
        await self._admin.close()

    def _run(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._look_at)

    def _look_at(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            raise SystemExit(f"{task.exception()!r}")

    async def _topic(self, name: str) -> str:
        topic = f"{self._prefix}.{name}"
        await self._admin.create_topics([NewTopic(topic, 1, self._replicas)])
        return topic

    async def _consumer(self, topic: str, group: str) -> Any:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._servers,
            group_id=f"{topic}.{group}",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        consumer.assign([TopicPartition(topic, 0)])
        self._consumers.append(consumer)
        return consumer

    async def _write(self, topic: str, records: list[tuple[bytes, bytes]]) -> None:
        """Returns when they are acknowledged."""
        sent = []
        batch = self._producer.create_batch()
        for key, value in records:
            if batch.append(key=key, value=value, timestamp=None) is None:
                sent.append(await self._producer.send_batch(batch, topic, partition=0))
                batch = self._producer.create_batch()
                batch.append(key=key, value=value, timestamp=None)
        sent.append(await self._producer.send_batch(batch, topic, partition=0))
        await asyncio.gather(*sent)

    def put(self, topic: bytes, payload: bytes, done: Done) -> None:
        """`done` is called when the ingress topic has it."""
        self._waiting.append((topic, payload, done))
        self._has_some.set()

    async def _publish(self) -> None:
        """What has come meanwhile goes at once."""
        while True:
            await self._has_some.wait()
            self._has_some.clear()
            some, self._waiting = self._waiting, []
            await self._write(self._ingress, [(topic, payload) for topic, payload, _ in some])
            for _, _, done in some:
                done()

    async def _route(self, consumer: Any) -> None:
        """From the ingress topic into those of applications."""
        while True:
            read = await consumer.getmany(timeout_ms=READ_MS, max_records=ROUTE_MAX)
            found: dict[str, list[tuple[bytes, bytes]]] = {}
            for records in read.values():
                for record in records:
                    for topic in self._wanted.get(record.key, ()):
                        found.setdefault(topic, []).append((record.key, record.value))
            await asyncio.gather(*(self._write(topic, some) for topic, some in found.items()))
            if read:
                await consumer.commit()

    async def attend(self, name: str, mqtt_topic: bytes, session: "Session") -> None:
        """An application gets what is for this topic, from now on."""
        topic = await self._topic(f"app.{name}")
        consumer = await self._consumer(topic, "reader")
        self._wanted.setdefault(mqtt_topic, []).append(topic)
        self._run(self._deliver(consumer, session))

    async def _deliver(self, consumer: Any, session: "Session") -> None:
        """In packs: the next one when the last is acknowledged."""
        while True:
            read = await consumer.getmany(timeout_ms=READ_MS, max_records=PACK_MAX)
            for records in read.values():
                await session.send([(record.key, record.value) for record in records])
                await consumer.commit()


class Session(asyncio.Protocol):
    """A connection. Who subscribes is an application."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._decoder = PacketDecoder(PACKET_BYTES_MAX)
        self._acknowledgements: list[bytes] = []
        self._packet_id = 0
        self._unacknowledged: set[int] = set()
        self._is_settled = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._decoder.feed(data)
        while packets := self._decoder.next_batch(ROUTE_MAX):
            for packet in packets:
                self._take(packet)

    def _take(self, packet: object) -> None:
        if isinstance(packet, Publish):
            answer = partial(self._acknowledge, packet.packet_id)
            self._path.put(packet.topic.encode(), packet.payload, answer)
        elif isinstance(packet, Puback):
            self._unacknowledged.discard(packet.packet_id)
            if not self._unacknowledged:
                self._is_settled.set()
        elif isinstance(packet, Subscribe):
            task = asyncio.get_running_loop().create_task(self._subscribe(packet))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif isinstance(packet, Connect):
            self._name = packet.client_id
            self._transport.write(encode(Connack(), packet.version))
        elif isinstance(packet, Pingreq):
            self._transport.write(PINGRESP_FRAME)
        else:
            self._transport.close()

    async def _subscribe(self, packet: Subscribe) -> None:
        ((topic, options),) = packet.filters
        await self._path.attend(self._name, topic.encode(), self)
        suback = Suback(packet.packet_id, (options.qos,))
        self._transport.write(encode(suback, self._decoder.version))

    def _acknowledge(self, packet_id: int) -> None:
        """All that become due in one turn of the loop are one write."""
        if not self._acknowledgements:
            asyncio.get_running_loop().call_soon(self._answer)
        self._acknowledgements.append(puback_frame(packet_id))

    def _answer(self) -> None:
        self._transport.write(b"".join(self._acknowledgements))
        self._acknowledgements.clear()

    async def send(self, pack: list[tuple[bytes, bytes]]) -> None:
        """Returns when all of it is acknowledged."""
        frames: list[bytes] = []
        self._is_settled.clear()
        for topic, payload in pack:
            message = Publish(topic.decode(), payload, 1)
            head, tail = publish_frame(message, self._decoder.version, 1, False, NO_PROPERTIES)
            self._packet_id = self._packet_id % PACKET_ID_MAX + 1
            self._unacknowledged.add(self._packet_id)
            frames += (head, self._packet_id.to_bytes(2, "big"), tail)
        self._transport.write(b"".join(frames))
        await self._is_settled.wait()


async def serve(path: Path, port: int) -> None:
    await path.start()
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    server = await loop.create_server(lambda: Session(path), HOST, port, backlog=4096)
    print(f"listening on {HOST}:{server.sockets[0].getsockname()[1]}", flush=True)
    await ended.wait()
    server.close()
    await path.stop()


def main(
    servers: Annotated[str, typer.Option()],
    prefix: Annotated[str, typer.Option(help="Of its topics.")],
    acks: Annotated[str, typer.Option(help="1 or all.")] = "1",
    replicas: Annotated[int, typer.Option()] = 1,
    port: Annotated[int, typer.Option()] = 0,
) -> None:
    gc.set_threshold(*GC_THRESHOLDS)

    async def run() -> None:
        await serve(Path(servers, 1 if acks == "1" else acks, replicas, prefix), port)

    asyncio.run(run())


if __name__ == "__main__":
    typer.run(main)
