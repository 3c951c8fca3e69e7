"""LogReaders: who reads the durable log instead of getting messages into a queue, and until when.

A message of a plan that `logs` is stored once. It enters the queues of those durable sessions that
are connected and have caught up, in the same commit; all others have a place in the log, and pass
it by. Who comes back reads on from its place: a page at a time moves from the log into its queue,
messages and new place in one commit, so nothing is missed and nothing comes twice, whatever ends
when. From there on it is like any other message: identifiers, windows, QoS 2.

The last page meets what is logged at that moment. All that entered the journal is kept here for a
while, in its order (`_tail`), and a page says how much of that was committed when it was read. So
the rest follows from memory, and in the same stretch the session begins to get messages by its
queue: none lies between the two.

A subscription that starts in the past has a place of its own, in what was logged before it was
made. That is read first, for it alone; then its session reads on with all of them.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

from flowguard.flow import Reason
from flowguard.node.plans import Plans
from flowguard.records import (
    NEVER_S,
    Append,
    AppendToLog,
    Delivery,
    PutLogPlace,
    PutLogStart,
    QueueEntry,
    StoreOp,
    message_bytes,
)
from flowguard.routing import has_wildcard, parse_shared
from flowguard.routing.filters import matches
from flowguard.session.fetch import Fetch
from flowguard.session.node_state import NodeState
from flowguard.session.owner import QueueOwner
from flowguard.session.session import Session
from flowguard.stores import LogStore, Store
from flowguard.stores.log.replays import LogBatch
from flowguard.types import NO_PROPERTIES, Publish

# Not final: tests have smaller ones, and the compiled code should look at them.
PAGE_MAX = 500
PAGE_BYTES_MAX: Final = 256 * 1024
"""Messages in a queue that come from the log: half of them move at a time, or this size."""
TAIL_MAX = 4_096
TAIL_BYTES_MAX: Final = 4 * 1024 * 1024
"""Messages that are kept because pages may have been read before they were committed."""
SHARED_MAX: Final = 1_000
"""Deliveries that are kept for others that read the same."""

Target = tuple[QueueOwner, int, Delivery]


def expiry_of(message: Publish, now_s: float) -> float:
    """When a message that is published now expires; NEVER_S: never."""
    if message.properties is NO_PROPERTIES:
        return NEVER_S
    interval_s = message.properties.message_expiry_interval
    return NEVER_S if interval_s is None else now_s + interval_s


@final
class LogFetch(Fetch):
    """A page of the log that a session is to read."""

    __slots__ = ("batch", "filters", "session", "starts")

    def __init__(
        self, session: Session, starts: "Starts | None", count_max: int, bytes_max: int
    ) -> None:
        super().__init__(session, 0, 0, count_max, bytes_max, looks=False)
        self.session = session
        self.starts = starts
        """Those of the session when it is asked for; the store knows all of them."""
        self.filters = _filters_of(session)
        self.batch: LogBatch | None = None

    def ask(self, store: Store) -> list[QueueEntry]:
        assert isinstance(store, LogStore)
        self.batch = store.read_log(self.client_id, self.filters, self.count_max, self.bytes_max)
        return []


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
class Starts:
    """Filters of a session's subscriptions that started in the past; never changed."""

    __slots__ = ("filters",)

    def __init__(self, filters: frozenset[str]) -> None:
        self.filters = filters


@final
class LogReaders:
    """One per node."""

    __slots__ = (
        "_fetching",
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
        self._reading: dict[Session, bool] = {}
        """Sessions of clients that are back and catch up; False: their place is not stored yet."""
        self._starts: dict[Session, Starts] = {}
        """Of sessions that have some, until they have caught up."""
        self._fetching: set[Session] = set()
        """Those whose next page must wait: one is asked for, or on its way into a queue."""
        self.appended_count = 0
        """Messages that entered the journal to be logged, since the start."""
        self.read_count = 0
        """Messages that sessions have got from there, each counted."""
        self.readings: dict[Session, Reading] = {}
        """Of sessions that have read it and are not over."""
        self._tail: deque[AppendToLog] = deque()
        """The last of them."""
        self._tail_bytes = 0
        self._shared: dict[tuple[int, int, bool, tuple[int, ...]], Delivery] = {}
        self.wide_count = 0
        """Messages that are on their way to the log, and have passed somebody by already."""

    def use(self, store: Store, threshold: int) -> None:
        """Before sessions are recovered: whether there is a log, and when it is written to."""
        if isinstance(store, LogStore):
            self._plans.log_threshold = threshold
            self._plans.uses_log = threshold > 0

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
        """The client of a session that goes on is away: its place is here, unless it has one."""
        self._reading.pop(session, None)
        if self._plans.log_threshold and session.durable and not session.reads_log:
            session.reads_log = True
            self._node.journal.note(PutLogPlace(session.client_id, None))

    def ended(self, session: Session) -> None:
        """The session is over."""
        self._reading.pop(session, None)
        self._starts.pop(session, None)
        self.readings.pop(session, None)

    def start(self, session: Session, filter: str, since_s: float) -> list[StoreOp]:
        """A new subscription of a client that is here starts in the past: the operations, which
        enter the journal in the same stretch. `catch_up` follows, when they are durable."""
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
        """A subscription is over; what is to be stored for that."""
        starts = self._starts.get(session)
        if starts is None or filter not in starts.filters:
            return []
        self._starts[session] = Starts(starts.filters - {filter})
        return [PutLogStart(session.client_id, filter, b"")]

    def catch_up(self, session: Session) -> None:
        """The places of a session are stored: it reads on, if its client is here."""
        if session in self._reading:
            self._reading[session] = True
            self._ask(session)

    def resumed(self, session: Session, now_s: float) -> None:
        """A client is back: it catches up, if it has missed anything."""
        if not session.reads_log:
            return
        if not session.behind:
            self._node.journal.note(PutLogPlace(session.client_id, b""))
            session.reads_log = False
            return

        def begin(now_s: float) -> None:
            self.catch_up(session)

        # Its place must be in the store before it is read.
        self._reading[session] = False
        self._node.when_durable(begin, now_s)

    def tick(self) -> None:
        """Ask for the next pages of those that have taken what they had."""
        self._shared.clear()
        for session, is_stored in self._reading.items():
            if is_stored:
                self._ask(session)

    def _ask(self, session: Session) -> None:
        limits = self._node.settings.session
        room = min(PAGE_MAX, limits.queue_messages_max)
        if session in self._fetching or 2 * session.queue.count > room:
            return
        self._fetching.add(session)
        bytes_max = min(PAGE_BYTES_MAX, limits.queue_bytes_max // 2)
        starts = self._starts.get(session)
        self._node.fetches.append(LogFetch(session, starts, max(1, room // 2), bytes_max))

    # --- reading ------------------------------------------------------------------------------

    def came(self, fetch: LogFetch, now_s: float) -> None:
        """A page is there: into the queue with it, together with the new place."""
        session, batch = fetch.session, fetch.batch
        gone = session.ended or session not in self._reading
        if gone or batch is None or self._is_stale(fetch):
            self._fetching.discard(session)
            if fetch.damage and not session.ended:
                self._node.counters.pages_unreadable += 1
                session.cut_off(now_s)
            return
        self._node.counters.drop(Reason.LOG_RETENTION, batch.lost_count)
        reading = self.readings.setdefault(session, Reading())
        reading.read_until_s = batch.read_until_s
        reading.lost_count += batch.lost_count
        targets: list[Target] = []
        for logged in batch.messages:
            if logged.expires_at_s > now_s:
                self._take(
                    targets,
                    session,
                    (logged.stamp, logged.publisher),
                    logged.message,
                    logged.expires_at_s,
                    now_s,
                    batch,
                )
            else:
                self._node.counters.drop(Reason.MESSAGE_EXPIRED)
        rest_count = self.appended_count - batch.appended_count
        places: list[StoreOp] = [PutLogPlace(session.client_id, batch.place)]
        if batch.filter:
            places = [PutLogStart(session.client_id, batch.filter, batch.place)]
        if batch.is_done and not self.wide_count and rest_count <= len(self._tail):
            self._take_tail(targets, session, rest_count, now_s)
            session.reads_log = session.behind = False
            del self._reading[session]
            places = self._all_read(session)
        reading.read_count += len(targets)
        self.read_count += len(targets)
        self._deliver(session, targets, places, now_s)

    def _is_stale(self, fetch: LogFetch) -> bool:
        """Whether a subscription began or ended since it was asked: what was logged between that
        and the reading was passed over. It is asked again, with the next tick."""
        session = fetch.session
        is_same = fetch.starts is self._starts.get(session)
        return not is_same or fetch.filters != _filters_of(session)

    @property
    def catching_up_count(self) -> int:
        """Sessions of clients that are here and read what they have missed."""
        return len(self._reading)

    def _all_read(self, session: Session) -> list[StoreOp]:
        """It has no place any more."""
        client_id = session.client_id
        starts = self._starts.pop(session, None)
        filters = frozenset[str]() if starts is None else starts.filters
        return [
            PutLogPlace(client_id, b""),
            *(PutLogStart(client_id, filter, b"") for filter in sorted(filters)),
        ]

    def _take_tail(self, targets: list[Target], session: Session, count: int, now_s: float) -> None:
        tail = self._tail
        for index in range(len(tail) - count, len(tail)):
            op = tail[index]
            key = (-self.appended_count + len(tail) - 1 - index, op.publisher)
            self._take(targets, session, key, op.message, op.expires_at_s, now_s)

    def _take(
        self,
        targets: list[Target],
        session: Session,
        source: tuple[int, str],
        message: Publish,
        expires_at_s: float,
        now_s: float,
        batch: LogBatch | None = None,
    ) -> None:
        """Add it, if one of its subscriptions wants it; `source`: its number, and who published;
        `batch`: with which it came."""
        number, publisher = source
        found = _options(session, message.topic, publisher, number, batch)
        qos = 0 if found is None else min(found.qos, message.qos)
        if found is None or not qos or not session.may_receive(message.topic):
            return
        retain = found.retain_as_published
        shared, key = self._shared, (number, qos, retain, found.identifiers)
        delivery = shared.get(key)
        if delivery is None:
            if len(shared) >= SHARED_MAX:
                shared.clear()
            delivery = shared[key] = Delivery(
                message, qos, retain and message.retain, key[3], expires_at_s
            )
        reason = session.admit(delivery.size_bytes, self._node, now_s)
        if reason is not None:
            self._node.counters.drop(reason)
            return
        targets.append((session, 0, delivery))

    def _deliver(
        self, session: Session, admitted: list[Target], places: list[StoreOp], now_s: float
    ) -> None:
        """Positions and new places, one commit, then to the client."""
        node = self._node
        ops: list[StoreOp] = []
        targets: list[Target] = []
        for owner, _, delivery in admitted:
            pos = owner.take_position()
            targets.append((owner, pos, delivery))
            ops.append(Append(owner.client_id, pos, delivery))
        ops += places

        def done(now_s: float) -> None:
            self._fetching.discard(session)
            for owner, pos, delivery in targets:
                owner.offer(pos, delivery, node, now_s)
            if targets and self._reading.get(session, False):
                self._ask(session)  # Else with the next tick: it only waits for others.

        node.journal.append(ops, done, now_s)


def _filters_of(session: Session) -> list[str]:
    """The filters of those of its subscriptions that read the log."""
    return [
        filter
        for filter, options in session.subscriptions.items()
        if options.qos and parse_shared(filter) is None
    ]


def _is_for(batch: LogBatch, stamp: int, filter: str) -> bool:
    """Whether a message of the batch is for the subscription, if that matches it."""
    if batch.filter:
        return filter == batch.filter
    return stamp > batch.ends.get(filter, 0)


@dataclass(slots=True)
class _Options:
    """The sum of a session's subscriptions that match a topic."""

    qos: int
    retain_as_published: bool
    identifiers: tuple[int, ...]


def _options(
    session: Session, topic: str, publisher: str, stamp: int, batch: LogBatch | None
) -> _Options | None:
    """For a message of `batch`, or one since; None: it does not match any."""
    qos, retain, identifiers, wanted = 0, False, list[int](), False
    for filter, options in session.subscriptions.items():
        if filter != topic and not has_wildcard(filter):
            continue
        if options.no_local and publisher == session.client_id:
            continue  # [MQTT-3.8.3-3]
        if batch is not None and not _is_for(batch, stamp, filter):
            continue
        if parse_shared(filter) is None and matches(filter, topic):
            wanted = True
            qos = max(qos, options.qos)
            retain = retain or options.retain_as_published
            if options.identifier:
                identifiers.append(options.identifier)
    return _Options(qos, retain, tuple(identifiers)) if wanted else None
