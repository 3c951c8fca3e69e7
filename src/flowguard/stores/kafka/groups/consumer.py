"""GroupConsumer: this broker's member of the consumer group of one shared subscription.

It lives on the link's loop. Kafka says which partitions are ours; what is read of them becomes
news, as long as not too much waits. What is settled is committed under the generation in which the
partitions were given to us: a later owner's word is never overwritten.

What goes wrong is said once, and once that it is over (`GroupTrouble`). A record that nobody can
read is passed over, and counted as lost; one of a later version holds its partition back until a
broker comes that knows it, and so does a batch that a server's disk has damaged.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar, final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import (
    CorruptRecordException,
    KafkaError,
)

from flowguard.errors import CorruptionError, FormatError, RemovedError, StoreError
from flowguard.records import Delivery
from flowguard.stores.group_feed import (
    GroupCame,
    GroupGone,
    GroupNews,
    GroupPaused,
    GroupTrouble,
    Trouble,
)
from flowguard.stores.kafka.connection.driver import (
    FENCED,
    abandon,
    commit_offsets,
    generation_of,
    topic_seen,
)
from flowguard.stores.kafka.connection.errors import failure
from flowguard.stores.kafka.connection.link import (
    RETRY_S,
    KafkaLink,
    check_cancelled,
    patiently,
    quietly,
    to_the_end,
    within,
)
from flowguard.stores.kafka.groups.capacity import READ_COUNT
from flowguard.stores.kafka.groups.record import decode_group_record
from flowguard.stores.kafka.groups.window import Found, GroupWindows
from flowguard.stores.kafka.window import AckWindow

R = TypeVar("R")
SESSION_S: Final = 10.0
"""A broker that was silent for so long loses its partitions to others."""
REJOIN_S: Final = 20.0
"""In which all brokers of a group have to answer when partitions are given out anew."""
LEAVE_S: Final = REJOIN_S + 10.0
"""How long a group may take to let a member go: who is waiting to be given partitions leaves when
all others have answered (`REJOIN_S`), a new group waits 3 s for more members, and a request to a
node that is gone ends after 5 s."""
READ_S: Final = 0.5
LOOK_S: Final = 1.0
"""Time after which it is asked whether the topic is still the same."""
FETCH_BYTES: Final = 128 * 1024
"""That the driver reads ahead of each partition; one batch, however large."""
CAREFUL_S: Final = 0.05
"""Pause of who reads record by record, where there is none."""
EXPECTED_BYTES: Final = 4 * 1024
"""Size of a message, before there was one."""
REFUSED_S: Final = 15.0
"""Commits that are refused for so long are said to be; for a moment they are whenever partitions
are given out anew."""
ANSWER_S: Final = 10.0
"""Whatever is asked about the topic, or one of its partitions, is answered within so long, or it is
said what is in the way, and all begins anew."""
LOOKS_MAX: Final = 10
"""At a partition that seems to have less than it had: then servers have lost it."""
OTHER_TOPIC: Final = "the topic was deleted and created again"
NEVER_MS: Final = 2**31 - 1


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
        self._servers = link.servers
        self._admin = admin
        self.filter = filter
        self._topic = topic
        self._tell = tell
        self.windows = windows
        self._consumer: Any = None
        self._is_ours = False
        """Whether the partitions of `windows` are ours now."""
        self.is_topic_doubtful = False
        """Whether somebody has deleted the topic, or made it again: whoever made it looks at it."""
        self._member = -1, ""
        """The generation, and our name in it."""
        self._coordinator: int | None = None
        """The node that has taken the last commit; None: it is to be asked for."""
        self._trouble: Exception | None = None
        self._said: dict[Trouble, str] = {}
        self._held: set[int] = set()
        """Partitions with a record of a later version, or a damaged batch."""
        self._ahead: set[Any] = set()
        """Those that are far ahead of what is settled."""
        self._is_careful = False
        """Whether some batch is damaged: which one is found out record by record."""
        self._first_place = 0
        """Of partitions that are read so: each is the first one in turn."""
        self._is_idle = True
        """Whether nothing has come."""
        self._largest_bytes = EXPECTED_BYTES
        """Size of the largest message of the last answer."""
        self._look_due_s = 0.0
        self._refused_since_s: float | None = None
        self._room = asyncio.Event()
        self._turn = asyncio.Lock()
        """Of commits: none overtakes another."""

    async def run(self) -> None:
        """Until it is cancelled: then everything goes to others."""
        try:
            while True:
                try:
                    await self._consume()
                except (KafkaError, OSError, StoreError) as error:
                    check_cancelled()
                    # What is in the way now may be out of it later.
                    self.say(Trouble.READING, self._why(error))
                await asyncio.sleep(RETRY_S)
        finally:
            self._tell_gone(self.windows.assigned({}))

    def say(self, trouble: Trouble, why: str) -> None:
        """Tell what is wrong, unless that is known; empty: nothing is any more."""
        if self._said.get(trouble) != why:
            self._said[trouble] = why
            self._tell(GroupTrouble(self.filter, trouble, why))

    def _why(self, error: BaseException) -> str:
        return str(error if isinstance(error, StoreError) else failure(error, self._servers))

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
            max_partition_fetch_bytes=FETCH_BYTES,
        )
        consumer.subscribe([self._topic], listener=self)
        try:
            await consumer.start()
            while self._trouble is None:
                await self._read()
            raise self._trouble
        finally:
            await to_the_end(self._leave(consumer))

    async def _leave(self, consumer: Any) -> None:
        await quietly(self.commit())
        self._is_ours = False
        if not await quietly(consumer.stop(), LEAVE_S):
            await quietly(abandon(consumer))

    async def _read(self) -> None:
        await self._look()
        share = self.windows.share
        # Where nothing has come, one message says that there is more.
        count = share.reserve(self._largest_bytes, 1 if self._is_idle else READ_COUNT)
        try:
            if count:
                await self._read_some(count)
            else:
                self._room.clear()
                await self._wait_for_room()
        finally:
            share.reserved()

    async def _wait_for_room(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self._room.wait()

    async def _look(self) -> None:
        """Raises RemovedError where the topic is not that of the windows: offsets mean others."""
        now_s = asyncio.get_running_loop().time()
        if not self._is_ours or now_s < self._look_due_s:
            return
        self._look_due_s = now_s + LOOK_S
        if await self._topic_id() != self.windows.topic_id:
            raise RemovedError(OTHER_TOPIC)

    async def _topic_id(self) -> bytes:
        seen = await _answer(partial(topic_seen, self._admin, self._topic))
        if seen is None:
            self.is_topic_doubtful = True
            raise RemovedError("the topic was deleted; it is created again")
        if self.windows.topic_id not in (b"", seen.id):
            self.is_topic_doubtful = True
            self.say(Trouble.READING, OTHER_TOPIC)
        return seen.id

    def _keep_back(self) -> None:
        """Read no further in partitions that are far ahead of what is settled."""
        for place in self._consumer.assignment():
            is_ahead = self.windows.is_far_ahead(place.partition)
            if is_ahead and place not in self._ahead:
                self._ahead.add(place)
                self._consumer.pause(place)
            elif not is_ahead and place in self._ahead:
                self._ahead.discard(place)
                if place.partition not in self._held:
                    self._consumer.resume(place)

    async def _read_some(self, count: int) -> None:
        windows = self.windows
        self._keep_back()
        found = await self._records(count)
        windows.share.reserved()
        if not self._is_ours:
            return  # Read again when it is known from where.
        self._is_idle = not found
        for place, records in found.items():
            if records[-1].offset + 1 < windows.next_offset(place.partition):
                raise RemovedError("the topic was deleted and starts again")
        came: list[tuple[int, Delivery]] = []
        for place, records in found.items():
            came += self._taken(place, records)
        if came:
            self._largest_bytes = max(delivery.size_bytes for _, delivery in came)
            self._tell(GroupCame(self.filter, came, windows.is_behind))
        self.say(Trouble.READING, "")

    async def _records(self, count: int) -> Mapping[Any, Sequence[Any]]:
        """Read what has come, by partition. Of a batch that a disk has damaged the driver says
        neither where it is nor what it had read before it: from then on one record at a time."""
        if self._is_careful:
            return await self._next_record()
        try:
            found: Mapping[Any, Sequence[Any]] = await self._consumer.getmany(
                timeout_ms=int(READ_S * 1_000), max_records=count
            )
        except CorruptRecordException:
            self._is_careful = True
            raise  # All is read again, from where it is known to have come.
        return found

    async def _next_record(self) -> Mapping[Any, Sequence[Any]]:
        consumer = self._consumer
        places = sorted(consumer.assignment())
        self._first_place += 1
        for index in range(len(places)):
            place = places[(self._first_place + index) % len(places)]
            if place.partition in self._held or place in self._ahead or not self._is_ours:
                continue
            try:
                found: Mapping[Any, Sequence[Any]]
                found = await consumer.getmany(place, timeout_ms=0, max_records=1)
            except CorruptRecordException as error:
                offset = self.windows.next_offset(place.partition)
                consumer.seek(place, offset)
                self._hold(place, offset, error)
                continue
            if found:
                return found
        await asyncio.sleep(CAREFUL_S)
        return {}

    def _taken(self, place: Any, records: Sequence[Any]) -> list[tuple[int, Delivery]]:
        """Take a partition's records; those that are to be handed out."""
        windows, partition = self.windows, place.partition
        came: list[tuple[int, Delivery]] = []
        for each in records:
            try:
                record, delivery = decode_group_record(each.value or b"")
            except FormatError as error:
                self._hold(place, each.offset, error)
                return came
            except CorruptionError as error:
                where = f"partition {partition} of {self._topic}, offset {each.offset}"
                self.say(Trouble.RECORD, f"{where}: {error}")
                windows.passed_over(partition, each.offset)
                continue
            pos = windows.arrived(partition, each.offset, record, delivery.size_bytes)
            if pos is not None:
                came.append((pos, delivery))
        self._go_on_with({partition})
        return came

    def _hold(self, place: Any, offset: int, error: Exception) -> None:
        """Read nothing of a partition from there on, as long as it is ours."""
        self._consumer.pause(place)
        self._held.add(place.partition)
        where = f"partition {place.partition} of {self._topic} from offset {offset} on"
        self.say(Trouble.HELD, f"{where}: {error}")

    def _go_on_with(self, partitions: Collection[int]) -> None:
        """These are held no longer."""
        if not self._held.isdisjoint(partitions):
            self._held -= set(partitions)
            if not self._held:
                self.say(Trouble.HELD, "")

    @property
    def is_committing(self) -> bool:
        return self._turn.locked()

    def look_for_room(self) -> None:
        """Somebody has settled something: it may read on."""
        self._room.set()

    # --- partitions --------------------------------------------------------------------------

    async def on_partitions_revoked(self, revoked: Collection[Any]) -> None:
        """They are given out anew: what is settled by now is known to who gets them."""
        try:
            self._tell(GroupPaused(self.filter, True))
            await quietly(self.commit())
        except Exception as error:
            self._break(error)
        finally:
            self._is_ours = False

    async def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
        try:
            await self._take_over(list(assigned))
        except Exception as error:
            self._break(error)

    def _break(self, error: Exception) -> None:
        """Connect anew, or end where it is a bug: the driver, which has called us, says nothing."""
        self._trouble = error
        self._room.set()

    async def _take_over(self, assigned: list[Any]) -> None:
        consumer = self._consumer
        self._member = generation_of(consumer)
        self._tell_gone(self.windows.of_topic(await self._topic_id()))
        found: dict[int, Found] = {}
        for _ in range(LOOKS_MAX if assigned else 0):
            found = await self._find(assigned)
            if not any(self.windows.is_beyond(*each) for each in found.items()):
                break
            await asyncio.sleep(READ_S)
        self._tell_gone(self.windows.assigned(found))
        for place in assigned:
            consumer.seek(place, self.windows.next_offset(place.partition))
        self._ahead.clear()  # Who is given a partition reads it.
        self._go_on_with(self._held - set(found))
        self._is_ours = True
        self._refused_since_s = None
        self._room.set()
        self._tell(GroupPaused(self.filter, False))

    async def _find(self, assigned: list[Any]) -> dict[int, Found]:
        consumer = self._consumer
        ask = partial(self._admin.list_consumer_group_offsets, self._topic, None, assigned)
        committed = await _answer(ask)
        starts = await _answer(partial(consumer.beginning_offsets, assigned))
        ends = await _answer(partial(consumer.end_offsets, assigned))
        return {
            place.partition: Found(self._window(committed.get(place)), starts[place], ends[place])
            for place in assigned
        }

    def _window(self, committed: Any) -> AckWindow:
        if committed is None or committed.offset < 0:
            return AckWindow()
        return self.windows.committed(committed.offset, committed.metadata or "")

    def _tell_gone(self, positions: list[int]) -> None:
        if positions:
            self._tell(GroupGone(self.filter, positions))

    # --- commits -----------------------------------------------------------------------------

    async def commit(self) -> None:
        """Commit what has changed; does nothing for who is not the owner any more.

        Raises KafkaError: it is to be tried again."""
        async with self._turn:
            offsets = self.windows.to_commit() if self._is_ours else {}
            if not offsets:
                return
            said = [(self._topic, [(each, *window) for each, window in offsets.items()])]
            try:
                await self._commit(said)
            except FENCED as error:
                self.windows.not_committed(offsets)
                self._refused(error)
            except (KafkaError, OSError, StoreError) as error:
                self.windows.not_committed(offsets)
                self._refused(error)
                raise
            except BaseException:
                self.windows.not_committed(offsets)
                raise
            else:
                self._refused_since_s = None
                self.say(Trouble.COMMITS, "")

    async def _commit(self, said: Sequence[tuple[str, list[tuple[int, int, str]]]]) -> None:
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is None:
            coordinator = await self._admin.find_coordinator(self._topic)
        await commit_offsets(self._admin, self._topic, self._member, said, coordinator)
        self._coordinator = coordinator

    def _refused(self, error: Exception) -> None:
        """Say so, if it will not pass by itself, or does not."""
        now_s = asyncio.get_running_loop().time()
        if self._refused_since_s is None:
            self._refused_since_s = now_s
        passes = isinstance(error, (*FENCED, OSError)) or getattr(error, "retriable", False)
        if not passes or now_s - self._refused_since_s >= REFUSED_S:
            self.say(Trouble.COMMITS, self._why(error))


async def _answer(ask: Callable[[], Awaitable[R]]) -> R:
    """Raises what stood in the way, KafkaError or TimeoutError."""
    return await within(ANSWER_S, lambda: patiently(ask))
