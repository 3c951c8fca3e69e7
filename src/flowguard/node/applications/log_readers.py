"""LogReaders: sessions that read the durable log instead of getting messages into their queue.

A message of a plan that `logs` is stored once. It enters the queues of those durable sessions that
are connected and have caught up, in the same commit; all others have a place in the log, and pass
it by. A client that reconnects reads on from its place. A page at a time moves from the log into
its queue, messages and new place in one commit, so nothing is missed and nothing comes twice. From
there on each is like any other message: identifiers, windows, QoS 2.

The last page meets what is logged at that moment. The last messages that entered the journal are
kept here, in their order (`_tail`). A page has the number of those that were committed when it was
read. So the rest follows from memory, and in the same stretch the session begins to get messages by
its queue: none lies between the two.

An application (`applications`) has all its messages in the log, and may fall behind while it is
connected: from the first message on that its queue rejects, it reads from the log. So does
the queue of a shared subscription of applications.

A subscription that starts in the past has a place of its own, in what was logged before it was
made. That is read first, for it alone; then its session reads on with all of them. One that is made
while its session catches up has such a place, too, with nothing to read: it begins there.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, final

from flowguard.flow import Reason
from flowguard.node.applications.log_fetch import (
    LogFetch,
    Starts,
    filters_of,
    may_receive,
    options_of,
)
from flowguard.node.publish.plans import Plans
from flowguard.records import (
    NEVER_S,
    Append,
    AppendToLog,
    Delivery,
    PutLogPlace,
    PutLogStart,
    StoreOp,
    message_bytes,
)
from flowguard.session.node_state import NodeState
from flowguard.session.owner import MessageSink, is_unbounded, own_queue
from flowguard.session.session import Session
from flowguard.stores import LogStore, Store
from flowguard.stores.log.replays import LogBatch
from flowguard.types import NO_PROPERTIES, Publish

# Not final: tests have smaller ones, and the compiled code should look at them.
PAGE_MAX = 500
PAGE_BYTES_MAX: Final = 256 * 1024
"""Messages in a queue that come from the log: half of them move at a time, or this size; beside
live work fewer do (`Moving`)."""
TAIL_MAX = 4_096
TAIL_BYTES_MAX: Final = 4 * 1024 * 1024
"""Messages that are kept because pages may have been read before they were committed."""
QUEUE_MAX = 1_000
"""Messages in the queue of an application: from there on it reads the log."""
SHARED_MAX: Final = 1_000
"""Deliveries that are kept for others that read the same."""


def expiry_of(message: Publish, now_s: float) -> float:
    """When a message that is published now expires; NEVER_S: never."""
    if message.properties is NO_PROPERTIES:
        return NEVER_S
    interval_s = message.properties.message_expiry_interval
    return NEVER_S if interval_s is None else now_s + interval_s


@final
class Reading:
    """The numbers, for people, of a session that has read the log since the start."""

    __slots__ = ("lost_count", "read_count", "read_until_s")

    def __init__(self) -> None:
        self.read_count = 0
        """Messages that it has got from the log."""
        self.read_until_s = 0.0
        """All that was logged up to then is read, seconds since the Unix epoch."""
        self.lost_count = 0
        """Messages, of whatever topics, that retention had dropped before it read them."""


@final
class LogReaders:
    __slots__ = (
        "_fetching",
        "_keeps_applications",
        "_node",
        "_plans",
        "_reading",
        "_shared",
        "_starts",
        "_tail",
        "_tail_bytes",
        "appended_count",
        "read_count",
        "readings",
        "wide_count",
    )

    def __init__(self, node: NodeState, plans: Plans) -> None:
        self._node = node
        self._plans = plans
        self._reading: dict[MessageSink, bool] = {}
        """Sessions of connected clients, and queues of shared subscriptions, that catch up. False
        while their place is not stored."""
        self._starts: dict[MessageSink, Starts] = {}
        """Subscriptions that started in the past, by session, until it has caught up."""
        self._fetching: set[MessageSink] = set()
        """Those whose next page must wait: one is asked for, or on its way into a queue."""
        self.appended_count = 0
        """Messages that entered the journal to be logged, since the start."""
        self.read_count = 0
        """Messages that sessions have got from there, each counted."""
        self.readings: dict[MessageSink, Reading] = {}
        """Progress of sessions that have read the log and have not ended."""
        self._tail: deque[AppendToLog] = deque()
        """The last of them."""
        self._tail_bytes = 0
        self._shared: dict[tuple[int, int, bool, tuple[int, ...]], Delivery] = {}
        self._keeps_applications = False
        """Whether messages for applications wait in a log."""
        self.wide_count = 0
        """Messages on their way to the log that some session has passed by."""

    def use(self, store: Store, threshold: int, *, keeps_applications: bool) -> None:
        """Before sessions are recovered: whether there is a log, and when it is written to."""
        if isinstance(store, LogStore):
            self._plans.log_threshold = threshold
            self._plans.uses_log = threshold > 0
            self._keeps_applications = keeps_applications

    # --- writing ------------------------------------------------------------------------------

    def append(self, publisher: str, message: Publish, now_s: float) -> StoreOp:
        """The operation that logs a message; it enters the journal in the same stretch."""
        op = AppendToLog(publisher, message, expiry_of(message, now_s))
        tail = self._tail
        self.appended_count += 1
        tail.append(op)
        self._tail_bytes += message_bytes(message)
        while len(tail) > TAIL_MAX or (self._tail_bytes > TAIL_BYTES_MAX and len(tail) > 1):
            self._tail_bytes -= message_bytes(tail.popleft().message)
        return op

    # --- who reads ----------------------------------------------------------------------------

    def keep(self, owner: MessageSink, is_application: bool) -> bool:
        """Set whether all messages are logged; True if that has changed."""
        is_logged = is_application and self._keeps_applications
        if is_logged == owner.is_logged:
            return False
        owner.is_logged = is_logged
        self._plans.uses_log |= is_logged
        return True

    def falls_behind(self, owner: MessageSink, size_bytes: int, now_s: float) -> bool:
        """Reserve a slot in an application's queue for a message that is about to be logged.

        True if the queue rejects it, and the application reads on from the log.
        """
        queue = own_queue(owner, self._node)
        if queue.count < QUEUE_MAX and queue.reserve(size_bytes) is None:
            return False
        owner.reads_log = owner.behind = True
        self._node.journal.note(PutLogPlace(owner.client_id, None))
        self._catch_up_when_stored(owner, now_s)
        return True

    def recovered_queue(self, queue: MessageSink, place: bytes) -> None:
        """The queue of a shared subscription, as the store remembers it."""
        if place:
            queue.reads_log = queue.behind = True
            self._plans.uses_log = True
            self._reading[queue] = True

    def recovered(self, session: Session, place: bytes, starts: Iterable[str]) -> None:
        """A session as the store remembers it; `starts`: its filters that started in the past."""
        filters = frozenset(starts)
        if filters:
            self._starts[session] = Starts(filters)
        if place:
            session.reads_log = session.behind = True
            self._plans.uses_log = True
        else:
            self.left(session)

    def left(self, session: Session) -> None:
        """Note that a client has left: the place of its session in the log is now, or earlier."""
        self._reading.pop(session, None)
        if session.reads_log or is_unbounded(session):
            return
        if session.durable and (session.is_logged or self._plans.log_threshold):
            session.reads_log = True
            self._node.journal.note(PutLogPlace(session.client_id, None))

    def ended(self, owner: MessageSink) -> None:
        """Forget a session or a shared subscription that has ended."""
        self._reading.pop(owner, None)
        self._starts.pop(owner, None)
        self.readings.pop(owner, None)

    def start(self, session: Session, filter: str, since_s: float) -> list[StoreOp]:
        """Return the operations for a new subscription that starts in the past.

        They enter the journal at once. `catch_up` follows when they are durable.
        """
        ops: list[StoreOp] = []
        if not session.reads_log:
            session.reads_log = True
            ops.append(PutLogPlace(session.client_id, None))
        session.behind = True
        ops.append(PutLogStart(session.client_id, filter, None, since_s))
        starts = self._starts.get(session)
        before = frozenset[str]() if starts is None else starts.filters
        self._starts[session] = Starts(before | {filter})
        self._reading[session] = False
        return ops

    def unsubscribed(self, session: Session, filter: str) -> list[StoreOp]:
        starts = self._starts.get(session)
        if starts is None or filter not in starts.filters:
            return []
        self._starts[session] = Starts(starts.filters - {filter})
        return [PutLogStart(session.client_id, filter, b"")]

    def catch_up(self, owner: MessageSink) -> None:
        """Let a session whose places are stored read on, if its client is connected."""
        if owner in self._reading:
            self._reading[owner] = True
            self._ask(owner)

    def _catch_up_when_stored(self, owner: MessageSink, now_s: float) -> None:
        def begin(now_s: float) -> None:
            self.catch_up(owner)

        # The store must have the place before it is read.
        self._reading[owner] = False
        self._node.when_durable(begin, now_s, owner.client_id)

    def resumed(self, session: Session, now_s: float) -> None:
        """A client is back: it catches up, if it has missed anything."""
        if not session.reads_log:
            return
        if not session.behind:
            self._node.journal.note(PutLogPlace(session.client_id, b""))
            session.reads_log = False
            return
        self._catch_up_when_stored(session, now_s)

    def tick(self) -> None:
        """Ask for the next pages of those that have taken what they had."""
        self._shared.clear()
        for reader, is_stored in self._reading.items():
            if is_stored:
                self._ask(reader)

    def _ask(self, reader: MessageSink) -> None:
        queue = reader.queue
        room = min(PAGE_MAX, queue.messages_max)
        # A page may have one message more than that.
        spare_bytes = queue.bytes_max - self._node.settings.session.packet_size_max
        bytes_max = max(1, min(PAGE_BYTES_MAX, spare_bytes // 2))
        if reader in self._fetching or 2 * queue.count > room:
            return
        if queue.count and (queue.size_bytes > bytes_max or queue.node_refusal(bytes_max)):
            return  # Messages beyond the limits stay in the log.
        self._fetching.add(reader)
        starts = self._starts.get(reader)
        count_max = max(1, min(room // 2, self._node.moving.page_max))
        self._node.fetches.append(LogFetch(reader, starts, count_max, bytes_max))

    # --- reading ------------------------------------------------------------------------------

    def came(self, fetch: LogFetch, now_s: float) -> None:
        """Move a page into the queue, together with the new place."""
        if fetch.on_batch is not None:
            fetch.on_batch(fetch, now_s)
            return
        reader, batch = fetch.reader, fetch.batch
        gone = reader.ended or reader not in self._reading
        if gone or batch is None or self._is_stale(fetch):
            self._fetching.discard(reader)
            if fetch.damage and not reader.ended:
                self._node.counters.pages_unreadable += 1
                reader.cut_off(now_s)
            return
        self._node.counters.drop(Reason.LOG_RETENTION, batch.lost_count)
        reading = self.readings.setdefault(reader, Reading())
        reading.read_until_s = batch.read_until_s
        reading.lost_count += batch.lost_count
        deliveries: list[Delivery] = []
        for logged in batch.messages:
            if logged.expires_at_s <= now_s:
                self._node.counters.drop(Reason.MESSAGE_EXPIRED)
                continue
            source = logged.stamp, logged.publisher
            found = self._wanted(reader, source, logged.message, logged.expires_at_s, batch)
            if found is not None:
                deliveries.append(found)
        places: list[StoreOp] = [PutLogPlace(reader.client_id, batch.place)]
        if batch.filter:
            places = [PutLogStart(reader.client_id, batch.filter, batch.place)]
        rest_count = self.appended_count - batch.appended_count
        if batch.is_done and not self.wide_count and rest_count <= len(self._tail):
            rest = self._rest_of(reader, rest_count)
            if self._has_room(reader, deliveries, rest):
                deliveries += rest
                reader.reads_log = reader.behind = False
                del self._reading[reader]
                places = self._all_read(reader)
        reading.read_count += len(deliveries)
        self.read_count += len(deliveries)
        self._deliver(reader, deliveries, places, now_s)

    def _has_room(
        self, reader: MessageSink, page: Sequence[Delivery], rest: Sequence[Delivery]
    ) -> bool:
        """Whether what was logged since a page was read, the rest, may enter the queue with it."""
        queue = reader.queue
        count = queue.count + len(page) + len(rest)
        if reader.is_logged:
            return count <= QUEUE_MAX
        size_bytes = queue.size_bytes + sum(each.size_bytes for each in (*page, *rest))
        return not rest or (count <= queue.messages_max and size_bytes <= queue.bytes_max)

    def _is_stale(self, fetch: LogFetch) -> bool:
        """Whether a subscription began or ended since it was asked: what was logged between that
        and the reading was passed over. It is asked again, with the next tick."""
        reader = fetch.reader
        is_same = fetch.starts is self._starts.get(reader)
        return not is_same or fetch.filters != filters_of(reader)

    @property
    def catching_up_count(self) -> int:
        """Sessions of connected clients, and shared subscriptions, that read missed messages."""
        return len(self._reading)

    def _all_read(self, reader: MessageSink) -> list[StoreOp]:
        """It has no place any more."""
        client_id = reader.client_id
        starts = self._starts.pop(reader, None)
        filters = frozenset[str]() if starts is None else starts.filters
        return [
            PutLogPlace(client_id, b""),
            *(PutLogStart(client_id, filter, b"") for filter in sorted(filters)),
        ]

    def _rest_of(self, reader: MessageSink, count: int) -> list[Delivery]:
        """Deliveries of what it wants of the last messages that were logged."""
        tail, rest = self._tail, list[Delivery]()
        for index in range(len(tail) - count, len(tail)):
            op = tail[index]
            key = (-self.appended_count + len(tail) - 1 - index, op.publisher)
            found = self._wanted(reader, key, op.message, op.expires_at_s)
            if found is not None:
                rest.append(found)
        return rest

    def _wanted(
        self,
        reader: MessageSink,
        source: tuple[int, str],
        message: Publish,
        expires_at_s: float,
        batch: LogBatch | None = None,
    ) -> Delivery | None:
        """Return the delivery of a message, or None if no subscription wants it.

        `source`: number and publisher of the message; `batch`: the page that it came with.
        """
        number, publisher = source
        found = options_of(reader, message.topic, publisher, number, batch)
        qos = 0 if found is None else min(found.qos, message.qos)
        if found is None or not qos or not may_receive(reader, message.topic):
            return None
        retain = found.retain_as_published
        shared, key = self._shared, (number, qos, retain, found.identifiers)
        delivery = shared.get(key)
        if delivery is None:
            if len(shared) >= SHARED_MAX:
                shared.clear()
            delivery = shared[key] = Delivery(
                message, qos, retain and message.retain, key[3], expires_at_s
            )
        return delivery

    def _deliver(
        self, reader: MessageSink, deliveries: list[Delivery], places: list[StoreOp], now_s: float
    ) -> None:
        """Positions and new places, one commit, then to the client."""
        node = self._node
        ops: list[StoreOp] = []
        targets: list[tuple[int, Delivery]] = []
        for delivery in deliveries:
            # The queue has capacity for a page, so no message from the log is dropped.
            own_queue(reader, node).promise(delivery.size_bytes)
            pos = reader.take_position()
            targets.append((pos, delivery))
            ops.append(Append(reader.client_id, pos, delivery))
        ops += places
        node.moving.count += len(targets)

        def done(now_s: float) -> None:
            node.moving.count = max(0, node.moving.count - len(targets))
            self._fetching.discard(reader)
            for pos, delivery in targets:
                reader.offer(pos, delivery, node, now_s)
            if targets and self._reading.get(reader, False):
                self._ask(reader)  # Else with the next tick: it only waits for others.

        node.journal.append_for_reader(ops, done, now_s)
