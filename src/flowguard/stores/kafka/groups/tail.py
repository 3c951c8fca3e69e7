"""GroupTail: follows the topic in which brokers announce the groups of their members.

It runs on the link's loop, and reconnects after an error. If the topic is deleted, the claims in
it still count; brokers that have read them repeat them (`claims`).
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from flowguard.stores.kafka.connection.errors import failure
from flowguard.stores.kafka.connection.link import (
    RETRY_S,
    KafkaLink,
    check_cancelled,
    patiently,
    quietly,
    within,
)
from flowguard.stores.kafka.groups.ended_tasks import bug_of
from flowguard.stores.kafka.groups.roster import GroupChange, GroupRoster

READ_S: Final = 1.0
LOOK_S: Final = 1.0
"""Interval of checks whether the topic is still the same."""
STUCK_S: Final = 5.0
"""Time limit of a read; a longer one waits for a deleted topic."""


@final
class GroupTail:
    def __init__(
        self,
        link: KafkaLink,
        topic: str,
        roster: GroupRoster,
        on_change: Callable[[GroupChange], None],
    ) -> None:
        self._link = link
        self._place = TopicPartition(topic, 0)
        self._roster = roster
        self._on_change = on_change
        self._consumer: Any = None
        self.next_offset = 0
        """Offset of the next record."""
        self.topic_id = b""
        self.is_missing = False
        """True if the topic was deleted."""
        self.is_anew = False
        """True if the topic was recreated, and its claims are not repeated yet."""
        self._look_due_s = 0.0
        self.trouble = ""
        """The error that prevents reading now, or ""."""
        self._task: asyncio.Task[None] | None = None
        self._read_some = asyncio.Condition()

    async def start(self) -> None:
        """Read the existing records, then follow. Raises KafkaError."""
        await self._connect()
        ask = partial(self._consumer.end_offsets, [self._place])
        end = (await patiently(ask))[self._place]
        while self.next_offset < end:
            await self._read()
        self._task = self._link.task(self._follow())

    def go_on(self) -> None:
        """If a bug has ended the task, follow again after the last record that was read."""
        if self._task is not None and self._task.done():
            self.trouble = bug_of(self._task, "")
            self._task = self._link.task(self._follow_again())

    async def _follow_again(self) -> None:
        await quietly(self._consumer.stop())
        await self._connect_again()
        await self._follow()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._consumer is not None:
            await quietly(self._consumer.stop())

    async def passed(self, offset: int) -> None:
        """Wait until the record at `offset` has been followed."""
        async with self._read_some:
            await self._read_some.wait_for(lambda: self.next_offset > offset)

    async def _connect(self) -> None:
        self._consumer = AIOKafkaConsumer(
            **self._link.options, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        await self._consumer.start()
        self._consumer.assign([self._place])
        self._consumer.seek(self._place, self.next_offset)

    async def _follow(self) -> None:
        while True:
            try:
                await self._look()
                await within(STUCK_S, self._read)
                self.trouble = ""
            except (KafkaError, OSError) as error:
                await self._end(error)
                await self._connect_again()

    async def _end(self, error: Exception) -> None:
        """Close the connection after an error, and pause."""
        check_cancelled()
        self.trouble = str(failure(error, self._link.servers))
        await quietly(self._consumer.stop())
        await asyncio.sleep(RETRY_S)

    async def _connect_again(self) -> None:
        while True:
            try:
                await self._connect()
            except (KafkaError, OSError) as error:
                await self._end(error)
                continue
            return

    async def _look(self) -> None:
        """Check whether the topic is still the same; if not, read it from its beginning."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._look_due_s:
            return
        self._look_due_s = now_s + LOOK_S
        try:
            seen = await self._link.look_at(self._place.topic)
        except (KafkaError, OSError):
            return  # A node may be unavailable; the next check asks another one.
        self.is_missing = seen is None
        if seen is None or seen.id == self.topic_id:
            return
        self.topic_id, self.next_offset, self.is_anew = seen.id, 0, True
        await quietly(self._consumer.stop())
        await self._connect_again()

    async def _read(self) -> None:
        found = await self._consumer.getmany(timeout_ms=int(READ_S * 1_000))
        for each in found.get(self._place, ()):
            self.next_offset = each.offset + 1
            change = self._roster.apply(each.key, each.value)
            if change is not None:
                self._on_change(change)
        # Compaction leaves gaps, also at the end.
        self.next_offset = max(self.next_offset, await self._consumer.position(self._place))
        async with self._read_some:
            self._read_some.notify_all()
