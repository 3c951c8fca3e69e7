"""Appending to partitions, with a producer that says when a batch is written; no server."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("aiokafka", reason="aiokafka is missing: pip install 'flowguard-mqtt[kafka]'")

from flowguard.errors import StallError
from flowguard.stores.kafka.connection.link import KafkaLink, KafkaMessage


class Batch:
    """Messages on their way to one partition."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []

    def append(self, value: bytes | None, **_: object) -> object:
        self.values.append(value)
        return self

    def record_count(self) -> int:
        return len(self.values)


class Producer:
    """Writes a batch when `written` is set."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, list[bytes | None]]] = []
        self.written = asyncio.Event()

    async def partitions_for(self, _: str) -> set[int]:
        return {0, 1}

    def create_batch(self) -> Batch:
        return Batch()

    async def send_batch(self, batch: Batch, _: str, partition: int) -> "asyncio.Future[Any]":
        self.sent.append((partition, batch.values))
        offset = len(self.sent)

        async def write() -> object:
            await self.written.wait()
            return SimpleNamespace(offset=offset)

        return asyncio.ensure_future(write())


def new_link(producer: Producer) -> KafkaLink:
    link = KafkaLink.__new__(KafkaLink)
    link.servers, link._unfinished, link._producer = "somewhere", {}, producer
    return link


def messages(*values: bytes) -> list[KafkaMessage]:
    return [KafkaMessage(None, value) for value in values]


def test_the_same_messages_are_waited_for_and_others_are_written() -> None:
    async def test() -> None:
        producer = Producer()
        link = new_link(producer)
        for wanted in (b"1", b"1", b"2"):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await link._append({("t", 0): messages(wanted)})
        assert producer.sent == [(0, [b"1"]), (0, [b"2"])]
        producer.written.set()
        assert await link._append({("t", 0): messages(b"2")}) == {("t", 0): [2]}
        assert await link._append({("t", 0): messages(b"3")}) == {("t", 0): [3]}

    asyncio.run(test())


def test_messages_that_go_to_another_partition_than_before_are_all_written() -> None:
    """A topic turns out to have fewer partitions: the messages to an existing one were not all
    sent."""

    async def test() -> None:
        producer = Producer()
        producer.written.set()
        link = new_link(producer)
        with pytest.raises(StallError, match="no partition 2"):
            await link._append({("t", 0): messages(b"1"), ("t", 2): messages(b"2")})
        await link._append({("t", 0): messages(b"1", b"2")})
        assert producer.sent[-1] == (0, [b"1", b"2"])

    asyncio.run(test())
