"""KafkaLink: the connection to a Kafka cluster, on aiokafka.

The driver runs on an asyncio loop in a thread of its own, so that it keeps its connections alive
between two calls. Calls block, and come from one other thread at a time.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from typing import Any, Final, TypeVar, final

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    InvalidPartitionsError,
    KafkaError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    for_code,
)

from flowguard.errors import StallError, StoreError
from flowguard.stores.kafka.connection.access import NOBODY, KafkaAccess
from flowguard.stores.kafka.connection.driver import TopicSeen, check_driver, topic_seen
from flowguard.stores.kafka.connection.errors import NoTopicError, failure, no_server

Partition = tuple[str, int]
"""A topic and the number of one of its partitions."""
R = TypeVar("R")
_Sent = tuple["asyncio.Future[Any]", int]
"""A batch that is being sent, and its number of messages."""

REQUEST_S: Final = 5.0
"""Time limit of an answer, after which the driver reconnects."""
METADATA_S: Final = 2.0
"""Maximum age of metadata: the time until a new leader is known."""
RETRY_S: Final = 0.2
NEWS_S: Final = 2.0
"""Time in which all nodes learn about a new topic."""
CLOSE_S: Final = 1.0
HEAR_PASSES: Final = 3
"""Passes of the loop until all tasks of a closed connection have ended: its protocol, its reader
and the task that watches them."""
WAVE_BYTES: Final = 16 * 1024 * 1024
"""Size of the messages that are sent at a time; the last partition may exceed it. A request to a
node has a batch of each partition, and servers accept 100 MiB."""
_OK: Final = 0
_POLICY: Final = "cleanup.policy"
_COMPACT: Final = "compact"
_TOPICS_OWN: Final = 1
"""Source of a setting of the topic itself (`DYNAMIC_TOPIC_CONFIG`)."""

# Without a handler, the driver's warnings would go to standard error.
logging.getLogger("aiokafka").addHandler(logging.NullHandler())


@final
@dataclass(frozen=True, slots=True)
class KafkaMessage:
    key: bytes | None
    value: bytes | None
    """Bytes, or None for a tombstone."""


@final
class KafkaLink:
    """A producer and an admin; `wait_s` bounds every call."""

    def __init__(self, servers: str, *, wait_s: float = 30.0, access: KafkaAccess = NOBODY) -> None:
        """Connect to `servers`, HOST:PORT,... Raises ConfigError if no server answers or if the
        driver lacks a part, and StoreError if the servers reject the connection."""
        check_driver()
        self.servers = servers
        self.wait_s = wait_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kafka", daemon=True)
        self._thread.start()
        self._options = {
            "bootstrap_servers": servers,
            "request_timeout_ms": int(REQUEST_S * 1_000),
            "metadata_max_age_ms": int(METADATA_S * 1_000),
            **access.options,
        }
        self._unfinished: dict[Partition, tuple[Sequence[KafkaMessage], list[_Sent]]] = {}
        """Messages and batches of a cancelled call that are still being sent, by partition."""
        self._producer: Any = None
        self._admin: Any = None
        try:
            self.call(self._start)
        except StallError as error:
            self.close()
            raise no_server(servers, error) from error
        except BaseException:
            self.close()
            raise

    @property
    def options(self) -> dict[str, Any]:
        """Arguments for another client of the driver on the same loop."""
        return dict(self._options)

    # --- topics ------------------------------------------------------------------------------

    def nodes_count(self) -> int:
        """Return the number of nodes that the cluster has now."""
        found = self._ask(lambda: self._admin.describe_cluster())
        return len(found["brokers"])

    def topics(self, prefix: str, wanted: Collection[str] = ()) -> list[str]:
        """Return the topics with this prefix. If a name of `wanted` has no topic NAME.NUMBER, this
        asks again for `NEWS_S`: a node may not know a new topic yet."""

        async def look() -> list[str]:
            for _ in range(ceil(NEWS_S / RETRY_S)):
                found = [
                    each for each in await self._admin.list_topics() if each.startswith(prefix)
                ]
                if set(wanted) <= {each.rpartition(".")[0] for each in found}:
                    break
                await asyncio.sleep(RETRY_S)
            return found

        return self._ask(look)

    def partitions_of(self, topic: str) -> int:
        """Return the number of partitions of a topic, 0 if it does not exist."""
        (found,) = self._ask(lambda: self._admin.describe_topics([topic]))
        return len(found["partitions"])

    def topic_seen(self, topic: str) -> TopicSeen:
        """Return a topic that exists; waits for a node that does not know it yet."""

        async def look() -> TopicSeen:
            while True:
                seen = await self.look_at(topic)
                if seen is not None:
                    return seen
                await asyncio.sleep(RETRY_S)

        return self._ask(look)

    def complete_topic(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Give a topic this number of partitions, and these settings."""
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(configs))

        async def complete() -> None:
            for answer in await self._admin.alter_configs([resource]):
                _check([(topic, code, said) for code, said, *_ in answer.resources])
            with suppress(InvalidPartitionsError):  # Another broker was faster.
                await self._admin.create_partitions({topic: NewPartitions(partitions)})

        self.call(complete)

    def compact_topic(self, topic: str) -> None:
        """Set `cleanup.policy=compact`, so that the last record of each key stays forever, and keep
        the topic's other settings. Raises StoreError if that is not allowed.

        The topic exists, so this waits for a node that does not know it yet.
        """
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)

        async def compact() -> None:
            (answer,) = await self._admin.describe_configs([resource])
            ((code, said, _, _, entries),) = answer.resources
            _check([(topic, code, said)])
            found = {name: value for name, value, *_ in entries}
            if found.get(_POLICY) == _COMPACT:
                return
            own = {name: value for name, value, _, source, *_ in entries if source == _TOPICS_OWN}
            wanted = ConfigResource(ConfigResourceType.TOPIC, topic, own | {_POLICY: _COMPACT})
            for answer in await self._admin.alter_configs([wanted]):
                _check([(topic, code, said) for code, said, *_ in answer.resources])

        self.call(lambda: patiently(compact, is_there=True))

    async def look_at(self, topic: str) -> TopicSeen | None:
        """Return a topic as a node has it, None if it does not exist. On the loop. Raises
        KafkaError."""
        return await topic_seen(self._admin, topic)

    def _ask(self, question: Callable[[], Awaitable[R]]) -> R:
        """Ask with retries: the driver chooses a random node, which may be unavailable."""
        return self.call(lambda: patiently(question))

    def create_topic(
        self, topic: str, partitions: int, replicas: int, configs: Mapping[str, str]
    ) -> bool:
        """Create a topic. Return True if it was missing."""
        wanted = NewTopic(topic, partitions, replicas, topic_configs=dict(configs))

        async def create() -> bool:
            answer = await self._admin.create_topics([wanted])
            return _check(answer.topic_errors, TopicAlreadyExistsError)

        return self.call(create)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic; does nothing if it does not exist."""

        async def delete() -> None:
            answer = await self._admin.delete_topics([topic])
            _check(answer.topic_error_codes)

        try:
            self.call(delete)
        except NoTopicError:
            return

    # --- writing -----------------------------------------------------------------------------

    def append(
        self, messages: Mapping[Partition, Sequence[KafkaMessage]]
    ) -> dict[Partition, list[int]]:
        """Write to several partitions, in batches. Return the offset of each message when all
        in-sync replicas have all messages.

        Raises StallError when that takes longer than `wait_s`. If a later call has the same
        messages for a partition, it waits for the batches that are still being sent. After an
        error, or if a later call has other messages, some records may be stored twice; readers
        recognise them.
        """
        return self.call(lambda: self._append(messages))

    async def _append(
        self, messages: Mapping[Partition, Sequence[KafkaMessage]]
    ) -> dict[Partition, list[int]]:
        unfinished = self._unfinished
        if self._producer is None:
            self._producer = await self._new_producer()
        wave: list[asyncio.Future[Any]] = []
        wave_bytes = 0
        # This call may be cancelled; batches that are being sent continue.
        for partition, some in messages.items():
            if wave_bytes > WAVE_BYTES:
                await asyncio.wait(wave)
                wave, wave_bytes = [], 0
            if partition not in unfinished or unfinished[partition][0] != some:
                unfinished[partition] = some, await self._send(partition, some)
            wave += [sent for sent, _ in unfinished[partition][1]]
            wave_bytes += sum(len(message.value or b"") for message in some)
        await asyncio.wait(wave)
        batches = {partition: unfinished.pop(partition)[1] for partition in messages}
        all_sent = [sent for some in batches.values() for sent, _ in some]
        failed = next((error for sent in all_sent if (error := sent.exception())), None)
        if failed is not None:
            # A failed batch leaves a gap in the producer's sequence numbers: replace the producer.
            before, self._producer = self._producer, None
            await quietly(before.stop())
            raise failed
        return {
            partition: [sent.result().offset + i for sent, count in some for i in range(count)]
            for partition, some in batches.items()
        }

    async def _send(self, partition: Partition, messages: Sequence[KafkaMessage]) -> "list[_Sent]":
        topic, number = partition
        if number not in await self._producer.partitions_for(topic):
            raise StallError(f"Kafka at {self.servers}: {topic} has no partition {number}")
        batches = []
        builder = self._producer.create_batch()
        for message in messages:
            if self._add(builder, message) is None:
                batches.append(await self._send_batch(builder, partition))
                builder = self._producer.create_batch()
                if self._add(builder, message) is None:
                    size_bytes = len(message.value or b"")
                    raise StoreError(f"a message of {size_bytes} bytes is too large")
        batches.append(await self._send_batch(builder, partition))
        return batches

    def _add(self, builder: Any, message: KafkaMessage) -> Any:
        return builder.append(key=message.key, value=message.value, timestamp=None)

    async def _send_batch(self, builder: Any, partition: Partition) -> "_Sent":
        topic, number = partition
        count = builder.record_count()
        future = await self._producer.send_batch(builder, topic, partition=number)
        assert isinstance(future, asyncio.Future)
        future.add_done_callback(_look_at)
        return future, count

    async def _new_producer(self) -> Any:
        producer = AIOKafkaProducer(
            **self._options,
            acks="all",
            enable_idempotence=True,
            compression_type="zstd",
            max_batch_size=512 * 1024,
            max_request_size=1024 * 1024,
        )
        try:
            await producer.start()
        except BaseException:
            await quietly(producer.stop())
            raise
        return producer

    # --- the loop ----------------------------------------------------------------------------

    def call(self, work: Callable[[], Awaitable[R]], wait_s: float | None = None) -> R:
        """Run `work()` on the loop and return its result. Raises StoreError, and StallError after
        `wait_s`."""
        return self.result(self.begin(work, wait_s))

    def begin(self, work: Callable[[], Awaitable[R]], wait_s: float | None = None) -> "Future[R]":
        """Begin to run `work()` on the loop, for at most `wait_s`; `result` returns its result."""
        limit_s = self.wait_s if wait_s is None else wait_s

        async def run() -> R:
            try:
                return await within(limit_s, work)
            except TimeoutError as error:
                raise StallError(f"Kafka at {self.servers}: no answer in {limit_s:g} s") from error
            except (KafkaError, OSError) as error:
                raise failure(error, self.servers) from error

        coroutine: Coroutine[Any, Any, R] = run()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def task(self, work: Coroutine[Any, Any, R]) -> "asyncio.Task[R]":
        """Begin a task that is cancelled when the link is closed, at the latest. On the loop."""
        return self._loop.create_task(work)

    def result(self, begun: "Future[R]") -> R:
        """Wait for work that `begin` has begun. Raises StoreError, StallError."""
        try:
            return begun.result()
        except CancelledError as error:
            raise failure(error, self.servers) from error

    def close(self) -> None:
        """Close all connections. Batches that are being sent may be written or not."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        admin = AIOKafkaAdminClient(**self._options)
        try:
            await admin.start()
        except BaseException:
            await quietly(admin.close())
            raise
        self._admin = admin
        self._producer = await self._new_producer()

    async def _stop(self) -> None:
        if self._producer is not None:
            await quietly(self._producer.stop())
        if self._admin is not None:
            await quietly(self._admin.close())
        await self._abort_connections()
        # Callers that still wait get an error.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._abort_connections()

    async def _abort_connections(self) -> None:
        """Close connections that the driver leaves open: unflushed and unfinished ones."""
        for transport in [*getattr(self._loop, "_transports", {}).values()]:
            transport.abort()
        for _ in range(HEAR_PASSES):
            await asyncio.sleep(0)


async def patiently(work: Callable[[], Awaitable[R]], *, is_there: bool = False) -> R:
    """Retry while a node is unavailable or a group has no coordinator, which the first attempt
    makes servers choose. `is_there`: also retry while a node does not know the topic. When this is
    cancelled, the last error becomes the cause of the CancelledError; `within` raises it."""
    trouble: KafkaError | None = None
    try:
        while True:
            try:
                return await work()
            except KafkaError as error:
                is_unknown = isinstance(error, UnknownTopicOrPartitionError)
                if not error.retriable or (is_unknown and not is_there):
                    raise
                trouble = error
            await asyncio.sleep(RETRY_S)
    except asyncio.CancelledError as error:
        raise error from trouble


async def within(limit_s: float, work: Callable[[], Awaitable[R]]) -> R:
    """Return the result of `work()`. After `limit_s`, raises the last KafkaError of `patiently`, or
    TimeoutError. If the caller is cancelled, raises CancelledError."""
    try:
        async with asyncio.timeout(limit_s):
            return await work()
    except TimeoutError as error:
        cancelled = error.__cause__ or error.__context__  # The latter before Python 3.11.4.
        trouble = None if cancelled is None else cancelled.__cause__
        if isinstance(trouble, KafkaError):
            raise trouble from None
        raise


async def quietly(stopping: Awaitable[Any], limit_s: float = CLOSE_S) -> bool:
    """Wait for the end of a client, for at most `limit_s` seconds, and ignore its errors. Return
    True if it ended without one. If the caller is cancelled, raises CancelledError."""
    task = asyncio.current_task()
    assert task is not None
    cancelled_before = task.cancelling()
    try:
        async with asyncio.timeout(limit_s):
            await stopping
    except (KafkaError, OSError, StoreError):
        return False
    except asyncio.CancelledError:
        if task.cancelling() > cancelled_before:
            raise
        return False  # A task of the client was cancelled, not this one.
    return True


async def to_the_end(ending: Coroutine[Any, Any, None]) -> None:
    """Wait until `ending` is complete, even if this task is cancelled; that is raised after it."""
    task = asyncio.ensure_future(ending)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            await asyncio.wait([task])
        raise


def check_cancelled() -> None:
    """Raise CancelledError if this task is cancelled, also if the driver raised another error."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _look_at(future: "asyncio.Future[Any]") -> None:
    """Mark an error as seen, so that the loop does not log it if no caller waits for it."""
    if not future.cancelled():
        future.exception()


def _check(answers: Sequence[Any], *fine: type[KafkaError]) -> bool:
    """Raise the first error of some topics that is not `fine`. Return True if there is no error at
    all."""
    for _, code, *said in answers:
        error = for_code(code)
        if code != _OK and error not in fine:
            raise error(*(word for word in said if word))
    return all(code == _OK for _, code, *_ in answers)
