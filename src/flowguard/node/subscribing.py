"""SUBSCRIBE and UNSUBSCRIBE: limits, the table, the answer, retained messages."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, final

from flowguard.codec.packets import Suback, Subscribe, Unsuback, Unsubscribe
from flowguard.node.authentication import Hooks
from flowguard.node.journal import Journal
from flowguard.node.publishing import Router, retained_delivery
from flowguard.records import Delivery, DropSubscription, PutSubscription, StoreOp
from flowguard.routing import levels_count, parse_shared, valid_filter
from flowguard.session.inbound import Inbound
from flowguard.session.session import Session
from flowguard.session.state import subscription_bytes
from flowguard.types import ReasonCode, SubscriptionOptions

if TYPE_CHECKING:
    from flowguard.session.host import Host


@final
class Subscriber:
    """Changes the subscription table for clients, and tells them."""

    __slots__ = ("_hooks", "_host", "_journal", "_router")

    def __init__(self, host: "Host", router: Router, journal: Journal, hooks: Hooks) -> None:
        self._host = host
        self._router = router
        self._journal = journal
        self._hooks = hooks

    def subscribe(self, inbound: Inbound, packet: Subscribe, now_s: float) -> None:
        """See `Host.subscribe`; the table changes at once, the answer waits for the commit."""
        session = inbound.session
        codes: list[int] = []
        ops: list[StoreOp] = []
        replays: list[tuple[str, SubscriptionOptions]] = []
        qos_max = self._host.settings.session.maximum_qos
        for filter, asked in packet.filters:
            options = asked if asked.qos <= qos_max else replace(asked, qos=qos_max)
            refused = self._refusal(session, filter) or self._no_room(session, filter)
            if refused is not None:
                codes.append(refused)
                continue
            is_new, more = self._router.queues.subscribe(filter, session, options)
            ops += more
            session.subscriptions[filter] = options
            codes.append(options.qos)
            if session.durable:
                ops.append(PutSubscription(session.client_id, filter, options))
            if _wants_retained(filter, options, is_new=is_new):
                replays.append((filter, options))
        answer = Suback(packet.packet_id, tuple(codes))

        def done(now_s: float) -> None:
            inbound.answered(answer)
            outbound = session.outbound
            if outbound is not None:
                for filter, options in replays:
                    if filter in session.subscriptions:
                        outbound.replay(filter, self._retained(filter, options, now_s))
                if session.membership is not None:
                    session.membership.tell(session, outbound, now_s)

        size_bytes = sum(len(filter) for filter, _ in packet.filters)
        self._when_durable(inbound, size_bytes, ops, done, now_s)

    def unsubscribe(self, inbound: Inbound, packet: Unsubscribe, now_s: float) -> None:
        """See `Host.unsubscribe`."""
        session = inbound.session
        codes: list[int] = []
        ops: list[StoreOp] = []
        for filter in packet.filters:
            if session.subscriptions.pop(filter, None) is None:
                codes.append(ReasonCode.NO_SUBSCRIPTION_EXISTED)
                continue
            session.charge_state(-subscription_bytes(filter), self._host)
            ops += self._router.queues.unsubscribe(filter, session)
            if session.outbound is not None:
                session.outbound.stop_replay(filter)
            codes.append(ReasonCode.SUCCESS)
            if session.durable:
                ops.append(DropSubscription(session.client_id, filter))
        answer = Unsuback(packet.packet_id, tuple(codes))
        size_bytes = sum(map(len, packet.filters))
        self._when_durable(inbound, size_bytes, ops, lambda now_s: inbound.answered(answer), now_s)

    def _when_durable(
        self,
        inbound: Inbound,
        size_bytes: int,
        ops: list[StoreOp],
        done: Callable[[float], None],
        now_s: float,
    ) -> None:
        """Until the commit the packet counts against its client's window."""
        if not ops and not self._host.must_wait(inbound):
            done(now_s)
            return
        inbound.window.admit(1, size_bytes)

        def committed(now_s: float) -> None:
            done(now_s)
            inbound.settle(1, size_bytes)

        self._journal.append(ops, committed, now_s)

    def _refusal(self, session: Session, filter: str) -> ReasonCode | None:
        """Why this filter is not subscribed; None: it is."""
        limits = self._host.settings
        try:
            parse_shared(filter)
        except ValueError:
            return ReasonCode.TOPIC_FILTER_INVALID  # [MQTT-4.8.2-1] [MQTT-4.8.2-2]
        if not valid_filter(filter) or levels_count(filter) > limits.session.topic_levels_max:
            return ReasonCode.TOPIC_FILTER_INVALID  # [MQTT-4.7.1-1]
        authorizer = self._hooks.authorizer
        if authorizer is not None and not authorizer.may_subscribe(session.client_id, filter):
            return ReasonCode.NOT_AUTHORIZED
        if self._host.read_only and session.durable:
            return ReasonCode.QUOTA_EXCEEDED
        if filter in session.subscriptions:
            return None
        if (
            len(session.subscriptions) >= limits.session.subscriptions_max
            or len(self._router.table) >= limits.node.subscriptions_max
        ):
            return ReasonCode.QUOTA_EXCEEDED
        return None

    def _no_room(self, session: Session, filter: str) -> ReasonCode | None:
        """Charge a new filter to the client's state; why that cannot be."""
        if filter in session.subscriptions:
            return None
        reason = session.charge_state(subscription_bytes(filter), self._host)
        if reason is None:
            return None
        self._host.counters.drop(reason)
        return ReasonCode.QUOTA_EXCEEDED

    def _retained(
        self, filter: str, options: SubscriptionOptions, now_s: float
    ) -> Iterator[Delivery | None]:
        """Retained messages for a subscription, and None after each slice of searching."""
        retained = self._router.retained
        for entries in retained.slices(filter, now_s):
            for entry in entries:
                # Replaced while the client was slow: it has got the new one as a live message.
                if retained.holds(entry):
                    yield retained_delivery(
                        entry.publish, options.qos, options.identifier, entry.expires_at_s
                    )
            yield None


def _wants_retained(filter: str, options: SubscriptionOptions, *, is_new: bool) -> bool:
    """[MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11]; shared subscriptions get none (4.8.2)."""
    if parse_shared(filter) is not None:
        return False
    return options.retain_handling == 0 or (options.retain_handling == 1 and is_new)
