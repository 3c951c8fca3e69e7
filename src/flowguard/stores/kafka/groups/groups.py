"""Groups: shared subscriptions of applications that several brokers have, in Kafka.

A broker that has members of a group announces it in the topic `PREFIX.groups`, which every broker
follows (`claims`). From then on each broker writes matching messages into the group's topic. A
broker with a connected member joins the consumer group of the same name. These tasks run on the
link's loop (`tail`, `consumer`); the store calls from the thread of its commits.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from flowguard.errors import StallError, StoreError
from flowguard.records import (
    Append,
    DropSession,
    PutSession,
    Release,
    Settle,
    SinkKind,
    StoreOp,
    key_of,
    sink_of,
)
from flowguard.stores.group_feed import (
    GroupBegan,
    GroupEnded,
    GroupNews,
    GroupTrouble,
    Trouble,
)
from flowguard.stores.kafka.connection.errors import failure
from flowguard.stores.kafka.connection.link import KafkaLink, KafkaMessage, quietly
from flowguard.stores.kafka.groups.capacity import GroupRoom
from flowguard.stores.kafka.groups.claims import GroupClaims
from flowguard.stores.kafka.groups.consumer import GroupConsumer
from flowguard.stores.kafka.groups.ended_tasks import bug_of
from flowguard.stores.kafka.groups.record import WRITER_BYTES, encode_group_record
from flowguard.stores.kafka.groups.renewal import renew
from flowguard.stores.kafka.groups.roster import GroupChange
from flowguard.stores.kafka.groups.window import GroupWindows, RecordId
from flowguard.stores.kafka.plan import CHANGES_MAX, CommitPlan
from flowguard.stores.kafka.topics import KafkaPlace


@final
class Groups:
    """`GroupFeed`, and the calls of the store. One per broker."""

    def __init__(
        self, link: KafkaLink, place: KafkaPlace, broker: str, wall_s: Callable[[], float]
    ) -> None:
        """`broker` is the name in its records. Raises StoreError."""
        self._link = link
        self._place = place
        self._claims = GroupClaims(link, place, broker, wall_s, self._tell, self._changed)
        self._roster = self._claims.roster
        self._writer = secrets.token_bytes(WRITER_BYTES)
        self._number = 0
        self._news: deque[GroupNews] = deque()
        self._wake: Callable[[], None] | None = None
        self._ended: deque[str] = deque()
        """Topics to be deleted."""
        self._wanted: set[str] = set()
        """Filters with a connected member."""
        self._room = GroupRoom(place.groups_bytes_max)
        self._windows: dict[str, GroupWindows] = {}
        """By filter."""
        self._consumers: dict[str, tuple[GroupConsumer, asyncio.Task[None]]] = {}
        """By filter."""
        self._leaving: dict[str, asyncio.Task[None]] = {}
        """Tasks of consumers that are ending, by filter."""
        self._lost: deque[tuple[str, int]] = deque()
        """Filters and numbers of lost messages; the loop adds, another thread takes."""
        self._commits: set[asyncio.Task[bool]] = set()
        self._to_renew: set[str] = set()
        """Filters whose last commit may be a day old."""
        self._renewing: asyncio.Task[None] | None = None
        self._admin: Any = None
        self._tail_said = ""

    # --- start and end -----------------------------------------------------------------------

    def open(self, filters: Iterable[str]) -> list[str]:
        """Read which groups exist, and claim `filters`, of which this broker has members. Return
        the topics without a group. Raises ConfigError, StoreError."""
        strangers = self._claims.open(filters)
        self._link.call(self._start)
        return strangers

    async def _start(self) -> None:
        self._admin = AIOKafkaAdminClient(**self._link.options)
        await self._admin.start()

    def close(self) -> None:
        """Leave all consumer groups, after a last commit if Kafka is available."""
        self._link.call(self._stop)

    async def _stop(self) -> None:
        for filter in list(self._consumers):
            self._end(filter)
        await asyncio.gather(*self._leaving.values(), return_exceptions=True)
        await self._claims.stop()
        if self._admin is not None:
            await quietly(self._admin.close())

    def _changed(self, change: GroupChange) -> None:
        """Follow the change of a group. On the loop."""
        if change.before is not None:
            self._end(change.filter)
            if change.after is None or change.after.topic != change.before.topic:
                self._ended.append(change.before.topic)
                self._claims.doubt(change.before.topic)
        if change.after is None:
            self._windows.pop(change.filter, None)
            self._tell(GroupEnded(change.filter))
        elif change.before is None:
            self._tell(GroupBegan(change.filter))

    def take_ended(self) -> list[str]:
        """Return the topics that are not needed any more, once."""
        found = []
        while self._ended:
            found.append(self._ended.popleft())
        return found

    # --- a commit ----------------------------------------------------------------------------

    def take(self, plan: CommitPlan, op: StoreOp) -> bool:
        """Note an operation if it is about such a group. Return True if it was noted."""
        if not isinstance(op, (PutSession, DropSession, Append, Settle, Release)):
            return False
        kind, filter = sink_of(op.client_id)
        if kind is SinkKind.MEMBERS:
            plan.claims.append((filter, isinstance(op, PutSession)))
            plan.rest.append(op)
            return True
        if kind is not SinkKind.SPREAD:
            return False
        if isinstance(op, Append):
            self._number += 1
            record = RecordId(self._writer, self._number)
            value = encode_group_record(record, op.delivery)
            plan.group_appends.setdefault(filter, []).append((op.pos, value))
        elif isinstance(op, (Settle, Release)):
            plan.group_settled.setdefault(filter, []).append(op.pos)
            if isinstance(op, Release):
                plan.group_due.add(filter)
        return True

    def prepare(self, plan: CommitPlan) -> None:
        """Write the claims, and create missing topics. Raises StallError."""
        while plan.claims:
            filter, is_there = plan.claims[0]
            if is_there:
                self._claims.joined(filter)
            else:
                self._claims.left(filter)
            del plan.claims[0]
        for filter in plan.group_appends:
            found = self._roster.get(filter)
            if found is not None:
                self._claims.make(filter, found)

    def messages(self, plan: CommitPlan) -> dict[tuple[str, int], list[KafkaMessage]]:
        """Return the records for groups that have not ended, by topic and partition."""
        messages: dict[tuple[str, int], list[KafkaMessage]] = {}
        for filter, appends in plan.group_appends.items():
            found, key = self._roster.get(filter), filter.encode()
            if found is None:
                continue
            for number, value in appends:
                partition = number % self._claims.partitions_of(found)
                some = messages.setdefault((found.topic, partition), [])
                some.append(KafkaMessage(key, value))
        return messages

    def missed(self, plan: CommitPlan) -> None:
        """Check all topics of the batch again, because one was missing."""
        for filter in plan.group_appends:
            found = self._roster.get(filter)
            if found is not None:
                self._claims.doubt(found.topic)

    def settle(self, plan: CommitPlan) -> None:
        """Apply settled positions; commit if any was released. Raises StallError."""
        if plan.group_settled or plan.group_due:
            self._link.call(lambda: self._settle(plan))

    async def _settle(self, plan: CommitPlan) -> None:
        settled, plan.group_settled = plan.group_settled, {}
        for filter, positions in settled.items():
            if self._roster.get(filter) is not None:
                windows = self._windows_of(filter)
                for pos in positions:
                    windows.settle(pos)
        for filter in plan.group_due:
            running = self._consumers.get(filter)
            if running is not None:
                await self._commit_now(running[0])
        plan.group_due = set()
        for consumer, _ in self._consumers.values():
            consumer.look_for_room()
            if consumer.windows.unsaved_count > CHANGES_MAX:
                self._begin(consumer)

    async def _commit_now(self, consumer: GroupConsumer) -> None:
        """Commit, and wait. Raises StallError if the commit fails; it may succeed later."""
        try:
            await consumer.commit()
        except KafkaError as error:
            raise StallError(str(failure(error, self._place.servers))) from error

    # --- consumers ---------------------------------------------------------------------------

    def renew(self) -> None:
        """Repeat the commits of this broker's groups from the next tick on; called once a day."""
        self._to_renew = self._claims.filters()

    async def _renew(self) -> None:
        """Repeat the commits; those that fail are tried again."""
        for filter in sorted(self._to_renew):
            found = self._roster.get(filter)
            topic = None if found is None or filter in self._consumers else found.topic
            if topic is None or await quietly(renew(self._admin, topic)):
                self._to_renew.discard(filter)

    def tick(self) -> None:
        """Commit changed windows, begin and end consumers. The next tick retries what fails."""
        self._claims.upkeep()
        with suppress(StoreError):  # Each part reports its own errors.
            self._link.call(self._tick)

    async def _tick(self) -> None:
        self._claims.go_on_following()
        if self._claims.trouble != self._tail_said:
            self._tail_said = self._claims.trouble
            self._tell(GroupTrouble("", Trouble.READING, self._tail_said))
        self._begin_and_end()
        if self._to_renew and (self._renewing is None or self._renewing.done()):
            self._renewing = self._link.task(self._renew())
        for filter, (consumer, _) in self._consumers.items():
            windows = consumer.windows
            found = self._roster.get(filter)
            if consumer.is_topic_doubtful and found is not None:
                consumer.is_topic_doubtful = False
                self._claims.doubt(found.topic)
            if windows.unsaved_count:
                self._begin(consumer)
            if windows.lost_count:
                self._lost.append((filter, windows.lost_count))
                windows.lost_count = 0

    def _begin_and_end(self) -> None:
        """Begin the consumers of existing groups with connected members; end all others."""
        for filter, (_, task) in list(self._consumers.items()):
            if task.done():  # Only a bug ends it.
                del self._consumers[filter]
                self._tell(GroupTrouble(filter, Trouble.READING, bug_of(task, filter)))
        for filter in self._wanted - set(self._consumers) - set(self._leaving):
            found = self._roster.get(filter)
            if found is not None and self._claims.is_made(found.topic):
                self._consume(filter, found.topic)
        for filter in set(self._consumers) - self._wanted:
            self._end(filter)

    def _consume(self, filter: str, topic: str) -> None:
        windows = self._windows_of(filter)
        consumer = GroupConsumer(self._link, self._admin, filter, topic, windows, self._tell)
        self._consumers[filter] = consumer, self._link.task(consumer.run())

    def _windows_of(self, filter: str) -> GroupWindows:
        found = self._windows.get(filter)
        if found is None:
            found = self._windows[filter] = GroupWindows(self._room)
        return found

    def _end(self, filter: str) -> None:
        """End the consumer of a filter. The next one begins after it has left the group."""
        running = self._consumers.pop(filter, None)
        if running is not None:
            task = self._leaving[filter] = running[1]
            task.add_done_callback(lambda _: self._leaving.pop(filter, None))
            task.cancel()

    def _begin(self, consumer: GroupConsumer) -> None:
        """Begin a commit, unless one is under way; the next one includes all later changes."""
        if consumer.is_committing:
            return
        task = self._link.task(quietly(consumer.commit()))
        self._commits.add(task)
        task.add_done_callback(partial(self._committed, consumer))

    def _committed(self, consumer: GroupConsumer, task: asyncio.Task[bool]) -> None:
        self._commits.discard(task)
        if not task.cancelled() and task.exception() is not None:
            consumer.say(Trouble.COMMITS, bug_of(task, consumer.filter))

    def take_lost(self) -> dict[str, int]:
        """As `ApplicationStore.take_lost`."""
        lost: dict[str, int] = {}
        while self._lost:
            filter, count = self._lost.popleft()
            name = key_of(SinkKind.SPREAD, filter)
            lost[name] = lost.get(name, 0) + count
        return lost

    # --- the feed ----------------------------------------------------------------------------

    def take_news(self) -> list[GroupNews]:
        found = []
        while self._news:
            found.append(self._news.popleft())
        return found

    def on_news(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def want(self, filter: str, is_wanted: bool) -> None:
        if is_wanted:
            self._wanted.add(filter)
        else:
            self._wanted.discard(filter)

    def _tell(self, news: GroupNews) -> None:
        self._news.append(news)
        if self._wake is not None:
            self._wake()
