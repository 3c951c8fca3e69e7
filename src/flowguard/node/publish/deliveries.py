"""Deliveries: from a plan to the sessions and queues that get its message.

A QoS 0 message is sent at once. At QoS 1 and 2 each target first reserves a slot (`admit`) and
takes a position (`placed`). It gets the message after the commit (`deliver_to`). If nothing has to
be durable, all of it is one step (`deliver_now`).
"""

from typing import Final, final

from flowguard.codec.encoder import publish_qos_0_frame
from flowguard.flow import Cost, Reason
from flowguard.node.applications.log_readers import LogReaders, expiry_of
from flowguard.node.journal import Journal
from flowguard.node.peers.peers import Peers
from flowguard.node.publish.acknowledgements import Acknowledgements
from flowguard.node.publish.grouping import Group
from flowguard.node.publish.plans import Plan, Plans, Shared
from flowguard.node.shared.shared_queues import SharedQueues
from flowguard.records import Delivery
from flowguard.session.node_state import NodeState
from flowguard.session.owner import MessageSink, admit_message
from flowguard.session.session import Session
from flowguard.types import MQTT_5, Publish, ReasonCode

# Looking an enum's member up costs as much as routing does: hot paths use plain names.
SUCCESS: Final = ReasonCode.SUCCESS
NO_MATCHING_SUBSCRIBERS: Final = ReasonCode.NO_MATCHING_SUBSCRIBERS
Admitted = tuple[MessageSink, Delivery]
"""An owner and the message for which it has a slot."""
Target = tuple[MessageSink, int, Delivery]
"""An owner, the position and the message; position 0 for QoS 0, which is never queued."""


def placed(admitted: list[Admitted]) -> list[Target]:
    """Take positions for all targets together, as a store accepts them in ascending order only.

    A slot for one target may have published dead letters to another before.
    """
    return [
        (owner, owner.take_position() if delivery.qos else 0, delivery)
        for owner, delivery in admitted
    ]


@final
class Deliveries:
    """One per node."""

    def __init__(
        self,
        node: NodeState,
        journal: Journal,
        plans: Plans,
        log: LogReaders,
        queues: SharedQueues,
        peers: Peers,
        cost: Cost,
    ) -> None:
        self.node = node
        self.journal = journal
        self.plans = plans
        self.log = log
        self.queues = queues
        self.peers = peers
        self.cost = cost
        self.acknowledgements = Acknowledgements()

    def refusal_to(self, session: Session, message: Publish) -> ReasonCode | None:
        """Return the reason code of a failure, or None if a client can get none (QoS 0, 3.1.1)."""
        outbound = session.outbound
        told = message.qos and outbound is not None and outbound.version == MQTT_5
        return ReasonCode.QUOTA_EXCEEDED if told else None

    def answer(self, session: Session, message: Publish, code: int) -> int:
        """Return the code to answer if a client that keeps up misses the message."""
        refused = self.refusal_to(session, message)
        return code if refused is None else refused

    def deliver_qos_0(
        self, plan: Plan, message: Publish, origin: Session | None, now_s: float
    ) -> None:
        """Send it to all connected clients; a frame without options is the same for all.

        `origin` is the publisher, or None if a peer forwards the message.
        """
        frame = b""
        size_bytes = len(message.payload)
        for group in plan.groups:
            delivery: Delivery | None = None
            for session in group.sessions:
                outbound = session.outbound
                if outbound is None or (session is origin and group.no_local):
                    continue  # [MQTT-3.8.3-3]
                if outbound.version != MQTT_5:
                    frame = frame or publish_qos_0_frame(message)
                    outbound.send_frame(frame, size_bytes)
                    continue
                if delivery is None:
                    retain = message.retain and group.retain_as_published
                    expires_at_s = expiry_of(message, now_s)
                    delivery = Delivery(message, 0, retain, group.identifiers, expires_at_s)
                outbound.send_qos_0(delivery, now_s)
        if plan.has_more:
            if origin is not None:
                self.peers.send_qos_0(plan, message, origin.client_id, now_s)
            self._deliver_rest(plan, message, origin, now_s)

    def _deliver_rest(
        self, plan: Plan, message: Publish, origin: Session | None, now_s: float
    ) -> bool:
        """Deliver to shared groups and the publisher itself; see `deliver_to`."""
        admitted: list[Admitted] = []
        complete = self._own(admitted, plan.own, message, origin, now_s)
        complete &= self._shared(admitted, plan.shared, message, now_s)
        return self.deliver_to(placed(admitted), now_s) and complete

    def deliver_solo(
        self, session: Session, message: Publish, origin: Session, now_s: float
    ) -> int:
        """`deliver_now` at QoS 1 for a `Plan.solo`."""
        delivery = Delivery(message, 1, False, (), expiry_of(message, now_s))
        if self._deliver_at_once(session, delivery, now_s):
            return SUCCESS
        return self.answer(origin, message, SUCCESS)

    def deliver_now(self, plan: Plan, message: Publish, origin: Session, now_s: float) -> int:
        """Deliver in one time slice, without a list of targets, and return the code to answer."""
        complete = self._walk(None, plan.groups, message, origin, now_s)
        if plan.shared or plan.own:
            complete &= self._deliver_rest(plan, message, origin, now_s)
        if complete:
            return NO_MATCHING_SUBSCRIBERS if plan.is_empty else SUCCESS
        return self.answer(origin, message, SUCCESS)

    def deliver_to(self, targets: list[Target], now_s: float) -> bool:
        """Give a message to targets that have taken their positions.

        False if a client that keeps up misses it.
        """
        complete = True
        for owner, pos, delivery in targets:
            if pos:
                complete &= owner.offer(pos, delivery, self.node, now_s)
                continue
            assert isinstance(owner, Session)
            if owner.outbound is not None and owner.may_receive(delivery.message.topic):
                owner.outbound.send_qos_0(delivery, now_s)
        return complete

    def admit(
        self,
        admitted: list[Admitted],
        plan: Plan,
        message: Publish,
        origin: Session | None,
        now_s: float,
    ) -> bool:
        """Add the targets that have a slot for it to `admitted`; see `deliver_to`."""
        logs = plan.logs and message.qos > 0
        complete = self._walk(admitted, plan.groups, message, origin, now_s, logs)
        if not logs or origin is None or not origin.reads_log:
            complete &= self._own(admitted, plan.own, message, origin, now_s, logs)
        return self._shared(admitted, plan.shared, message, now_s, logs) and complete

    def _walk(
        self,
        admitted: list[Admitted] | None,
        groups: list[Group],
        message: Publish,
        origin: Session | None,
        now_s: float,
        logs: bool = False,
    ) -> bool:
        """Admit to the sessions of groups, or deliver to them at once if `admitted` is None."""
        complete = True
        expires_at_s = expiry_of(message, now_s)
        for group in groups:
            qos = group.qos if group.qos < message.qos else message.qos
            retain = message.retain and group.retain_as_published
            delivery = Delivery(message, qos, retain, group.identifiers, expires_at_s)
            for session in group.sessions:
                if logs and qos and session.reads_log:
                    session.behind = True
                elif session is origin and group.no_local:
                    continue  # [MQTT-3.8.3-3]
                elif admitted is not None:
                    complete &= self._admit_to(admitted, session, delivery, now_s, logs)
                else:
                    complete &= self._deliver_at_once(session, delivery, now_s)
        return complete

    def _deliver_at_once(self, session: Session, delivery: Delivery, now_s: float) -> bool:
        """Deliver a message that needs no store; see `deliver_to`."""
        outbound = session.outbound
        if not delivery.qos:
            if outbound is not None:
                outbound.send_qos_0(delivery, now_s)
            return True
        pos = session.next_pos
        session.next_pos = pos + 1
        if outbound is not None and not outbound.has_more and outbound.send(pos, delivery, now_s):
            return True
        return session.wait(pos, delivery, self.node, now_s)

    def _own(
        self,
        admitted: list[Admitted],
        groups: list[Group],
        message: Publish,
        origin: Session | None,
        now_s: float,
        logs: bool = False,
    ) -> bool:
        """Admit to the publisher itself, if only some of its subscriptions have No Local."""
        if origin is None or not groups:
            return True
        own = [group.part([origin]) for group in groups if origin in group.sessions]
        return self._walk(admitted, own, message, origin, now_s, logs)

    def _shared(
        self,
        admitted: list[Admitted],
        groups: list[Shared],
        message: Publish,
        now_s: float,
        logs: bool = False,
    ) -> bool:
        """Admit to the queue of each shared group, or to a member of a group without queue."""
        complete = True
        expires_at_s = expiry_of(message, now_s)
        whole = Delivery(message, message.qos, message.retain, (), expires_at_s)
        for group in groups:
            queue = self.queues.of(group)
            if queue is not None and message.qos:
                if logs and queue.reads_log:
                    queue.behind = True
                else:
                    complete &= self._admit_to(admitted, queue, whole, now_s, logs)
                continue
            chosen = self.queues.pick(group, message, expires_at_s, now_s)
            if chosen is None:
                if self.queues.spread.members_count(group):  # Not all are on other brokers.
                    self.node.counters.drop(Reason.OFFLINE_QOS_0)
            else:
                complete &= self._admit_to(admitted, *chosen, now_s)
        return complete

    def _admit_to(
        self,
        admitted: list[Admitted],
        owner: MessageSink,
        delivery: Delivery,
        now_s: float,
        logs: bool = False,
    ) -> bool:
        """Reserve a slot in the queue of `owner`, and add it to `admitted`.

        With `logs` the message is about to be logged, and applications find it there.
        """
        if owner.ended:
            return True  # The table is about to lose the subscriptions of this session.
        if logs and owner.is_logged and delivery.qos:
            if not self.log.falls_behind(owner, delivery.size_bytes, now_s):
                admitted.append((owner, delivery))
            return True
        if delivery.qos and (owner.durable or self.node.blocks):
            reason = admit_message(owner, delivery.size_bytes, self.node, now_s)
            if reason is not None:
                self.node.counters.drop(reason)
                return not owner.keeps_up
        admitted.append((owner, delivery))
        return True
