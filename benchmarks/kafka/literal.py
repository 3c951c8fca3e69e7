"""TBMQ's way to an application as its authors describe it, written from that description.

Publishers' messages enter one topic and are acknowledged when its leader has them (acks=1). Another
consumer routes them, each into the topic of its application. From there an application gets them in
packs: the next one when the last is acknowledged, or after three more tries all the same. What it
has in use (offset, and whether PUBREL is owed) is in memory, and written when it disconnects.

The store on Kafka is held against it: its defects are found by
`tests/benchmarks/test_kafka_literal.py`, in it and not in ours.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, Final, final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

PACK_MAX: Final = 200
RETRIES: Final = 3
READ_MS: Final = 1_000
Acks = int | str
"""Of a producer: 1, or "all"."""


@final
class LiteralApplication:
    """One application; `contexts` is the database in which it finds what it had in use."""

    def __init__(
        self,
        servers: str,
        ingress: str,
        topic: str,
        contexts: dict[str, dict[int, bool]],
        *,
        acks: Acks = 1,
    ) -> None:
        """Both topics are there; `contexts`: by topic, whether PUBREL is owed by offset."""
        self._servers = servers
        self._ingress = TopicPartition(ingress, 0)
        self._topic = TopicPartition(topic, 0)
        self._contexts = contexts
        self._acks = acks
        self._runner = asyncio.Runner()
        self._in_use = dict(contexts.get(topic, {}))
        self._pack: dict[int, bytes] = {}
        """What is not acknowledged of the pack that is under way."""
        self._end = 0
        """The offset after the pack."""
        self._tries = 0
        self._runner.run(self._start())

    async def _start(self) -> None:
        self._producer = AIOKafkaProducer(bootstrap_servers=self._servers, acks=self._acks)
        await self._producer.start()
        self._router = await self._consumer(f"{self._topic.topic}.router", self._ingress)
        self._reader = await self._consumer(f"{self._topic.topic}.reader", self._topic)

    async def _consumer(self, group: str, partition: TopicPartition) -> Any:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._servers,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        consumer.assign([partition])
        return consumer

    def publish(self, payloads: Iterable[bytes]) -> None:
        """Returns when their publisher is answered: the topic that all share has them."""

        async def send() -> None:
            topic = self._ingress.topic
            sent = [await self._producer.send(topic, each, partition=0) for each in payloads]
            await asyncio.gather(*sent)

        self._runner.run(send())

    def route(self, count: int) -> None:
        """So many go on to the application's topic."""

        async def move() -> None:
            moved = 0
            while moved < count:
                read = await self._router.getmany(timeout_ms=READ_MS, max_records=count - moved)
                found = [record for some in read.values() for record in some]
                topic = self._topic.topic
                sent = [await self._producer.send(topic, each.value, partition=0) for each in found]
                await asyncio.gather(*sent)
                moved += len(found)
                await self._router.commit()

        self._runner.run(move())

    def read(self) -> list[tuple[int, bytes | None]]:
        """What is sent to the client now, by offset; None: PUBREL. The same pack again where it was
        not acknowledged in time, and after three more tries the next one."""
        if self._pack and self._tries > RETRIES:
            self._pack.clear()
            self._commit()
        if not self._pack:
            self._runner.run(self._fetch())
            self._tries = 0
        self._tries += 1
        return [
            (offset, None if self._in_use.get(offset) else value)
            for offset, value in self._pack.items()
        ]

    async def _fetch(self) -> None:
        read = await self._reader.getmany(timeout_ms=READ_MS, max_records=PACK_MAX)
        for record in read.get(self._topic, ()):
            self._pack[record.offset] = record.value
            self._in_use.setdefault(record.offset, False)
            self._end = record.offset + 1

    def received(self, offset: int) -> None:
        """PUBREC: the message is the client's."""
        self._in_use[offset] = True

    def acknowledged(self, offset: int) -> None:
        """PUBACK or PUBCOMP."""
        del self._pack[offset], self._in_use[offset]
        if not self._pack:
            self._commit()

    def _commit(self) -> None:
        self._runner.run(self._reader.commit({self._topic: self._end}))

    def disconnect(self) -> None:
        """The client leaves: what it has in use is written."""
        self._contexts[self._topic.topic] = dict(self._in_use)
        self.crash()

    def crash(self) -> None:
        """The process is gone, and its memory."""

        async def stop() -> None:
            for client in (self._producer, self._router, self._reader):
                await client.stop()

        self._runner.run(stop())
        self._runner.close()
