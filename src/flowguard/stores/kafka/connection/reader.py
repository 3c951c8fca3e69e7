"""KafkaReader: the only consumer of a broker, which commits offsets; runs on the link's loop.

The caller assigns the topics. A partition is paused except while it is read, so the driver does
not read ahead.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any, Final, final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from flowguard.errors import StallError
from flowguard.stores.kafka.connection.driver import NO_MEMBER, commit_offsets
from flowguard.stores.kafka.connection.link import KafkaLink, patiently, quietly

READ_S: Final = 1.0
"""Maximum wait for records in one round."""
ROUNDS_MAX: Final = 10
PARTITION: Final = 0
COMMIT_MAX: Final = 200
"""Maximum number of topics of a request. A server stores them as one batch, of at most 1 MiB."""


@final
@dataclass(frozen=True, slots=True)
class Committed:
    """The offset that a group has committed for a topic, and its metadata."""

    offset: int
    metadata: str


@final
class KafkaReader:
    def __init__(self, link: KafkaLink, group: str) -> None:
        self._link = link
        self._group = group
        self._next: dict[str, int] = {}
        """Offsets of the next records by topic."""
        # The consumer has no group: the driver may fail if topics are assigned twice while servers
        # look for a coordinator.
        self._consumer: Any = None
        self._admin: Any = None
        self._coordinator: int | None = None
        """The node that accepted the last commit, or None if unknown."""
        link.call(self._start)

    async def _start(self) -> None:
        self._consumer = AIOKafkaConsumer(
            **self._link.options,
            enable_auto_commit=False,
            auto_offset_reset="none",
        )
        await self._consumer.start()
        self._admin = AIOKafkaAdminClient(**self._link.options)
        await self._admin.start()

    def assign(self, offsets: Mapping[str, int]) -> None:
        """Read these topics from now on. `offsets` apply to topics that were not read before."""
        self._next = {topic: self._next.get(topic, at) for topic, at in offsets.items()}

        async def assign() -> None:
            partitions = [_of(topic) for topic in self._next]
            # An assignment resets positions, so set them all without an await, before any fetch.
            self._consumer.assign(partitions)
            for topic, offset in self._next.items():
                self._consumer.seek(_of(topic), offset)
            self._consumer.pause(*partitions)

        self._link.call(assign)

    def read(self, topic: str, offset: int, count: int) -> list[tuple[int, bytes]]:
        """Return offsets and values from `offset` on, at least one; `offset` must be below the end.

        Raises RetentionError if the record was deleted, StallError if there is no answer."""
        return self._link.call(lambda: self._read(topic, offset, count))

    async def _read(self, topic: str, offset: int, count: int) -> list[tuple[int, bytes]]:
        consumer, partition = self._consumer, _of(topic)
        if self._next[topic] != offset:
            consumer.seek(partition, offset)
            self._next[topic] = offset
        consumer.resume(partition)
        try:
            for _ in range(ROUNDS_MAX):
                read = await consumer.getmany(
                    partition, timeout_ms=int(READ_S * 1_000), max_records=count
                )
                found = [(each.offset, each.value) for each in read.get(partition, ())]
                if found:
                    self._next[topic] = found[-1][0] + 1
                    return found
        finally:
            consumer.pause(partition)
        raise StallError(f"Kafka at {self._link.servers}: no record of {topic}")

    def ends(self, topics: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Return the first offset and the one after the last, by topic."""
        partitions = [_of(topic) for topic in topics]

        async def ask() -> dict[str, tuple[int, int]]:
            first = await self._consumer.beginning_offsets(partitions)
            last = await self._consumer.end_offsets(partitions)
            return {each.topic: (first[each], last[each]) for each in partitions}

        return self._link.call(ask) if partitions else {}

    def committed(self) -> dict[str, Committed]:
        """Return all commits of the group, by topic."""
        return self._link.call(lambda: patiently(self._committed))

    async def _committed(self) -> dict[str, Committed]:
        found = await self._admin.list_consumer_group_offsets(self._group)
        return {
            partition.topic: Committed(each.offset, each.metadata)
            for partition, each in found.items()
        }

    def commit(self, offsets: Mapping[str, Committed]) -> None:
        """Commit for topics, and wait until it is stored. Raises NoTopicError."""
        self._link.result(self.begin_commit(offsets))

    def begin_commit(self, offsets: Mapping[str, Committed]) -> "Future[None]":
        """Begin to commit for topics; `KafkaLink.result` waits for the result."""
        topics = [(topic, [(PARTITION, *astuple(each))]) for topic, each in offsets.items()]

        async def send() -> None:
            for start in range(0, len(topics), COMMIT_MAX):
                some = topics[start : start + COMMIT_MAX]
                await patiently(partial(self._commit, some))

        return self._link.begin(send)

    async def _commit(self, topics: Sequence[tuple[str, list[tuple[int, int, str]]]]) -> None:
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is None:
            coordinator = await self._admin.find_coordinator(self._group)
        await commit_offsets(self._admin, self._group, NO_MEMBER, topics, coordinator)
        self._coordinator = coordinator

    def close(self) -> None:
        self._link.call(self._stop)

    async def _stop(self) -> None:
        for end in (self._consumer.stop, self._admin.close):
            await quietly(end())


def _of(topic: str) -> TopicPartition:
    return TopicPartition(topic, PARTITION)
