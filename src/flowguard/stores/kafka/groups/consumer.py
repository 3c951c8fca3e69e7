"""GroupConsumer: this broker's member of the consumer group of one shared subscription.

It runs on the link's loop. Kafka assigns partitions to it, and it reports new records as news while
there is capacity. Settled records are committed with the generation in which the partitions were
assigned, so that the commits of a later owner are never overwritten.

An error is reported once, and so is its end (`GroupTrouble`). A record that cannot be decoded is
skipped, and counted as lost. A record of a later version pauses its partition until a broker that
can decode it takes the partition. So does a batch that a server's disk has damaged.
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
"""Time after which a silent broker loses its partitions to others."""
REJOIN_S: Final = 20.0
"""Time in which all brokers of a group must answer when partitions are reassigned."""
LEAVE_S: Final = REJOIN_S + 10.0
"""Maximum time until a member has left. A member that waits for partitions leaves when all others
have answered (`REJOIN_S`), a new group waits 3 s for more members, and a request to an unavailable
node ends after 5 s."""
READ_S: Final = 0.5
LOOK_S: Final = 1.0
"""Interval of checks whether the topic is still the same."""
FETCH_BYTES: Final = 128 * 1024
"""Maximum size that the driver reads ahead per partition; a larger batch is read whole."""
CAREFUL_S: Final = 0.05
"""Pause after a round without records while reading record by record."""
EXPECTED_BYTES: Final = 4 * 1024
"""Expected size of the first message."""
REFUSED_S: Final = 15.0
"""Time after which failing commits are reported; they also fail briefly whenever partitions are
reassigned."""
ANSWER_S: Final = 10.0
"""Time limit of requests about the topic or its partitions, after which the error is reported and
the consumer restarts."""
LOOKS_MAX: Final = 10
"""Number of checks of a partition that seems to be shorter than before, until it counts as cut."""
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
        """True if the partitions of `windows` are assigned to this consumer."""
        self.is_topic_doubtful = False
        """True if the topic was deleted or recreated, so that `Groups` must check it."""
        self._member = -1, ""
        """The generation, and the member id of this consumer in it."""
        self._coordinator: int | None = None
        """The node that accepted the last commit, or None if unknown."""
        self._trouble: Exception | None = None
        self._said: dict[Trouble, str] = {}
        self._held: set[int] = set()
        """Partitions with a record of a later version, or a damaged batch."""
        self._ahead: set[Any] = set()
        """Partitions that are paused because too many read records are unsettled."""
        self._is_careful = False
        """True if a batch is damaged; reading record by record finds out which one."""
        self._first_place = 0
        """Index of the partition to be read first while reading record by record; it rotates."""
        self._is_idle = True
        """True if the last read returned no records."""
        self._largest_bytes = EXPECTED_BYTES
        """Size of the largest message of the last answer."""
        self._look_due_s = 0.0
        self._refused_since_s: float | None = None
        self._room = asyncio.Event()
        self._turn = asyncio.Lock()
        """Lock that keeps commits in order."""

    async def run(self) -> None:
        """Consume until this is cancelled; then other brokers get the partitions."""
        try:
            while True:
                try:
                    await self._consume()
                except (KafkaError, OSError, StoreError) as error:
                    check_cancelled()
                    # The cause may pass, so retry.
                    self.say(Trouble.READING, self._why(error))
                await asyncio.sleep(RETRY_S)
        finally:
            self._tell_gone(self.windows.assigned({}))

    def say(self, trouble: Trouble, why: str) -> None:
        """Report an error if it is new; `why` is "" when it has passed."""
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
        # An idle group reserves one message, which is enough to see that there are more.
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
        """Raises RemovedError if the topic was recreated, since its offsets have other records."""
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
        """Pause partitions that are far ahead of their first unsettled record; resume others."""
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
            return  # It is read again after the assignment, which sets the offset.
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
        """Return new records by partition. After a damaged batch this reads one record at a time,
        because the driver reports neither its place nor the records that it read before it."""
        if self._is_careful:
            return await self._next_record()
        try:
            found: Mapping[Any, Sequence[Any]] = await self._consumer.getmany(
                timeout_ms=int(READ_S * 1_000), max_records=count
            )
        except CorruptRecordException:
            self._is_careful = True
            raise  # The restart reads again from the last known offsets.
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
        """Take a partition's records. Return those to be delivered, with their positions."""
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
        """Pause a partition at `offset`, as long as it is assigned to this consumer."""
        self._consumer.pause(place)
        self._held.add(place.partition)
        where = f"partition {place.partition} of {self._topic} from offset {offset} on"
        self.say(Trouble.HELD, f"{where}: {error}")

    def _go_on_with(self, partitions: Collection[int]) -> None:
        """Remove partitions from those that are held."""
        if not self._held.isdisjoint(partitions):
            self._held -= set(partitions)
            if not self._held:
                self.say(Trouble.HELD, "")

    @property
    def is_committing(self) -> bool:
        return self._turn.locked()

    def look_for_room(self) -> None:
        """Check the capacity again, since messages were settled."""
        self._room.set()

    # --- partitions --------------------------------------------------------------------------

    async def on_partitions_revoked(self, revoked: Collection[Any]) -> None:
        """Commit before partitions are reassigned, so that the next owner knows what is settled."""
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
        """Make the consumer reconnect, or end if it is a bug: the driver would hide the error."""
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
        self._ahead.clear()  # The driver resumes partitions when it assigns them.
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
        """Commit changed windows; does nothing if the partitions are no longer assigned.

        Raises KafkaError; then the caller must try again."""
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
        """Report a failed commit if the cause is not temporary, or lasts for `REFUSED_S`."""
        now_s = asyncio.get_running_loop().time()
        if self._refused_since_s is None:
            self._refused_since_s = now_s
        passes = isinstance(error, (*FENCED, OSError)) or getattr(error, "retriable", False)
        if not passes or now_s - self._refused_since_s >= REFUSED_S:
            self.say(Trouble.COMMITS, self._why(error))


async def _answer(ask: Callable[[], Awaitable[R]]) -> R:
    """Ask with retries for `ANSWER_S`. Raises KafkaError, TimeoutError."""
    return await within(ANSWER_S, lambda: patiently(ask))
