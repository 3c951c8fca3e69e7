"""The path of a PUBLISH inside a node: plan, operations, commit, delivery, acknowledgement.

QoS 0 is delivered in the same stretch. QoS 1 and 2 take positions in the queues of their targets,
and if anything about them must be durable (or is still waiting to be) they go through the journal:
they enter queues, and their publisher is answered, only after the commit.
"""

from typing import Final, final

from flowguard.codec.encoder import publish_qos_0_frame
from flowguard.config import PACKET_SIZE_MAX
from flowguard.errors import ProtocolViolation
from flowguard.flow import Cost, FairBudget, Reason
from flowguard.node.applications.apart import Admitted, Apart
from flowguard.node.applications.applications import Applications
from flowguard.node.applications.log_readers import LogReaders, expiry_of
from flowguard.node.applications.owed import Owed, owe
from flowguard.node.connect.authentication import Hooks
from flowguard.node.journal import Journal
from flowguard.node.publish.acknowledgements import Acknowledgements
from flowguard.node.publish.fan_out import DELIVERY_BYTES, FanOut
from flowguard.node.publish.grouping import Group
from flowguard.node.publish.in_process import InProcess, Staged, Target, appends, placed
from flowguard.node.publish.plans import Plan, Plans, Shared, Table
from flowguard.node.shared.shared_queues import SharedQueues
from flowguard.records import (
    NEVER_S,
    Delivery,
    DropRetained,
    PutInbound,
    PutRetained,
    Settle,
    StoreOp,
)
from flowguard.routing import RetainedMessages, RetainOutcome
from flowguard.session.host import IN_PROCESS, WAITS
from flowguard.session.inbound import Inbound
from flowguard.session.node_state import NodeState
from flowguard.session.owner import MessageSink, admit_message
from flowguard.session.session import Session
from flowguard.types import MQTT_5, NO_PROPERTIES, Publish, ReasonCode

# Looking an enum's member up costs as much as routing does: hot paths use plain names.
SUCCESS: Final = ReasonCode.SUCCESS
NO_MATCHING_SUBSCRIBERS: Final = ReasonCode.NO_MATCHING_SUBSCRIBERS
UNSPECIFIED_ERROR: Final = ReasonCode.UNSPECIFIED_ERROR
"""From here on a reason code is a refusal."""


@final
class Router:
    """Takes messages in and gives them to the sessions that want them."""

    def __init__(
        self, node: NodeState, journal: Journal, hooks: Hooks, queue_budget: FairBudget
    ) -> None:
        limits = node.settings
        self._node = node
        self.journal = journal
        self._hooks = hooks
        self.asks = hooks.authorizer is not None or hooks.rules is not None
        """Whether somebody decides who may publish what."""
        self.apart: Apart | None = None
        self.owed: Owed | None = None
        self.table: Table = Table()
        self.acknowledgements = Acknowledgements()
        self.cost = Cost(limits.flow)
        largest = limits.session.payload_bytes_max
        self.payload_bytes_max = PACKET_SIZE_MAX if largest is None else largest
        self.plans = Plans(
            self.table,
            self.cost,
            levels_max=limits.session.topic_levels_max,
            bytes_max=node.bounds.plans_bytes,
        )
        self.plans.asks_rights = hooks.rules is not None
        self.log = LogReaders(node, self.plans)
        self.applications = Applications(node, self.plans, self.log)
        self.queues = SharedQueues(
            node, self.table, self.plans, journal, self.log, self.applications, queue_budget
        )
        self.retained = RetainedMessages(
            messages_max=limits.node.retained_messages_max,
            bytes_max=node.bounds.retained_bytes,
        )

    def publish(self, inbound: Inbound, message: Publish, now_s: float) -> int:
        """A client's PUBLISH; see `Routing.publish`."""
        plans = self.plans
        plan = plans.by_topic.get(message.topic)
        if plan is None or plan.version != plans.version:
            plan = plans.find(message.topic)
        if plan.is_wide:
            return self._publish_widely(inbound, plan, message, now_s)
        size_bytes = len(message.payload)
        if (
            message.qos
            and (plan.is_heavy or size_bytes >= self.cost.unit_bytes)
            and not inbound.window.fits(self.cost.of(plan.deliveries, size_bytes, plan.ops))
        ):
            return WAITS
        counters = self._node.counters
        counters.publish_received += 1
        counters.publish_bytes_received += size_bytes
        session = inbound.session
        if (
            message.retain
            or self.asks
            or plan.refused is not None
            or size_bytes > self.payload_bytes_max
        ):
            refused = self._admit(session, plan, message, now_s)
            if refused is not None:
                self.acknowledgements.at_once(message.qos, now_s)
                return refused
        if plan.extra:
            inbound.extra += plan.extra
        if message.qos == 0:
            self.deliver_qos_0(plan, message, session, now_s)
            return SUCCESS
        acknowledgements = self.acknowledgements
        acknowledgements.at_once_count += 1
        acknowledgements.since_s = now_s
        if (
            plan.durable
            or session.durable
            or message.retain
            or (inbound.window.in_process and not self.journal.is_idle)
        ):
            return self._publish_durably(inbound, plan, message, now_s)
        if plan.solo is not None and message.qos == plan.burst_qos:
            return self._deliver_solo(plan.solo, message, session, now_s)
        return self.deliver_now(plan, message, session, now_s)

    def _publish_durably(self, inbound: Inbound, plan: Plan, message: Publish, now_s: float) -> int:
        """Through the journal, unless it turns out that there is nothing to wait for."""
        session = inbound.session
        if self._node.read_only:
            refused = self._admit_durably(session, plan, message)
            if refused is not None:
                return refused
        admitted: list[Admitted] = []
        complete = self.admit(admitted, plan, message, session, now_s)
        code: int = NO_MATCHING_SUBSCRIBERS if plan.is_empty else SUCCESS
        if not complete:
            code = self.answer(session, message, code)
        apart = self.apart
        if apart is not None and apart.concerns(inbound, admitted):
            Staged(self, self.journal, apart, inbound, plan, message, admitted, code).begin(now_s)
            self.acknowledgements.at_once_count -= 1
            return IN_PROCESS
        targets = placed(admitted)
        ops = appends(targets)
        if plan.logs:
            ops.append(self.log.append(session.client_id, message, now_s))
        if message.qos == 2 and session.durable and code < UNSPECIFIED_ERROR:
            ops.append(PutInbound(session.client_id, message.packet_id))
        if not ops and not message.retain and not inbound.must_wait:
            return code if self.deliver_to(targets, now_s) else self.answer(session, message, code)
        size_bytes = len(message.payload)
        cost = self.cost.of(plan.deliveries, size_bytes, plan.ops)
        inbound.window.admit(cost, size_bytes)
        pending = InProcess(self, inbound, message, targets, code, now_s, cost)
        pending.enter(self.journal, ops, now_s, plan.heavy_count)
        self.acknowledgements.at_once_count -= 1
        return IN_PROCESS

    def _publish_widely(self, inbound: Inbound, plan: Plan, message: Publish, now_s: float) -> int:
        """Piece by piece: it fills its client's window until everybody has it.

        So there is nothing of its client that it would have to keep its place behind.
        """
        node, session = self._node, inbound.session
        size_bytes = len(message.payload)
        cost = max(node.window.limit_max, self.cost.of(plan.deliveries, size_bytes, plan.ops))
        if not inbound.window.fits(cost):
            return WAITS
        node.counters.publish_received += 1
        node.counters.publish_bytes_received += size_bytes
        refused = self._admit(session, plan, message, now_s)
        lasts = message.qos > 0 and (plan.durable or session.durable or message.retain)
        if refused is None and lasts and node.read_only:
            refused = self._admit_durably(session, plan, message)
        if refused is not None:
            self.acknowledgements.at_once(message.qos, now_s)
            return refused
        held_bytes = size_bytes + DELIVERY_BYTES * plan.deliveries
        if plan.making is not None:
            held_bytes += plan.size_bytes
        inbound.window.admit(cost, held_bytes)
        node.chores.add(
            FanOut(
                self,
                node,
                self.journal,
                inbound,
                plan,
                message,
                now_s,
                cost=cost,
                size_bytes=held_bytes,
                is_queued=lasts,
            )
        )
        return IN_PROCESS

    def _admit_durably(self, session: Session, plan: Plan, message: Publish) -> ReasonCode | None:
        """Refuse what a full disk is in the way of. A 3.1.1 client's message waits instead."""
        if not (plan.durable or (message.qos == 2 and session.durable)):
            return None
        refused = self._refusal_to(session, message)
        if refused is not None:
            self._node.counters.drop(Reason.DISK_FULL)
        return refused

    def _admit(
        self, session: Session, plan: Plan, message: Publish, now_s: float
    ) -> ReasonCode | None:
        """Check what few messages break: topic, size, permission, a place among the retained."""
        if plan.refused is not None:
            self._node.reject_publish(session.client_id, message.topic, Reason.TOPIC_REFUSED)
            return plan.refused
        if len(message.payload) > self.payload_bytes_max:
            self._node.reject_publish(session.client_id, message.topic, Reason.PAYLOAD_TOO_LARGE)
            return ReasonCode.QUOTA_EXCEEDED
        if self.asks and not self.may_publish(session, message):
            self._node.reject_publish(session.client_id, message.topic, Reason.NOT_AUTHORIZED)
            return ReasonCode.NOT_AUTHORIZED
        if not message.retain:
            return None
        if self._node.read_only:
            self._node.counters.drop(Reason.DISK_FULL)
            return self._refusal_to(session, message)
        if not self._node.settings.session.retain_available:
            # [MQTT-3.2.2-14]
            raise ProtocolViolation("no retain here", ReasonCode.RETAIN_NOT_SUPPORTED)
        return None if self._retain(message, now_s) else self._refusal_to(session, message)

    def _refusal_to(self, session: Session, message: Publish) -> ReasonCode | None:
        """Only a 5.0 publisher can be told, and can try again; others' is at least forwarded."""
        outbound = session.outbound
        told = message.qos and outbound is not None and outbound.version == MQTT_5
        return ReasonCode.QUOTA_EXCEEDED if told else None

    def answer(self, session: Session, message: Publish, code: int) -> int:
        """Instead of `code`, where somebody who keeps up goes without the message."""
        refused = self._refusal_to(session, message)
        return code if refused is None else refused

    @property
    def is_fenced(self) -> bool:
        """Whether some of the batch being answered was for sessions that are another's."""
        return self._node.fenced

    def note(self, op: StoreOp) -> None:
        """The store is to know it with one of the next commits."""
        self.journal.note(op)

    def may_publish(self, session: Session, message: Publish) -> bool:
        """Whether rules and authorizer, as far as there are any, let a client publish it."""
        return self._hooks.may_publish(session, message, self._node)

    def publish_own(self, message: Publish, now_s: float, settle: Settle | None = None) -> None:
        """The node's own: `$SYS`, a will, or instead of the one that is settled.

        What is noted in the same stretch becomes durable with it.
        """
        if message.retain:
            self._retain(message, now_s)
        system = message.topic.startswith("$SYS/")
        plan = self.plans.make(message.topic) if system else self.plans.find(message.topic)
        if plan.is_wide:
            node, journal = self._node, self.journal
            node.chores.add(FanOut(self, node, journal, None, plan, message, now_s, settle=settle))
        else:
            self.route_own(plan, message, now_s, settle)

    def route_own(self, plan: Plan, message: Publish, now_s: float, settle: Settle | None) -> None:
        """The node's own, to those of a plan."""
        admitted: list[Admitted] = []
        self.admit(admitted, plan, message, None, now_s)
        ops: list[StoreOp] = []
        then = owe(self.owed, message, admitted, ops, settle)
        targets = placed(admitted)
        ops += appends(targets)
        if plan.logs and message.qos:
            ops.append(self.log.append("", message, now_s))
        pending = InProcess(self, None, message, targets, SUCCESS, now_s, then=then)
        pending.enter(self.journal, ops, now_s, plan.heavy_count)

    def _retain(self, message: Publish, now_s: float) -> bool:
        """Keep, replace or remove the retained message [MQTT-3.3.1-5] [MQTT-3.3.1-6].

        False: there is no room for it. The one it was to replace is gone all the same: nobody
        should take it for the last one.
        """
        expires_at_s = expiry_of(message, now_s)
        outcome = self.retained.put(message, expires_at_s)
        if outcome.is_refusal:
            self._node.counters.drop(Reason.RETAINED_FULL)
            self.retained.discard(message.topic)
        if not message.topic.startswith("$SYS/"):
            kept = outcome is RetainOutcome.KEPT
            put = PutRetained(message, expires_at_s)
            self.journal.note(put if kept else DropRetained(message.topic))
        return not outcome.is_refusal

    # --- delivery ----------------------------------------------------------------------------

    def deliver_qos_0(self, plan: Plan, message: Publish, origin: Session, now_s: float) -> None:
        """To everybody who is connected; a frame without options is the same for all of them."""
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
        if plan.shared or plan.own:
            self._deliver_rest(plan, message, origin, now_s)

    def _deliver_rest(self, plan: Plan, message: Publish, origin: Session, now_s: float) -> bool:
        """To those that few plans have; see `deliver_to`."""
        admitted: list[Admitted] = []
        complete = self._own(admitted, plan.own, message, origin, now_s)
        complete &= self._shared(admitted, plan.shared, message, now_s)
        return self.deliver_to(placed(admitted), now_s) and complete

    def _deliver_solo(
        self, session: Session, message: Publish, origin: Session, now_s: float
    ) -> int:
        """`deliver_now` at QoS 1 for a `Plan.solo`."""
        expires_at_s = NEVER_S
        if message.properties is not NO_PROPERTIES:
            expires_at_s = expiry_of(message, now_s)
        delivery = Delivery(message, 1, False, (), expires_at_s)
        pos = session.next_pos
        session.next_pos = pos + 1
        outbound = session.outbound
        if outbound is not None and not outbound.has_more and outbound.send(pos, delivery, now_s):
            return SUCCESS
        if session.wait(pos, delivery, self._node, now_s):
            return SUCCESS
        return self.answer(origin, message, SUCCESS)

    def deliver_now(self, plan: Plan, message: Publish, origin: Session, now_s: float) -> int:
        """Route and deliver in one stretch, without a list of targets; the code to answer."""
        node = self._node
        complete = True
        expires_at_s = NEVER_S
        if message.properties is not NO_PROPERTIES:
            expires_at_s = expiry_of(message, now_s)
        for group in plan.groups:
            qos = group.qos if group.qos < message.qos else message.qos
            retain = message.retain and group.retain_as_published
            delivery = Delivery(message, qos, retain, group.identifiers, expires_at_s)
            for session in group.sessions:
                if session is origin and group.no_local:
                    continue  # [MQTT-3.8.3-3]
                outbound = session.outbound
                if qos:
                    pos = session.next_pos
                    session.next_pos = pos + 1
                    if (
                        outbound is None
                        or outbound.has_more
                        or not outbound.send(pos, delivery, now_s)
                    ):
                        complete &= session.wait(pos, delivery, node, now_s)
                elif outbound is not None:
                    outbound.send_qos_0(delivery, now_s)
        if plan.shared or plan.own:
            complete &= self._deliver_rest(plan, message, origin, now_s)
        if complete:
            return NO_MATCHING_SUBSCRIBERS if plan.is_empty else SUCCESS
        return self.answer(origin, message, SUCCESS)

    def deliver_to(self, targets: list[Target], now_s: float) -> bool:
        """Give a message to targets whose positions are taken already.

        False: somebody who keeps up goes without it.
        """
        complete = True
        for owner, pos, delivery in targets:
            if pos:
                complete &= owner.offer(pos, delivery, self._node, now_s)
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
        """Add to `admitted` who gets it, and has a place for it now; see `deliver_to`."""
        complete = True
        logs = plan.logs and message.qos > 0
        expires_at_s = expiry_of(message, now_s)
        for group in plan.groups:
            qos = min(message.qos, group.qos)
            retain = message.retain and group.retain_as_published
            delivery = Delivery(message, qos, retain, group.identifiers, expires_at_s)
            for session in group.sessions:
                if logs and qos and session.reads_log:
                    session.behind = True
                elif session is not origin or not group.no_local:  # [MQTT-3.8.3-3]
                    complete &= self._admit_to(admitted, session, delivery, now_s, logs)
        if not logs or origin is None or not origin.reads_log:
            complete &= self._own(admitted, plan.own, message, origin, now_s, logs)
        return self._shared(admitted, plan.shared, message, now_s, logs) and complete

    def _own(
        self,
        admitted: list[Admitted],
        groups: list[Group],
        message: Publish,
        origin: Session | None,
        now_s: float,
        logs: bool = False,
    ) -> bool:
        """The publisher itself, where only some of its subscriptions have No Local."""
        complete = True
        for group in groups:
            if origin is not None and origin in group.sessions:
                qos = min(message.qos, group.qos)
                retain = message.retain and group.retain_as_published
                expires_at_s = expiry_of(message, now_s)
                delivery = Delivery(message, qos, retain, group.identifiers, expires_at_s)
                complete &= self._admit_to(admitted, origin, delivery, now_s, logs)
        return complete

    def _shared(
        self,
        admitted: list[Admitted],
        groups: list[Shared],
        message: Publish,
        now_s: float,
        logs: bool = False,
    ) -> bool:
        """The queue of each shared group, or where there is none one of its members."""
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
                    self._node.counters.drop(Reason.OFFLINE_QOS_0)
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
        """A place in the queue of `owner`, if there is one: what goes on has been counted.

        With `logs` the message is about to be logged: who keeps all has it there.
        """
        if owner.ended:
            return True  # Its subscriptions are about to leave the table.
        if logs and owner.is_logged and delivery.qos:
            if not self.log.falls_behind(owner, delivery.size_bytes, now_s):
                admitted.append((owner, delivery))
            return True
        if delivery.qos and (owner.durable or self._node.blocks):
            reason = admit_message(owner, delivery.size_bytes, self._node, now_s)
            if reason is not None:
                self._node.counters.drop(reason)
                return not owner.keeps_up
        admitted.append((owner, delivery))
        return True
