"""Sessions of a node: their clients, take-over, expiry and wills."""

from functools import partial
from typing import final

from flowguard.node.connect.ends import Ends, put_of
from flowguard.node.journal import Continuation, Journal
from flowguard.node.publish.publishing import Router
from flowguard.node.shared.left_messages import LeftMessages, left_messages
from flowguard.node.shared.shared_queues import SharedQueues
from flowguard.node.upkeep.timers import Timer, Timers
from flowguard.records import OWED, PutWill, SessionRecord, StoreOp, WillRecord
from flowguard.session.chores import FILTERS_PIECE
from flowguard.session.filters import Filters
from flowguard.session.node_state import NodeState
from flowguard.session.owner import load_queue, own_queue
from flowguard.session.session import Session
from flowguard.session.state_bytes import (
    INBOUND_ID_BYTES,
    name_bytes,
    owed_bytes,
    subscription_bytes,
    will_bytes,
)
from flowguard.stores import Store
from flowguard.types import ReasonCode

FETCH_LIMIT = 1_000


@final
class Leaving:
    """Removes the many subscriptions of an ended session from the table.

    Messages that are routed to it meanwhile are discarded.
    """

    __slots__ = ("_filters", "_journal", "_queues", "_session")

    def __init__(self, session: Session, queues: SharedQueues, journal: Journal) -> None:
        self._session = session
        self._queues = queues
        self._journal = journal
        self._filters = list(session.subscriptions)

    def step(self, now_s: float) -> bool:
        filters = self._filters
        for _ in range(min(FILTERS_PIECE, len(filters))):
            for op in self._queues.unsubscribe(filters.pop(), self._session):
                self._journal.note(op)
        if filters:
            return True
        self._queues.left(self._session)
        return False


@final
class Expiry:
    """Ends a session; much smaller than a partial call, as there is one for each absent client."""

    __slots__ = ("_registry", "_session")

    def __init__(self, registry: "Registry", session: Session) -> None:
        self._registry = registry
        self._session = session

    def __call__(self, now_s: float) -> None:
        self._registry.expired(self._session, now_s)


@final
class Registry:
    """All sessions by client id, connected or not."""

    def __init__(self, node: NodeState, router: Router, journal: Journal, timers: Timers) -> None:
        self._node = node
        self._router = router
        self._queues = router.queues
        self._journal = journal
        self._timers = timers
        self.sessions: dict[str, Session] = {}
        self.kept_count = 0
        """Number of sessions that outlive their connection."""
        self.expiry_timers: dict[Session, Timer] = {}
        """Timers of sessions without a connection that expire."""
        self.will_timers: dict[Session, Timer] = {}
        """Timers of delayed wills, by their session."""
        self.ends = Ends(journal)

    def claim(
        self,
        client_id: str,
        user: str,
        *,
        clean_start: bool,
        expiry_s: int,
        will: WillRecord | None,
        now_s: float,
    ) -> tuple[Session, bool] | None:
        """Return the session of an accepted CONNECT, and True if it was present before.

        [MQTT-3.1.2-4] [MQTT-3.1.2-5] Return None if there is no memory for its state or its will.
        Then a session that would have been resumed is unchanged, its will included, and a session
        that was to be replaced has ended.
        """
        session = self.sessions.get(client_id)
        if session is not None and (clean_start or not session.durable):
            # [MQTT-3.1.2-8] its client reconnects within the delay, with or without its session.
            self._drop_will(session)
            self.end(session, now_s)
            session = None
        present = session is not None
        if session is None:
            session = Session.create(client_id, self._node, expiry_s)
            more_bytes = name_bytes(client_id) + will_bytes(will)
        else:
            more_bytes = will_bytes(will) - will_bytes(session.will)
        more_bytes += name_bytes(user) - name_bytes(session.user)
        reason = session.account.charge(more_bytes, self._node)
        if reason is not None:
            self._node.counters.drop(reason)
            return None
        # [MQTT-3.1.3-9] a delayed will is not sent, as its client has reconnected.
        session.will = will
        session.user = user
        self._disarm(session)
        if present:
            self._router.log.resumed(session, now_s)
        session.ends_at_s = None
        session.expiry_interval_s = expiry_s
        self.sessions[client_id] = session
        if session.durable and not present:
            self.kept_count += 1
        return session, present

    def claim_ops(self, session: Session) -> list[StoreOp]:
        """Return the operations that must be durable before CONNACK."""
        if not session.durable:
            return []
        return _ops_of(session, None)

    def disconnected(
        self,
        session: Session,
        *,
        with_will: bool,
        now_s: float,
        done: Continuation | None = None,
    ) -> None:
        """Publish or delay the will of a session without connection, and start its expiry.

        `done`, if given, is called when that is durable.
        """
        if session.membership is not None:
            session.membership.leave(session.inflight, self._node, now_s)
        had_will = session.will is not None
        if not with_will:
            self._drop_will(session)
        self._router.applications.left(session)
        expiry_s = session.expiry_interval_s
        if not expiry_s:
            self.end(session, now_s)
            if done is not None:
                self._journal.append([], done, now_s, session.client_id)
            return
        session.ends_at_s = None if session.never_expires else now_s + expiry_s
        if session.ends_at_s is not None:
            self._expire_at(session, session.ends_at_s)
        if session.will is not None:
            self._owe_will(session, session.will, now_s)
        self._router.log.left(session)
        if done is None and not had_will and not self._node.draining:
            if session.ends_at_s is not None:
                self.ends.add(session, now_s)
            return
        ops = _ops_of(session, session.ends_at_s)
        if done is None:
            self._journal.note_all(ops)
        else:
            self._journal.append(ops, done, now_s, session.client_id)

    def end(self, session: Session, now_s: float) -> None:
        """End a session and remove its state; a delayed will is published [MQTT-3.1.3-9]."""
        assert session.outbound is None
        assert not session.ended
        session.ended = True
        session.account.close(self._node)
        self._disarm(session)
        self._router.log.ended(session)
        self._router.applications.ended(session)
        if len(session.subscriptions) > FILTERS_PIECE:
            self._node.chores.add(Leaving(session, self._queues, self._journal).step)
        else:
            for filter in session.subscriptions:
                for op in self._queues.unsubscribe(filter, session):
                    self._journal.note(op)
            self._queues.left(session)
        session.subscriptions = Filters()  # A plan may keep the session for a while.
        session.rights = None
        left = left_messages(session)
        session.queue.clear()
        while session.inflight.messages:
            packet_id, delivery = session.inflight.messages.popitem()
            session.inflight.free_place(packet_id, delivery, self._node.inflight)
        if session.inflight.positions:
            session.inflight.positions.clear()
        self._node.sent.pop(session.client_id, None)
        del self.sessions[session.client_id]
        if left and not session.is_lost:
            self._node.chores.add(LeftMessages(left, self._node, self._router).step)
        if session.will is not None:  # First: it may have to be durable before the end is.
            self._publish_will(session, session.will, now_s)
        if session.durable:
            self.kept_count -= 1
            self._journal.end_session(session.client_id)

    def forget(self, client_id: str, now_s: float) -> None:
        """End a session that another broker owns now; nothing of it is stored or published.

        The reason code for its connection is 0x8E (Session taken over).
        """
        session = self.sessions.get(client_id)
        if session is None or not session.durable:
            return
        session.is_lost = True
        self._drop_will(session)
        self._disarm(session)
        session.durable = False
        session.expiry_interval_s = 0
        self.kept_count -= 1
        if session.outbound is None:
            self.end(session, now_s)
        else:
            session.outbound.connection.end(ReasonCode.SESSION_TAKEN_OVER, now_s)

    def expired(self, session: Session, now_s: float) -> None:
        self._node.counters.clients_expired += 1
        self.end(session, now_s)

    def _expire_at(self, session: Session, due_s: float) -> None:
        """End the session at `due_s` unless its client reconnects, or it ends before."""
        timer = self._timers.at(due_s, Expiry(self, session), "session expiry")
        self.expiry_timers[session] = timer

    def _disarm(self, session: Session) -> None:
        self.ends.drop(session)
        self._cancel(self.expiry_timers, session)
        self._cancel(self.will_timers, session)

    def _cancel(self, timers: dict[Session, Timer], session: Session) -> None:
        timer = timers.pop(session, None)
        if timer is not None:
            self._timers.cancel(timer)

    # --- wills -------------------------------------------------------------------------------

    def _owe_will(self, session: Session, will: WillRecord, now_s: float) -> None:
        if not will.delay_s:
            self._publish_will(session, will, now_s)
            return
        due = partial(self._will_due, session)
        self.will_timers[session] = self._timers.at(now_s + will.delay_s, due, "will delay")

    def _will_due(self, session: Session, now_s: float) -> None:
        assert session.will is not None
        self._publish_will(session, session.will, now_s)
        self._journal.note(PutWill(session.client_id, None))

    def _publish_will(self, session: Session, will: WillRecord, now_s: float) -> None:
        """Publish a will [MQTT-3.1.2-8] and remove it from the session [MQTT-3.1.2-10]."""
        self._drop_will(session)
        self._node.counters.wills_published += 1
        self._router.publish_own(will.message, now_s)

    def retract_will(self, session: Session) -> None:
        """Remove a will that its client may not leave any more."""
        self._drop_will(session)
        if session.durable:
            self._journal.note(PutWill(session.client_id, None))

    def _drop_will(self, session: Session) -> None:
        session.account.charge(-will_bytes(session.will), self._node)
        session.will = None
        self._cancel(self.will_timers, session)

    # --- restart -----------------------------------------------------------------------------

    def recover(self, store: Store, now_s: float) -> int:
        """Restore a store's content, and return the number of sessions. O(everything stored)."""
        router = self._router
        for message, expires_at_s in store.retained():
            router.retained.restore(message, expires_at_s)
        owed_record: SessionRecord | None = None
        for record in store.sessions():
            router.lane.recovered(record)
            if record.client_id == OWED:
                owed_record = record
            elif not (router.peers.stored(record) or self._queues.stored(record)):
                self._recover_session(record, store, now_s)
        self._queues.recovered(store)
        router.peers.recovered(store)
        if owed_record is not None:
            router.lane.recover_owed(router.deliveries, owed_record, store, now_s)
        for session in list(self.sessions.values()):
            # As if the connection had ended now. Wills follow when all subscribers are restored.
            if not session.expiry_interval_s:
                self.end(session, now_s)
            elif session.will is not None:
                self.ends.drop(session)
                self._owe_will(session, session.will, now_s)
                self._journal.note_all(_ops_of(session, session.ends_at_s))
        return len(self.sessions)

    def _recover_session(self, record: SessionRecord, store: Store, now_s: float) -> None:
        client_id = record.client_id
        expiry_s = record.expiry_interval_s
        session = Session.create(client_id, self._node, expiry_s, stored=True)
        self.sessions[client_id] = session
        self.kept_count += 1
        session.next_pos = record.next_pos
        session.will = record.will
        session.user = record.user
        if record.inbound_ids:
            session.inbound_ids = dict.fromkeys(record.inbound_ids, True)
        for filter, options in record.subscriptions.items():
            session.subscriptions.put(filter, options)
            for op in self._queues.subscribe(filter, session, options)[1]:
                self._journal.note(op)
        session.subscriptions.retained_after = dict(record.retained_after) or None
        self._charge_restored(session)
        self._recover_queue(session, record, store)
        ends_at_s = record.ends_at_s
        if ends_at_s is None and not session.never_expires:
            ends_at_s = now_s + expiry_s
            self.ends.add(session, now_s)
        session.ends_at_s = ends_at_s
        if ends_at_s is not None:
            self._expire_at(session, ends_at_s)
        if record.is_application:
            self._router.applications.recovered(session)
        self._router.log.recovered(session, record.log_place, record.log_starts)

    def _recover_queue(self, session: Session, record: SessionRecord, store: Store) -> None:
        """Put messages in flight that may have been sent; the others stay in the store."""
        count, size_bytes = record.unsettled_count, record.unsettled_bytes
        after, inflight = 0, session.inflight
        until_pos = record.sent_pos if count else 0
        while after < until_pos:
            entries = store.fetch(session.client_id, after, FETCH_LIMIT, until_pos=until_pos)
            if not entries:
                break
            for entry in entries:
                after = entry.pos
                delivery = entry.delivery
                inflight.restore_place(entry.packet_id, delivery, self._node.inflight)
                inflight.add(entry.packet_id, delivery)
                assert inflight.positions is not None
                inflight.positions[entry.packet_id] = after
                count -= 1
                size_bytes -= 0 if delivery is None else delivery.size_bytes
        if count:
            queue = own_queue(session, self._node)
            queue.restore(record.sent_pos, record.next_pos - 1, count, size_bytes)
        if not self._node.spills:
            load_queue(session, store, self._node)

    def _charge_restored(self, session: Session) -> None:
        size_bytes = name_bytes(session.client_id) + name_bytes(session.user)
        size_bytes += will_bytes(session.will)
        size_bytes += sum(map(subscription_bytes, session.subscriptions))
        size_bytes += sum(map(owed_bytes, (session.subscriptions.retained_after or {}).values()))
        size_bytes += INBOUND_ID_BYTES * len(session.inbound_ids or ())
        session.account.restore(size_bytes, self._node)


def _ops_of(session: Session, ends_at_s: float | None) -> list[StoreOp]:
    return [put_of(session, ends_at_s), PutWill(session.client_id, session.will)]
