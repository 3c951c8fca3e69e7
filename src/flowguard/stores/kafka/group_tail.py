"""GroupTail: follows the topic in which brokers say of which groups they have members.

It lives on the link's loop, and begins anew where something is in the way: the records say all.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from flowguard.stores.kafka.errors import failure
from flowguard.stores.kafka.group_roster import GroupChange, GroupRoster
from flowguard.stores.kafka.link import RETRY_S, KafkaLink, patiently, quietly

READ_S: Final = 1.0


@final
class GroupTail:
    """One per broker."""

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
        self._next_offset = 0
        self.trouble = ""
        """Why nothing can be read now; empty: it can."""
        self._task: asyncio.Task[None] | None = None
        self._read_some = asyncio.Condition()

    async def start(self) -> None:
        """Read what is there, then follow. Raises KafkaError."""
        await self._connect()
        ask = partial(self._consumer.end_offsets, [self._place])
        end = (await patiently(ask))[self._place]
        while self._next_offset < end:
            await self._read()
        self._task = self._link.task(self._follow())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._consumer is not None:
            await quietly(self._consumer.stop())

    async def passed(self, offset: int) -> None:
        """Wait until the record at `offset` has been followed."""
        async with self._read_some:
            await self._read_some.wait_for(lambda: self._next_offset > offset)

    async def _connect(self) -> None:
        self._consumer = AIOKafkaConsumer(
            **self._link.options, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        await self._consumer.start()
        self._consumer.assign([self._place])
        self._consumer.seek(self._place, self._next_offset)

    async def _follow(self) -> None:
        while True:
            try:
                await self._read()
                self.trouble = ""
            except (KafkaError, OSError) as error:
                self.trouble = str(failure(error, self._link.servers))
                await quietly(self._consumer.stop())
                await asyncio.sleep(RETRY_S)
                await self._connect_again()

    async def _connect_again(self) -> None:
        while True:
            try:
                await self._connect()
            except (KafkaError, OSError) as error:
                self.trouble = str(failure(error, self._link.servers))
                await quietly(self._consumer.stop())
                await asyncio.sleep(RETRY_S)
                continue
            return

    async def _read(self) -> None:
        found = await self._consumer.getmany(timeout_ms=int(READ_S * 1_000))
        for each in found.get(self._place, ()):
            self._next_offset = each.offset + 1
            change = self._roster.apply(each.key, each.value)
            if change is not None:
                self._on_change(change)
        # Compaction leaves gaps, also at the end.
        self._next_offset = max(self._next_offset, await self._consumer.position(self._place))
        async with self._read_some:
            self._read_some.notify_all()
