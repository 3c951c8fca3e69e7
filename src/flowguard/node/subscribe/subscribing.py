"""SUBSCRIBE and UNSUBSCRIBE: limits, the table, the answer, retained messages.

A packet with few filters is handled in one time slice. A packet with many is handled piece by
piece, as a background task, and fills its client's window meanwhile.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import final

from flowguard.access.rights import NOTHING, Rights
from flowguard.codec.packets import Suback, Subscribe, Unsuback, Unsubscribe
from flowguard.errors import MalformedPacket
from flowguard.flow import Reason
from flowguard.node.applications.log_fetch import begins_to_read
from flowguard.node.connect.authentication import Hooks
from flowguard.node.publish.full_queues import FullQueues
from flowguard.node.publish.publishing import UNSPECIFIED_ERROR, Router
from flowguard.node.subscribe.searches import Searches
from flowguard.node.subscribe.start_time import UNREADABLE, refusal, start_time
from flowguard.records import NEVER_S, DropSubscription, StoreOp
from flowguard.routing import levels_count, parse_shared, valid_filter
from flowguard.session.chores import FILTERS_PIECE
from flowguard.session.inbound.packets import Inbound
from flowguard.session.node_state import NodeState
from flowguard.session.session import Session
from flowguard.session.state_bytes import subscription_bytes
from flowguard.types import (
    MQTT_5,
    NO_PROPERTIES,
    Properties,
    ReasonCode,
    SubscriptionOptions,
)


class TableChange:
    """A SUBSCRIBE or UNSUBSCRIBE that changes the table, a piece of its filters at a time."""

    __slots__ = (
        "_admitted",
        "_is_noted",
        "at",
        "codes",
        "cost",
        "count",
        "durable",
        "inbound",
        "must_wait",
        "size_bytes",
        "subscriptions",
    )

    def __init__(
        self, subscriptions: "Subscriptions", inbound: Inbound, count: int, size_bytes: int
    ) -> None:
        self.subscriptions = subscriptions
        self.inbound = inbound
        self.count = count
        self.size_bytes = size_bytes
        """Size of its filters."""
        self.durable = inbound.session.durable
        self.codes: list[int] = []
        self.at = 0
        """Number of filters that are done."""
        self.cost = 1
        self.must_wait = False
        """True if its answer must wait for those of earlier packets."""
        self._admitted = False
        self._is_noted = False

    def admit(self) -> None:
        """Count it in its client's window from now on."""
        if not self._admitted:
            self._admitted = True
            self.inbound.window.admit(self.cost, self.size_bytes)

    def note(self, ops: list[StoreOp]) -> None:
        """Note operations that must be durable before the answer."""
        for op in ops:
            self._is_noted = True
            self.subscriptions.node.journal.note(op)

    @property
    def is_to_wait(self) -> bool:
        if self._is_noted or self.must_wait:
            return True
        node = self.subscriptions.node
        return self._admitted and not node.read_only and self.inbound.must_wait

    def step(self, now_s: float) -> bool:
        if self.inbound.ended:
            self._settle()
            return False
        until = min(self.count, self.at + FILTERS_PIECE)
        self.work(self.at, until)
        self.at = until
        self.subscriptions.full_queues.routes_changed(self.inbound.session)
        if until < self.count:
            return True
        self.subscriptions.changed(self, now_s)
        return False

    def work(self, start: int, stop: int) -> None:
        """Change the table for the filters from `start` to `stop`."""
        raise NotImplementedError

    def committed(self, now_s: float) -> None:
        self.finish(now_s)

    def finish(self, now_s: float) -> None:
        """Answer, and free the client's window."""
        self.answer(now_s)
        if self._admitted:
            self._settle()
        else:
            self.inbound.extra += self.cost - 1

    def answer(self, now_s: float) -> None:
        raise NotImplementedError

    def _settle(self) -> None:
        self._admitted = False
        self.inbound.settle(self.cost, self.size_bytes)

    def failed(self, error: Exception, now_s: float) -> bool:
        """Handle the error of an authorizer, or of a filter that breaks the protocol."""
        self._settle()
        self.inbound.failed(error, now_s)
        return True


@final
class Subscribing(TableChange):
    """A SUBSCRIBE; the retained messages follow its SUBACK."""

    __slots__ = ("is_unreadable", "packet", "reads_log", "retained", "since_s", "why")

    def __init__(
        self, subscriptions: "Subscriptions", inbound: Inbound, packet: Subscribe, now_s: float
    ) -> None:
        size_bytes = sum([len(filter) for filter, _ in packet.filters])
        super().__init__(subscriptions, inbound, len(packet.filters), size_bytes)
        self.packet = packet
        self.retained: list[str] = []
        """Filters for which retained messages are sent."""
        self.since_s: float | None = None
        """Start time of its new subscriptions, or None for now."""
        self.is_unreadable = False
        """True if its start time is no valid number."""
        self.reads_log = False
        """True if some of its subscriptions start in the past."""
        self.why = ""
        """Explanation for the last filter that was rejected."""
        if packet.properties is not NO_PROPERTIES:
            try:
                self.since_s = start_time(packet.properties, now_s)
            except ValueError:
                self.is_unreadable = True

    def work(self, start: int, stop: int) -> None:
        node, put, codes = self.subscriptions.node, self.subscriptions.put, self.codes
        session = self.inbound.session
        filters = self.packet.filters[start:stop]
        check_filters([filter for filter, _ in filters], version_of(self.inbound.session))
        for filter, asked in filters:
            code = put(self, filter, asked)
            codes.append(code)
            if code >= UNSPECIFIED_ERROR:
                node.rejections.subscription(session.client_id, session.user, filter, code)
            else:
                node.rejections.subscribed(session.client_id, session.user, filter, code)

    def committed(self, now_s: float) -> None:
        peers = self.subscriptions.peers
        if not peers.is_confirmed:
            self.admit()
        peers.when_confirmed(self.finish, now_s)

    def answer(self, now_s: float) -> None:
        session, outbound = self.inbound.session, self.inbound.session.outbound
        properties = NO_PROPERTIES
        if self.why and outbound is not None and outbound.explains:
            properties = Properties(reason_string=self.why)
        self.inbound.answered(Suback(self.packet.packet_id, tuple(self.codes), properties))
        if self.reads_log:
            self.subscriptions.read_log(session)
        self.subscriptions.searches.begin(session, self.retained, now_s)
        if session.outbound is not None:
            session.outbound.tell_groups(now_s)


@final
class Unsubscribing(TableChange):
    __slots__ = ("packet",)

    def __init__(
        self, subscriptions: "Subscriptions", inbound: Inbound, packet: Unsubscribe
    ) -> None:
        size_bytes = sum([len(filter) for filter in packet.filters])
        super().__init__(subscriptions, inbound, len(packet.filters), size_bytes)
        self.packet = packet

    def work(self, start: int, stop: int) -> None:
        drop, codes = self.subscriptions.drop, self.codes
        filters = self.packet.filters[start:stop]
        check_filters(filters, version_of(self.inbound.session))
        for filter in filters:
            codes.append(drop(self, filter))

    def answer(self, now_s: float) -> None:
        self.inbound.answered(Unsuback(self.packet.packet_id, tuple(self.codes)))


@final
class Subscriptions:
    """Changes the subscription table for clients, and answers them."""

    def __init__(
        self,
        node: NodeState,
        router: Router,
        hooks: Hooks,
        full_queues: FullQueues,
    ) -> None:
        self.node = node
        self.full_queues = full_queues
        self._router = router
        self.peers = router.peers
        self._hooks = hooks
        self.searches = Searches(node, router.retained, router.peers)

    def subscribe(self, inbound: Inbound, packet: Subscribe, now_s: float) -> bool:
        """See `Routing.subscribe`; the table changes at once, the answer waits for the commit."""
        return self._begin(Subscribing(self, inbound, packet, now_s), now_s)

    def unsubscribe(self, inbound: Inbound, packet: Unsubscribe, now_s: float) -> bool:
        return self._begin(Unsubscribing(self, inbound, packet), now_s)

    def _begin(self, change: "TableChange", now_s: float) -> bool:
        """Handle a packet at once or piece by piece; False if it must wait for its window.

        A packet in pieces fills its client's window, so that no later packet overtakes it.
        """
        inbound = change.inbound
        window = inbound.window
        count = change.count
        cost = self._router.cost.of(count, change.size_bytes, count if change.durable else 0)
        in_pieces = count > FILTERS_PIECE
        if in_pieces:
            cost = max(cost, self.node.window.limit_max)
        if cost > 1 and not window.fits(cost):
            return False
        change.cost = cost
        change.must_wait = inbound.must_wait
        if in_pieces:
            change.admit()
            self.node.chores.add(change.step, change.failed)
        else:
            change.step(now_s)
        return True

    def put(self, change: "Subscribing", filter: str, asked: SubscriptionOptions) -> int:
        """Add one filter of a SUBSCRIBE to the table, and return its reason code."""
        session = change.inbound.session
        qos_max = self.node.settings.session.maximum_qos
        refused = self._refusal(session, filter)
        if refused is None and self._hooks.rules is not None:
            granted = granted_qos(session.rights, filter)
            if granted == NOTHING:
                return ReasonCode.NOT_AUTHORIZED
            qos_max = min(qos_max, granted)
        options = asked if asked.qos <= qos_max else replace(asked, qos=qos_max)
        refused = (
            refused
            or self._start_refusal(change, filter, options)
            or self._no_room(session, filter)
        )
        if refused is not None:
            return refused
        before = session.subscriptions.get(filter)
        starts_s = change.since_s if before is None else None
        if starts_s is None and begins_to_read(session, filter, before, options):
            starts_s = NEVER_S
        if starts_s is not None:
            # Before the plans change: matching topics are logged from now on, while it is behind.
            start = self._router.log.start(session, filter, starts_s)
            change.reads_log = True
        is_new, ops = self._router.queues.subscribe(filter, session, options)
        session.subscriptions.put(filter, options)
        if _wants_retained(filter, options, is_new=is_new):
            self._want_retained(change, filter, options)
        if session.durable:
            ops.append(session.subscriptions.stored(session.client_id, filter))
        if starts_s is not None:
            ops += start
        change.note(ops)
        return options.qos

    def _want_retained(
        self, change: "Subscribing", filter: str, options: SubscriptionOptions
    ) -> None:
        """Send retained messages from the first on, and stop an earlier search for the filter.

        A durable session is owed those of QoS 1 and 2.
        """
        session = change.inbound.session
        matches = self._router.retained.may_match(filter) or not self.peers.knows_retained
        if session.outbound is not None:
            session.outbound.stop_retained(filter)
        if session.durable:
            session.subscriptions.owe_retained(
                filter, "" if matches and options.qos else None, session.account, self.node
            )
        if matches:
            change.retained.append(filter)

    def drop(self, change: "Unsubscribing", filter: str) -> int:
        """Remove one filter of an UNSUBSCRIBE from the table, and return its reason code."""
        session = change.inbound.session
        if filter not in session.subscriptions:
            return ReasonCode.NO_SUBSCRIPTION_EXISTED
        change.note(self._remove(session, filter))
        return ReasonCode.SUCCESS

    def _remove(self, session: Session, filter: str) -> list[StoreOp]:
        """Remove a filter from the table, and return the operations for the store."""
        session.subscriptions.drop(filter)
        session.account.charge(-subscription_bytes(filter), self.node)
        ops = self._router.queues.unsubscribe(filter, session)
        ops += self._router.log.unsubscribed(session, filter)
        if session.outbound is not None:
            session.outbound.stop_retained(filter)
        session.subscriptions.owe_retained(filter, None, session.account, self.node)
        if session.durable:
            ops.append(DropSubscription(session.client_id, filter))
        return ops

    def review(self, session: Session, rights: Rights, filter: str, *, is_first: bool) -> None:
        """Check a subscription against new rights of its session.

        If `is_first`, the session had no rights before and got all messages that matched.
        """
        if filter not in session.subscriptions:
            return
        if granted_qos(rights, filter) == NOTHING:
            for op in self._remove(session, filter):
                self.node.journal.note(op)
        elif parse_shared(filter) is None and not (
            is_first and rights.granted_qos(filter, shared=True) != NOTHING
        ):
            self._router.plans.changed(filter)

    def changed(self, change: "TableChange", now_s: float) -> None:
        """Answer after the commit, when all filters are done; until then it fills the window."""
        if change.is_to_wait:
            change.admit()
            self.node.when_durable(change.committed, now_s, change.inbound.session.client_id)
        else:
            change.committed(now_s)

    def _refusal(self, session: Session, filter: str) -> ReasonCode | None:
        """Return the reason code if this filter is rejected, else None."""
        limits = self.node.settings
        if levels_count(filter) > limits.session.topic_levels_max or _is_half_shared(filter):
            return ReasonCode.TOPIC_FILTER_INVALID
        authorizer = self._hooks.authorizer
        if authorizer is not None and not authorizer.may_subscribe(session.client_id, filter):
            return ReasonCode.NOT_AUTHORIZED
        if self.node.read_only and session.durable:
            self.node.counters.drop(Reason.STORE_FULL)
            return ReasonCode.QUOTA_EXCEEDED
        if filter in session.subscriptions:
            return None
        rights = session.rights
        quota = None if rights is None else rights.quotas.subscriptions_max
        if (
            len(session.subscriptions) >= limits.session.subscriptions_max
            or (quota is not None and len(session.subscriptions) >= quota)
            or self._router.queues.subscriptions_count >= limits.node.subscriptions_max
        ):
            return ReasonCode.QUOTA_EXCEEDED
        return None

    def _start_refusal(
        self, change: "Subscribing", filter: str, options: SubscriptionOptions
    ) -> ReasonCode | None:
        """Return the reason code if this filter cannot start in the past, else None.

        An existing subscription goes on.
        """
        since_s, session = change.since_s, change.inbound.session
        if change.is_unreadable:
            code, change.why = UNREADABLE
            return code
        if since_s is None or filter in session.subscriptions:
            return None
        router = self._router
        refused = refusal(
            self.node,
            self._hooks.authorizer,
            session,
            filter,
            options,
            since_s,
            has_log=router.plans.log_threshold > 0 or session.is_logged,
            has_peers=len(self.peers.by_name) > 0,
        )
        if refused is None:
            return None
        code, change.why = refused
        return code

    def read_log(self, session: Session) -> None:
        """Begin to read the log when subscriptions that start in the past are stored."""
        self._router.log.catch_up(session)

    def _no_room(self, session: Session, filter: str) -> ReasonCode | None:
        """Charge a new filter to the client's state; return a reason code if memory lacks."""
        if filter in session.subscriptions:
            return None
        reason = session.account.charge(subscription_bytes(filter), self.node)
        if reason is None:
            return None
        self.node.counters.drop(reason)
        return ReasonCode.QUOTA_EXCEEDED


def granted_qos(rights: Rights | None, filter: str) -> int:
    """Return the maximum QoS of a filter, shared or not, or NOTHING if it is not allowed."""
    if rights is None:
        return NOTHING
    shared = parse_shared(filter)
    if shared is None:
        return rights.granted_qos(filter)
    return rights.granted_qos(shared[1], shared=True)


def _wants_retained(filter: str, options: SubscriptionOptions, *, is_new: bool) -> bool:
    """Return True if a SUBSCRIBE gets retained messages; shared subscriptions do not (4.8.2).

    [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11]
    """
    if parse_shared(filter) is not None:
        return False
    return options.retain_handling == 0 or (options.retain_handling == 1 and is_new)


def version_of(session: Session) -> int:
    """Return the protocol version of the session's client, which must be connected."""
    assert session.outbound is not None
    return session.outbound.version


def check_filters(filters: Iterable[str], version: int) -> None:
    """Raise `MalformedPacket` if a filter breaks the grammar; nothing of that piece is done.

    0x8F is for well-formed filters that are rejected. MQTT 3.1.1 has no shared subscriptions, so an
    incomplete `$share/` filter is well-formed there.
    """
    for filter in filters:
        # [MQTT-4.7.1-1, MQTT-4.7.1-2] [v3 MQTT-4.7.1-2, v3 MQTT-4.7.1-3]
        if not valid_filter(filter):
            raise MalformedPacket("a topic filter with a wildcard where none may stand")
        if version == MQTT_5 and _is_half_shared(filter):
            # [MQTT-4.8.2-1, MQTT-4.8.2-2]
            raise MalformedPacket("a shared subscription without share name or topic filter")


def _is_half_shared(filter: str) -> bool:
    try:
        parse_shared(filter)
    except ValueError:
        return True
    return False
