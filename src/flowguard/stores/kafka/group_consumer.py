"""GroupConsumer: this broker's member of the consumer group of one shared subscription.

It lives on the link's loop. Kafka says which partitions are ours; what is read of them becomes
news, as long as not too much waits. What is settled is committed under the generation in which the
partitions were given to us: a later owner's word is never overwritten.
"""

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final, final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import (
    IllegalGenerationError,
    KafkaError,
    RebalanceInProgressError,
    UnknownMemberIdError,
    for_code,
)
from aiokafka.protocol.commit import OffsetCommitRequest

from flowguard.errors import CorruptionError
from flowguard.records import Delivery
from flowguard.stores.group_feed import GroupCame, GroupGone, GroupNews, GroupPaused
from flowguard.stores.kafka.group_record import decode_group_record
from flowguard.stores.kafka.group_window import Found, GroupWindows
from flowguard.stores.kafka.link import RETRY_S, KafkaLink, patiently, quietly
from flowguard.stores.kafka.window import AckWindow

SESSION_S: Final = 10.0
"""A broker that was silent for so long loses its partitions to others."""
REJOIN_S: Final = 20.0
"""In which all brokers of a group have to answer when partitions are given out anew."""
READ_S: Final = 0.5
READ_COUNT: Final = 500
HERE_MAX: Final = 2_000
HERE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Messages that are here and not settled, of which no more are read; but for one answer's."""
LOOKS_MAX: Final = 10
"""At a partition that seems to have less than it had: then it is taken for another one."""
NEVER_MS: Final = 2**31 - 1
FENCED: Final = (IllegalGenerationError, UnknownMemberIdError, RebalanceInProgressError)


@final
class GroupConsumer(ConsumerRebalanceListener):  # type: ignore[misc]
    """One per group and broker, while a member is connected."""

    def __init__(
        self,
        link: KafkaLink,
        admin: Any,
        filter: str,
        topic: str,
        windows: GroupWindows,
        tell: Callable[[GroupNews], None],
    ) -> None:
        self._options = link.options
        self._admin = admin
        self._filter = filter
        self._topic = topic
        self._tell = tell
        self.windows = windows
        self._consumer: Any = None
        self._is_ours = False
        """Whether the partitions of `windows` are ours now."""
        self._generation = -1
        self._member = ""
        self._trouble: BaseException | None = None
        self._room = asyncio.Event()
        self._turn = asyncio.Lock()
        """Of commits: none overtakes another."""

    async def run(self) -> None:
        """Until it is cancelled: then everything goes to others."""
        try:
            while True:
                try:
                    await self._consume()
                except (KafkaError, OSError, CorruptionError):
                    pass  # What is in the way now may be out of it later.
                await asyncio.sleep(RETRY_S)
        finally:
            self._tell_gone(self.windows.assigned({}))

    async def _consume(self) -> None:
        self._trouble = None
        self._consumer = consumer = AIOKafkaConsumer(
            **self._options,
            group_id=self._topic,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=int(SESSION_S * 1_000),
            rebalance_timeout_ms=int(REJOIN_S * 1_000),
            max_poll_interval_ms=NEVER_MS,
            partition_assignment_strategy=(RoundRobinPartitionAssignor,),
        )
        consumer.subscribe([self._topic], listener=self)
        try:
            await consumer.start()
            while self._trouble is None:
                await self._read()
        finally:
            await asyncio.shield(self._leave(consumer))

    async def _leave(self, consumer: Any) -> None:
        await quietly(self.commit())
        self._pause()
        await quietly(consumer.stop())

    async def _read(self) -> None:
        consumer, windows = self._consumer, self.windows
        if windows.count >= HERE_MAX or windows.size_bytes >= HERE_BYTES_MAX:
            self._room.clear()
            await self._room.wait()
            return
        found = await consumer.getmany(timeout_ms=int(READ_S * 1_000), max_records=READ_COUNT)
        if not self._is_ours:
            return  # Read again when it is known from where.
        came: list[tuple[int, Delivery]] = []
        for place, records in found.items():
            if records[-1].offset + 1 < windows.next_offset(place.partition):
                raise CorruptionError("somebody has deleted the topic: it is another one")
            for each in records:
                record, delivery = decode_group_record(each.value)
                size_bytes = delivery.size_bytes
                pos = windows.arrived(place.partition, each.offset, record, size_bytes)
                if pos is not None:
                    came.append((pos, delivery))
        if came:
            self._tell(GroupCame(self._filter, came, windows.is_behind))

    @property
    def is_committing(self) -> bool:
        return self._turn.locked()

    def settle(self, positions: Collection[int]) -> None:
        """They are done."""
        for pos in positions:
            self.windows.settle(pos)
        self._room.set()

    # --- partitions --------------------------------------------------------------------------

    async def on_partitions_revoked(self, revoked: Collection[Any]) -> None:
        """They are given out anew: what is settled by now is known to who gets them."""
        self._tell(GroupPaused(self._filter, True))
        await quietly(self.commit())
        self._pause()

    def _pause(self) -> None:
        self._is_ours = False

    async def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
        """These are ours from now on."""
        try:
            await self._take_over(list(assigned))
        except (KafkaError, OSError, CorruptionError) as error:
            self._trouble = error  # Nobody else hears of it.
            self._room.set()

    async def _take_over(self, assigned: list[Any]) -> None:
        consumer, coordinator = self._consumer, self._consumer._coordinator
        self._generation, self._member = coordinator.generation, coordinator.member_id
        found: dict[int, Found] = {}
        for _ in range(LOOKS_MAX if assigned else 0):
            found = await self._find(assigned)
            if not any(self.windows.is_beyond(*each) for each in found.items()):
                break
            await asyncio.sleep(READ_S)
        self._tell_gone(self.windows.assigned(found))
        for place in assigned:
            consumer.seek(place, self.windows.next_offset(place.partition))
        self._is_ours = True
        self._room.set()
        self._tell(GroupPaused(self._filter, False))

    async def _find(self, assigned: list[Any]) -> dict[int, Found]:
        consumer = self._consumer
        ask = partial(self._admin.list_consumer_group_offsets, self._topic, None, assigned)
        committed = await patiently(ask)
        starts = await patiently(partial(consumer.beginning_offsets, assigned))
        ends = await patiently(partial(consumer.end_offsets, assigned))
        return {
            place.partition: Found(_window(committed.get(place)), starts[place], ends[place])
            for place in assigned
        }

    def _tell_gone(self, positions: list[int]) -> None:
        if positions:
            self._tell(GroupGone(self._filter, positions))

    # --- commits -----------------------------------------------------------------------------

    async def commit(self) -> None:
        """Commit what has changed; does nothing for who is not the owner any more.

        Raises KafkaError: it is to be tried again."""
        async with self._turn:
            offsets = self.windows.to_commit() if self._is_ours else {}
            if not offsets:
                return
            try:
                await self._commit([(each, *said) for each, said in offsets.items()])
            except FENCED:
                self.windows.not_committed(offsets)
            except BaseException:
                self.windows.not_committed(offsets)
                raise

    async def _commit(self, offsets: list[tuple[int, int, str]]) -> None:
        topics = [(self._topic, offsets)]
        request = OffsetCommitRequest(self._topic, self._generation, self._member, -1, topics)
        coordinator = await self._admin.find_coordinator(self._topic)
        # No public call says in which generation an offset was settled.
        answer = await self._admin._send_request(request, coordinator)
        for _, partitions in answer.topics:
            for _, code in partitions:
                if code:
                    raise for_code(code)


def _window(committed: Any) -> AckWindow:
    if committed is None or committed.offset < 0:
        return AckWindow()
    if not committed.metadata:
        return AckWindow(committed.offset, committed.offset)
    return AckWindow.decode(committed.offset, committed.metadata)
