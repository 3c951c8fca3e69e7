"""Shared subscriptions of a node, and their queues; all subscriptions are added and removed here.

A group has a queue from its first durable subscription with QoS 1 or 2 to the end of its last
member. A group of clean sessions only has none. Messages of such a group wait in the queue of a
member, which `rank` chooses. A group with an application among its members has its messages in the
durable log, until the group ends.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import final

from flowguard.node.applications.applications import Applications
from flowguard.node.applications.log_readers import LogReaders
from flowguard.node.journal import Journal
from flowguard.node.peers.peers import Peers
from flowguard.node.publish.plans import Plans, Shared
from flowguard.node.shared.shared_queue import HandOver, SharedQueue, granted
from flowguard.node.shared.spread_queues import SpreadQueues
from flowguard.records import (
    Delivery,
    DropSession,
    PutSession,
    SessionRecord,
    SinkKind,
    StoreOp,
    key_of,
    sink_of,
)
from flowguard.routing import has_wildcard, parse_shared
from flowguard.session.chores import FILTERS_PIECE
from flowguard.session.node_state import NodeState
from flowguard.session.owner import load_queue, new_backlog
from flowguard.session.session import Session
from flowguard.stores import Store
from flowguard.types import SESSION_NEVER_EXPIRES, Publish, SubscriptionOptions


@final
class Welcoming:
    """Wakes the groups of a reconnected client with many subscriptions."""

    __slots__ = ("_filters", "_outbound", "_queues", "_session")

    def __init__(self, session: Session, queues: "SharedQueues") -> None:
        self._session = session
        self._outbound = session.outbound
        self._queues = queues
        self._filters = list(session.subscriptions)

    def step(self, now_s: float) -> bool:
        session, outbound, filters = self._session, self._outbound, self._filters
        if outbound is None or session.outbound is not outbound:
            return False  # The client has left again.
        for _ in range(min(FILTERS_PIECE, len(filters))):
            filter = filters.pop()
            if filter in session.subscriptions:
                self._queues.welcome(filter, session)
        outbound.tell_groups(now_s)
        return bool(filters)


@final
class SharedQueues:
    """The queues by group; a subscription needs no more than `subscribe` and `unsubscribe`."""

    def __init__(
        self,
        node: NodeState,
        plans: Plans,
        journal: Journal,
        log: LogReaders,
        applications: Applications,
        peers: Peers,
        hand_over: HandOver,
    ) -> None:
        self._node = node
        self._peers = peers
        self._log = log
        self._applications = applications
        self._table = plans.table
        self._plans = plans
        self._journal = journal
        self._queues: dict[Shared, SharedQueue] = {}
        self._hand_over = hand_over
        self.spread = SpreadQueues(node, plans, journal, hand_over)
        """Groups that other brokers have, too."""
        self._stored: dict[str, SessionRecord] = {}
        """Queues without recovered members, between `stored` and `recovered`."""

    @property
    def subscriptions_count(self) -> int:
        """Number of subscriptions of clients, without those of the session that has no client."""
        return len(self._table) - self.spread.count

    def __iter__(self) -> Iterator[SharedQueue]:
        return iter(self._queues.values())

    def of(self, group: Shared) -> SharedQueue | None:
        """Return the queue for the next message of a group, or None if it has none."""
        return self.spread.of(group) or self._queues.get(group)

    def named(self, key: str) -> SharedQueue | None:
        """Return the queue that the store has under this key, or None."""
        kind, filter = sink_of(key)
        if kind is SinkKind.SPREAD:
            return self.spread.named(filter)
        group = self._group(filter)
        return None if group is None else self._queues.get(group)

    def is_of_any(self, group: Shared, names: set[str]) -> bool:
        """Return True if its queue, or a member if it has none, has one of these names."""
        queue = self.of(group)
        if queue is not None:
            return queue.client_id in names
        return any([each.client_id in names for each, _ in group.members()])

    def subscribe(
        self, filter: str, session: Session, options: SubscriptionOptions
    ) -> tuple[bool, list[StoreOp]]:
        """Add a subscription to the table.

        Return True if it is new, and the operations that must be durable besides the subscription.
        """
        version = self._table.version
        is_new = self._table.subscribe(filter, session, options)
        self._peers.subscribed(filter, is_new=is_new)
        group = self._group(filter)
        if self._table.version != version:
            self._plans.changed(filter if group is None else group.filter)
        if group is None:
            session.is_matched_widely |= has_wildcard(filter)
            return is_new, []
        ops: list[StoreOp] = []
        queue = self._queues.get(group)
        name = key_of(SinkKind.SHARED, filter)
        is_spread = self.spread.concerns(group, session)
        if is_spread:
            ops += self.spread.joined(filter)
        is_new_here = options.qos > 0 and not is_spread
        if queue is None and session.durable and (is_new_here or name in self._stored):
            backlog = new_backlog(self._node, self._node.queue_budget, durable=True)
            queue = SharedQueue(filter, backlog, group, self._node, self._journal, self._hand_over)
            self._queues[group] = queue
            record = self._stored.pop(name, None)
            if record is not None:
                queue.restore(record)
                if record.is_application:
                    self._keep(group, queue)
                self._log.recovered_queue(queue, record.log_place)
            else:
                ops.append(PutSession(name, SESSION_NEVER_EXPIRES, None))
        if queue is not None and session.is_application and not (queue.is_application or is_spread):
            self._keep(group, queue)
            ops.append(PutSession(name, SESSION_NEVER_EXPIRES, None, True))
        if queue is not None and session.outbound is not None:
            queue.welcome(session)
        if is_spread and session.outbound is not None:
            self.spread.welcome(group, session)
        return is_new, ops

    def unsubscribe(self, filter: str, session: Session) -> list[StoreOp]:
        """Remove a subscription; return the operations that must be durable besides."""
        group = self._group(filter)
        version = self._table.version
        if self._table.unsubscribe(filter, session):
            self._peers.unsubscribed(filter)
        if self._table.version != version:
            self._plans.changed(filter if group is None else group.filter)
        if group is None:
            return []
        ops = self.spread.left(filter, group)
        if self.spread.members_count(group):
            return ops
        if has_wildcard(group.filter):
            self._plans.ended(group.name.__sizeof__() + group.filter.__sizeof__())
        queue = self._queues.pop(group, None)
        if queue is None:
            return ops
        queue.end()
        self._log.ended(queue)
        self._plans.kept_groups.discard(group)
        return [*ops, DropSession(queue.client_id)]

    def pick(
        self, group: Shared, message: Publish, expires_at_s: float, now_s: float
    ) -> tuple[Session, Delivery] | None:
        """Return the member of a group without a queue that gets a message, or None.

        A member that accepts its size is preferred.
        """
        ranked = rank if message.qos else rank_qos_0
        chosen = group.pick(ranked)
        if chosen is None:
            return None
        member, options = chosen
        delivery = granted(message, options, expires_at_s, group)
        if _takes_size(delivery, now_s, member):
            return member, delivery
        other = group.pick(partial(_rank_by_size, ranked, delivery, now_s))
        if other is None:
            return member, delivery  # It is dropped, and counted, when it is sent.
        return other[0], granted(message, other[1], expires_at_s, group)

    def _keep(self, group: Shared, queue: SharedQueue) -> None:
        """Log the messages of a group with an application as member, until the group ends."""
        if self._applications.keep(queue, True):
            self._plans.kept_groups.add(group)
            self._plans.changed(group.filter)

    def left(self, session: Session) -> None:
        """Count a session that has ended, after its subscriptions have left the table."""
        if session.is_matched_widely:
            self._plans.ended(session.client_id.__sizeof__())

    def connected(self, session: Session) -> None:
        """Let the groups of a reconnected client choose it again."""
        if len(session.subscriptions) > FILTERS_PIECE:
            self._node.chores.add(Welcoming(session, self).step)
        else:
            for filter in session.subscriptions:
                self.welcome(filter, session)

    def welcome(self, filter: str, session: Session) -> None:
        """Let the group of `filter`, if it is shared, choose a member again."""
        group = self._group(filter)
        if group is None:
            return
        queue = self._queues.get(group)
        is_spread = self.spread.concerns(group, session)
        if is_spread:
            for op in self.spread.joined(filter):
                self._journal.note(op)
            self.spread.welcome(group, session)
        if queue is not None:
            if session.is_application and not (queue.is_application or is_spread):
                self._keep(group, queue)
                self._journal.note(PutSession(queue.client_id, SESSION_NEVER_EXPIRES, None, True))
            queue.welcome(session)
        else:
            group.wake(session)

    def _group(self, filter: str) -> Shared | None:
        key = parse_shared(filter) if filter.startswith("$share/") else None
        return self._table.group(*key) if key is not None else None

    # --- restart -----------------------------------------------------------------------------

    def stored(self, record: SessionRecord) -> bool:
        """Return True if a store's record is of a queue, which then waits for its members."""
        kind, filter = sink_of(record.client_id)
        if kind is SinkKind.MEMBERS:
            self.spread.stored(filter)
        elif kind is not SinkKind.SESSION:
            self._stored[record.client_id] = record
        return kind is not SinkKind.SESSION

    def recovered(self, store: Store) -> None:
        """Drop stored queues without members, when all durable members are recovered."""
        self.spread.recovered()
        for name in self._stored:
            self._journal.note(DropSession(name))
        self._stored.clear()
        if not self._node.spills:
            for queue in self._queues.values():
                load_queue(queue, store, self._node)


def rank(session: Session) -> int:
    """Rank a member for a message of QoS 1 or 2: 0 is best, -1 is never."""
    if session.ended:
        return -1
    queue = session.queue
    if queue.count >= queue.messages_max or queue.size_bytes >= queue.bytes_max:
        return 3
    if session.outbound is None:
        return 2
    return 1 if session.queue.waits else 0


def rank_qos_0(session: Session) -> int:
    """Rank a member for a message of QoS 0."""
    return -1 if session.outbound is None else 0


def _takes_size(delivery: Delivery, now_s: float, session: Session) -> bool:
    """Return True if a member is disconnected, or its client accepts the message's size."""
    return session.outbound is None or session.outbound.takes_size(delivery, now_s)


def _rank_by_size(
    ranked: Callable[[Session], int], delivery: Delivery, now_s: float, session: Session
) -> int:
    return ranked(session) if _takes_size(delivery, now_s, session) else -1
