"""KafkaStore: queues of applications in topics of Kafka, everything else in another store.

A commit writes to Kafka first, then to the other store. So no acknowledged message is lost in a
crash; one that was not acknowledged may be stored twice. After `NotNowError` the caller tries the
same batch again, and the commit continues at the failed step.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Final, final

from flowguard import records
from flowguard.errors import StallError, StoreError
from flowguard.stores.base import (
    FETCH_BYTES,
    NOT_FENCED,
    POS_MAX,
    Fenced,
    LogStore,
    Store,
    StoreLoad,
)
from flowguard.stores.kafka.beside import Beside
from flowguard.stores.kafka.commits import Queues, WindowCommits
from flowguard.stores.kafka.connection.errors import NoTopicError, RetentionError
from flowguard.stores.kafka.connection.link import KafkaLink, KafkaMessage
from flowguard.stores.kafka.connection.reader import PARTITION, Committed, KafkaReader
from flowguard.stores.kafka.groups.groups import Groups
from flowguard.stores.kafka.moves import plan_move_in, plan_move_out
from flowguard.stores.kafka.owner import NAME_BYTES, check_nodes, claim
from flowguard.stores.kafka.plan import CommitPlan, parts_of, take_forwards
from flowguard.stores.kafka.queue import ApplicationQueue, QueuePage, encode_record
from flowguard.stores.kafka.recovery import READ_COUNT, pass_retention, record_at, restore
from flowguard.stores.kafka.topics import KafkaPlace, topic_of
from flowguard.stores.kafka.window import AckWindow
from flowguard.types import Publish

RENEWAL_S: Final = 86_400.0
"""Time after which all windows are committed again. Servers delete offsets that are older than
`offsets.retention.minutes`, a week by default."""
GROUP: Final = "app"
OPEN_S: Final = 30.0
"""Minimum time limit of answers at the start; `wait_s` applies if it is longer."""


@final
class KafkaStore:
    """`Store` and `ApplicationStore` (`flowguard.stores.applications`) over another store."""

    immediate: bool = False
    on_disk: bool = True
    upkeep_ticks: int = 1
    lease_s: float | None

    def __init__(
        self,
        base: Store,
        place: KafkaPlace,
        wall_s: Callable[[], float],
        owner_file: Path | None = None,
    ) -> None:
        """Raises ConfigError, StoreError, OSError; then the caller must close `base`. `owner_file`
        has the name that marks the prefix as used, or is None if no other broker can use it."""
        self._base = self.devices = Beside(base)
        self.lease_s, self.clock = base.lease_s, base.clock
        if isinstance(base, LogStore):
            self.read_log = self._base.read_log
        self._place = place
        self._wall_s = wall_s
        self._number = 0
        """Number of the newest topic."""
        self._left: list[Sequence[records.StoreOp]] = []
        """The remaining parts of the batch that is being committed."""
        self._unwanted: list[str] = []
        """Topics that are still to be deleted."""
        self._lost: dict[str, int] = {}
        self._queues: dict[str, ApplicationQueue] = {}
        self._plan: CommitPlan | None = None
        self._renewed_s = 0.0
        self.missing: list[str] = []
        """Applications whose topic was deleted while no broker ran, or is in another Kafka."""
        self.groups: Groups | None = None
        """Shared subscriptions that several brokers have."""
        self._link = KafkaLink(place.servers, wait_s=max(place.wait_s, OPEN_S), access=place.access)
        try:
            check_nodes(self._link, place)
            broker = token_hex(NAME_BYTES)
            was_here = owner_file is not None and owner_file.exists()
            if owner_file is not None:
                broker = claim(self._link, place, owner_file)
            if place.groups_prefix:
                self.groups = Groups(self._link, place, broker, wall_s)
            self._reader = KafkaReader(self._link, f"{place.prefix}.{GROUP}")
            self._windows = WindowCommits(self._link, self._reader, self._no_topic)
            try:
                self._open()
            except BaseException:
                if self.groups is not None:
                    self.groups.close()
                self._reader.close()
                raise
        except BaseException:
            self._link.close()
            raise
        if not was_here:
            self.missing = []  # Topics are missing because this is the first start.
        self._link.wait_s = place.wait_s
        is_replicated = place.replicas > 1
        kept = records.Durability.REPLICATED if is_replicated else records.Durability.OS
        self.durability: records.Durability = min(base.durability, kept)

    # --- opening -----------------------------------------------------------------------------

    def _open(self) -> None:
        """Find the topics of all applications, and delete those that have no owner: their commits
        were never completed."""
        names = [each.client_id for each in self._base.sessions() if each.is_application]
        sinks = {each: records.sink_of(each) for each in names}
        members = [filter for kind, filter in sinks.values() if kind is records.SinkKind.MEMBERS]
        owners = {
            topic_of(self._place.prefix, each): each
            for each, (kind, _) in sinks.items()
            if kind is not records.SinkKind.MEMBERS
        }
        found: dict[str, list[tuple[int, str]]] = {}
        strangers = []
        for topic in self._link.topics(f"{self._place.prefix}.app.", owners):
            name, _, number = topic.rpartition(".")
            if name in owners and number.isdigit():
                found.setdefault(owners[name], []).append((int(number), topic))
            else:
                strangers.append(topic)
        newest = {client_id: max(topics)[1] for client_id, topics in found.items()}
        strangers += [t for topics in found.values() for _, t in topics if t not in newest.values()]
        self._unwanted = strangers
        self._delete_topics()
        committed = self._reader.committed() if newest else {}
        ends = self._reader.ends(newest.values())
        for client_id, topic in newest.items():
            self._queues[client_id] = ApplicationQueue(topic, _window(committed.get(topic)))
        self.missing = sorted(set(owners.values()) - set(newest))
        for client_id in self.missing:
            self._queues[client_id] = self._new_queue(client_id)
            self._create(self._queues[client_id])
        self._assign()
        for client_id, queue in self._queues.items():
            lost = restore(self._reader, queue, *ends.get(queue.topic, (0, 0)))
            self._count_lost(client_id, lost)
        self._move_in()
        if self.groups is not None:
            self._unwanted += self.groups.open(members)
            self._delete_topics()

    def _move_in(self) -> None:
        """Move the queues that applications had in the other store before."""
        waiting = [each for each in self._base.sessions() if each.unsettled_count]
        for client_id in [each.client_id for each in waiting if each.client_id in self._queues]:
            self._plan = CommitPlan()
            next_pos = self._queues[client_id].next_pos
            plan_move_in(self._plan, self._base, client_id, next_pos)
            self._commit(())

    def _count_lost(self, client_id: str, lost: int) -> None:
        if lost:
            self._lost[client_id] = self._lost.get(client_id, 0) + lost

    # --- commits -----------------------------------------------------------------------------

    def commit(self, ops: Sequence[records.StoreOp]) -> Fenced:
        """As `Store.commit`; after `NotNowError` the same batch continues at the failed step."""
        if not self._left:
            self._left = parts_of(ops, self._queues)
        while self._left:
            self._commit(self._left[0])
            del self._left[0]
        self._delete_topics()
        return NOT_FENCED

    def _commit(self, ops: Sequence[records.StoreOp]) -> None:
        plan = self._plan
        if plan is None:
            plan = self._plan = self._planned(ops)
        for queue in plan.created.values():
            self._create(queue)
        if plan.created:
            self._assign(plan.created)
        if self.groups is not None:
            self.groups.prepare(plan)
        if plan.offsets is None:
            plan.offsets = self._write(plan)
        if plan.rest:
            self._base.commit(plan.rest)
            plan.rest = []
        self._settle(plan)
        if self.groups is not None:
            self.groups.settle(plan)
        self._plan = None
        self._unwanted += plan.dropped

    def _delete_topics(self) -> None:
        """Delete unwanted topics. A failed deletion is tried again later, without an error."""
        while self._unwanted:
            try:
                self._link.delete_topic(self._unwanted[0])
            except StoreError:
                return
            del self._unwanted[0]

    def _planned(self, ops: Sequence[records.StoreOp]) -> CommitPlan:
        plan = CommitPlan()
        queues = dict(self._queues)
        ours = self._ours(plan, ops)
        index = 0
        while (index := plan.take(ours, index, queues)) < len(ours):
            self._plan_session(plan, queues, ours[index])
            index += 1
        return plan

    def _plan_session(
        self, plan: CommitPlan, queues: dict[str, ApplicationQueue], op: records.StoreOp
    ) -> None:
        """Plan a session that begins, changes (perhaps its class) or ends."""
        match op:
            case records.PutSession(client_id):
                if op.is_application and client_id not in queues:
                    queues[client_id] = self._new_queue(client_id)
                    plan.created[client_id] = queues[client_id]
                    plan_move_in(plan, self._base, client_id, 0)
                elif not op.is_application and client_id in queues:
                    queue = queues[client_id]
                    plan_move_out(plan, self._base, self, client_id, queue)
                    self._plan_drop(plan, queues, client_id)
                plan.rest.append(op)
            case records.DropSession(client_id):
                plan.rest.append(op)
                if client_id in queues:
                    self._plan_drop(plan, queues, client_id)
                    plan.next_pos.pop(client_id, None)

    def _ours(self, plan: CommitPlan, ops: Sequence[records.StoreOp]) -> list[records.StoreOp]:
        """Note forwards and operations on groups. Return all other operations."""
        others, groups = take_forwards(plan, ops), self.groups
        return others if groups is None else [op for op in others if not groups.take(plan, op)]

    def _plan_drop(
        self, plan: CommitPlan, queues: dict[str, ApplicationQueue], client_id: str
    ) -> None:
        """Drop the batch's changes to a session that ends in it."""
        queue = queues.pop(client_id)
        plan.created.pop(client_id, None)
        plan.dropped.append(queue.topic)
        plan.appends.pop(client_id, None)
        plan.changes = [op for op in plan.changes if op.client_id != client_id]

    def _write(self, plan: CommitPlan) -> dict[str, list[int]]:
        messages = {}
        queues = {name: plan.created.get(name) or self._queues[name] for name in plan.appends}
        for client_id, appends in plan.appends.items():
            queue = queues[client_id]
            total_bytes, owed_pos = queue.total_bytes, queue.owed_pos
            some = messages[queue.topic, PARTITION] = list[KafkaMessage]()
            for op in appends:
                total_bytes += op.delivery.size_bytes
                owed_pos = max(owed_pos, plan.forwards.get((client_id, op.pos), 0))
                value = encode_record(op.pos, total_bytes, owed_pos, op.delivery)
                some.append(KafkaMessage(client_id.encode(), value))
        if self.groups is not None:
            messages |= self.groups.messages(plan)
        if not messages:
            return {}
        try:
            offsets = self._link.append(messages)
        except (StallError, NoTopicError) as error:
            if self.groups is not None:
                self.groups.missed(plan)
            raise self._made_again(queues, error) from error
        names = {queue.topic: name for name, queue in queues.items()}
        return {names[topic]: found for (topic, _), found in offsets.items() if topic in names}

    def _made_again(self, queues: Mapping[str, ApplicationQueue], error: StoreError) -> StallError:
        """Create missing topics: a starting server does not know them yet, or they were deleted."""
        for client_id, queue in queues.items():
            if self._create(queue):
                self._count_lost(client_id, queue.start_over(0))
        return StallError(str(error))

    def _settle(self, plan: CommitPlan) -> None:
        """Apply the stored batch to the queues. Windows with released records, or with several
        records of the same position, are committed before the batch is reported as done."""
        gone = set(plan.dropped)
        for client_id in [name for name, queue in self._queues.items() if queue.topic in gone]:
            del self._queues[client_id]
        self._queues |= plan.created
        plan.created = {}
        for client_id, appends in plan.appends.items():
            queue = self._queues[client_id]
            assert plan.offsets is not None
            if plan.offsets[client_id][0] < queue.window.end:
                # The topic was deleted and recreated; it has only the new records.
                self._count_lost(client_id, queue.start_over(plan.offsets[client_id][0]))
            has_gaps = [
                queue.appended(op.pos, offset, op.delivery.size_bytes)
                for op, offset in zip(appends, plan.offsets[client_id], strict=True)
            ]
            if any(has_gaps):
                plan.due.add(client_id)
        for (client_id, _), owed_pos in plan.forwards.items():
            if client_id in self._queues:
                queue = self._queues[client_id]
                queue.owed_pos = max(queue.owed_pos, owed_pos)
        plan.forwards = {}
        plan.appends = {}
        plan.change(self._queues, self._size_of)
        self._windows.commit(self._named(plan.due))
        self._windows.begin(self._named(plan.changed))

    def _size_of(self, client_id: str, offset: int) -> int | None:
        """Return the size of a record's message in bytes, or None if retention has deleted it."""
        queue = self._queues[client_id]
        try:
            return record_at(self._reader, queue, offset).delivery.size_bytes
        except RetentionError as error:
            self._count_lost(client_id, pass_retention(self._reader, queue, error))
            return None

    def _named(self, client_ids: set[str]) -> Queues:
        return {name: self._queues[name] for name in sorted(client_ids)}

    def _no_topic(self, queues: Queues, error: StoreError) -> StallError:
        """Create missing topics, except those of sessions that have ended meanwhile."""
        here = self._queues
        return self._made_again(
            {name: queue for name, queue in queues.items() if here.get(name) is queue}, error
        )

    # --- topics ------------------------------------------------------------------------------

    def _new_queue(self, client_id: str) -> ApplicationQueue:
        """Return a queue with a new topic name; a deleted topic's name is not free at once."""
        self._number = max(self._number + 1, int(self._wall_s() * 1_000))
        topic = f"{topic_of(self._place.prefix, client_id)}.{self._number}"
        return ApplicationQueue(topic, AckWindow())

    def _create(self, queue: ApplicationQueue) -> bool:
        """Create the topic of a queue. Return True if it was missing."""
        place = self._place
        return self._link.create_topic(queue.topic, 1, place.replicas, place.topic_configs)

    def _assign(self, more: dict[str, ApplicationQueue] | None = None) -> None:
        queues = [*self._queues.values(), *(more or {}).values()]
        self._reader.assign({queue.topic: queue.window.floor for queue in queues})

    # --- asking ------------------------------------------------------------------------------

    def sessions(self) -> Iterator[records.SessionRecord]:
        for record in self._base.sessions():
            queue = self._queues.get(record.client_id)
            if queue is not None:
                window = queue.window
                record = record.copied()
                # The other store has higher ones if the client was a device before.
                record.next_pos = max(record.next_pos, queue.next_pos)
                record.sent_pos = max(record.sent_pos, window.sent_pos)
                record.unsettled_count = window.unsettled_count
                record.unsettled_bytes = window.unsettled_bytes(queue.total_bytes)
            yield record

    def retained(self) -> Iterator[tuple[Publish, float]]:
        return self._base.retained()

    def fetch(
        self,
        client_id: str,
        after_pos: int,
        limit: int,
        *,
        until_pos: int = POS_MAX,
        bytes_max: int = FETCH_BYTES,
    ) -> list[records.QueueEntry]:
        queue = self._queues.get(client_id)
        if queue is None:
            return self._base.fetch(
                client_id, after_pos, limit, until_pos=until_pos, bytes_max=bytes_max
            )
        while True:
            try:
                return self._fetch(queue, after_pos, limit, until_pos, bytes_max)
            except RetentionError as error:
                self._count_lost(client_id, pass_retention(self._reader, queue, error))
            except StallError:
                queue.unsaved_count += 1  # So the upkeep commits, and recreates a missing topic.
                raise

    def _fetch(
        self, queue: ApplicationQueue, after_pos: int, limit: int, until_pos: int, bytes_max: int
    ) -> list[records.QueueEntry]:
        page = QueuePage(limit, bytes_max, until_pos)
        offset = queue.offset_after(after_pos)
        while offset < queue.window.end and not page.is_full:
            count = min(READ_COUNT, page.count_left)
            found = self._reader.read(queue.topic, offset, count)
            queue.fill(page, found)
            offset = found[-1][0] + 1
        return page.entries

    def owed_pos(self, client_id: str) -> int:
        queue = self._queues.get(client_id)
        return 0 if queue is None else queue.owed_pos

    def take_lost(self) -> dict[str, int]:
        """Return the numbers of unsettled messages lost since the last call, by client id."""
        lost, self._lost = self._lost, {}
        return lost if self.groups is None else lost | self.groups.take_lost()

    def maintain(self) -> bool:
        now_s = self._wall_s()
        if now_s - self._renewed_s > RENEWAL_S:
            self._renewed_s = now_s
            for queue in self._queues.values():
                queue.unsaved_count += 1
            if self.groups is not None:
                self.groups.renew()
        self._windows.begin(self._queues)
        if self.groups is not None:
            self.groups.tick()
            self._unwanted += self.groups.take_ended()
        self._delete_topics()
        return self._base.maintain()

    def backup(self, folder: Path) -> None:
        self._base.backup(folder)

    def load(self) -> StoreLoad:
        return self._base.load()

    def close(self) -> None:
        if not self._left:  # Else Kafka is unavailable, and the last windows stay uncommitted.
            with suppress(StoreError):
                if self._windows.finish():
                    self._windows.begin(self._queues)
                    self._windows.finish()
        for part in (self.groups, self._reader):
            with suppress(StoreError):
                if part is not None:
                    part.close()
        self._link.close()
        self._base.close()


def _window(committed: Committed | None) -> AckWindow:
    if committed is None or not committed.metadata:
        return AckWindow()
    return AckWindow.decode(committed.offset, committed.metadata)
