"""The path of a PUBLISH inside a node: plan, operations, commit, delivery, acknowledgement.

A QoS 0 message is delivered in the same time slice. A message of QoS 1 or 2 takes positions in the
queues of its targets. It goes through the journal if anything about it must be durable, or if an
earlier message still waits for a commit. Then it enters queues, and its publisher is answered,
only after the commit.
"""

from typing import Final, final

from flowguard.config import PACKET_SIZE_MAX
from flowguard.errors import ProtocolViolation
from flowguard.flow import Cost, Reason
from flowguard.node.applications.applications import Applications
from flowguard.node.applications.lane import ApplicationLane
from flowguard.node.applications.log_readers import LogReaders, expiry_of
from flowguard.node.connect.authentication import Hooks
from flowguard.node.journal import Journal
from flowguard.node.peers.peers import Peers
from flowguard.node.publish.deliveries import (
    NO_MATCHING_SUBSCRIBERS,
    SUCCESS,
    Admitted,
    Deliveries,
    placed,
)
from flowguard.node.publish.fan_out import DELIVERY_BYTES, FanOut
from flowguard.node.publish.in_process import InProcess, appends
from flowguard.node.publish.incoming import Incoming
from flowguard.node.publish.plans import Plan, Plans, Table
from flowguard.node.publish.retaining import Retaining
from flowguard.node.shared.shared_queues import SharedQueues
from flowguard.records import PutInbound, Settle, StoreOp
from flowguard.routing import RetainedMessages
from flowguard.session.host import IN_PROCESS, WAITS
from flowguard.session.inbound.packets import Inbound
from flowguard.session.node_state import NodeState
from flowguard.session.session import Session
from flowguard.types import Publish, ReasonCode

UNSPECIFIED_ERROR: Final = ReasonCode.UNSPECIFIED_ERROR
"""The lowest reason code of a failure."""


@final
class Router:
    """Routes messages to the sessions that have subscribed to them."""

    def __init__(
        self,
        node: NodeState,
        journal: Journal,
        hooks: Hooks,
        lane: ApplicationLane,
    ) -> None:
        limits = node.settings
        self._node = node
        self.journal = journal
        self._hooks = hooks
        self.asks = hooks.authorizer is not None or hooks.rules is not None
        """True if an authorizer or rules decide which topics a client may publish to."""
        self.lane = lane
        self.table: Table = Table()
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
        self.peers = Peers(node, journal, self.plans.peer_routes)
        self.log = LogReaders(node, self.plans)
        self.applications = Applications(node, self.plans, self.log)
        self.queues = SharedQueues(
            node,
            self.plans,
            journal,
            self.log,
            self.applications,
            self.peers,
            lane.hand_over,
        )
        self.deliveries = Deliveries(
            node, journal, self.plans, self.log, self.queues, self.peers, self.cost
        )
        self.acknowledgements = self.deliveries.acknowledgements
        self.retained = RetainedMessages(
            messages_max=limits.node.retained_messages_max,
            bytes_max=node.bounds.retained_bytes,
        )
        self.retaining = Retaining(node, journal, self.retained, self.peers)

    def publish(self, inbound: Inbound, message: Publish, now_s: float) -> int:
        """Route a client's PUBLISH; see `Routing.publish`."""
        plans = self.plans
        plan = plans.by_topic.get(message.topic)
        if plan is None or plan.version != plans.version:
            plan = plans.find(message.topic)
        if plan.is_detour and (code := self._detour(inbound, plan, message, now_s)) is not None:
            return code
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
            self.deliveries.deliver_qos_0(plan, message, session, now_s)
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
            return self.deliveries.deliver_solo(plan.solo, message, session, now_s)
        return self.deliveries.deliver_now(plan, message, session, now_s)

    def _publish_durably(self, inbound: Inbound, plan: Plan, message: Publish, now_s: float) -> int:
        """Route through the journal, unless the message has no commit to wait for."""
        session, deliveries = inbound.session, self.deliveries
        if self._node.read_only:
            refused = self._admit_durably(session, plan, message)
            if refused is not None:
                return refused
        admitted: list[Admitted] = []
        complete = deliveries.admit(admitted, plan, message, session, now_s)
        code: int = NO_MATCHING_SUBSCRIBERS if plan.is_empty else SUCCESS
        if not complete:
            code = deliveries.answer(session, message, code)
        cost = self.cost.of(plan.deliveries, len(message.payload), plan.ops)
        incoming = Incoming(inbound, message, now_s, cost)
        if self.lane.takes(deliveries, incoming, plan, admitted, code):
            self.acknowledgements.at_once_count -= 1
            return IN_PROCESS
        targets = placed(admitted)
        ops = appends(targets)
        if plan.logs:
            ops.append(self.log.append(session.client_id, message, now_s))
        if message.qos == 2 and session.durable and code < UNSPECIFIED_ERROR:
            ops.append(PutInbound(session.client_id, message.packet_id))
        relay = None
        if plan.peers or message.retain:
            relay = self.peers.relay(plan, message, session.client_id, ops, now_s)
        is_stored = bool(ops) or message.retain or self._waits_here(inbound, plan)
        if not is_stored and relay is None:
            complete = deliveries.deliver_to(targets, now_s)
            return code if complete else deliveries.answer(session, message, code)
        inbound.window.admit(incoming.cost, incoming.size_bytes)
        pending = InProcess(deliveries, incoming, targets, code, relay=relay)
        if is_stored:
            pending.enter(ops, now_s, plan.heavy_count)
        else:
            pending.enter_peers(now_s)
        self.acknowledgements.at_once_count -= 1
        return IN_PROCESS

    def _waits_here(self, inbound: Inbound, plan: Plan) -> bool:
        """Return True if a message without operations must keep its place in the journal.

        A message for peers alone keeps its place without the journal if it is behind one that waits
        for peers.
        """
        if not inbound.must_wait:
            return False
        return not plan.is_for_peers or inbound not in self.peers.ordered_answers.orders

    def _detour(self, inbound: Inbound, plan: Plan, message: Publish, now_s: float) -> int | None:
        """Return the answer if a message waits for links or has many subscribers, else None."""
        if not self.peers.has_capacity(plan, inbound, message):
            return WAITS
        if plan.is_wide:
            return self._publish_widely(inbound, plan, message, now_s)
        cost = self.cost.of(plan.deliveries, len(message.payload), plan.ops)
        if message.qos and not inbound.window.fits(cost, self.peers.window(plan)):
            return WAITS
        return None

    def _publish_widely(self, inbound: Inbound, plan: Plan, message: Publish, now_s: float) -> int:
        """Deliver a message piece by piece.

        It fills its client's window until all subscribers have it. So no other message of its
        client is in process, and their order needs no further care.
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
        incoming = Incoming(inbound, message, now_s, cost, held_bytes)
        wide = FanOut(self.deliveries, self.lane, incoming, plan, is_queued=lasts)
        node.chores.add(wide.step, wide.failed)
        return IN_PROCESS

    def _admit_durably(self, session: Session, plan: Plan, message: Publish) -> ReasonCode | None:
        """Return the reason code if the disk is full, else None.

        The message of a 3.1.1 client waits instead.
        """
        if not (plan.durable or (message.qos == 2 and session.durable)):
            return None
        refused = self.deliveries.refusal_to(session, message)
        if refused is not None:
            self._node.counters.drop(Reason.STORE_FULL)
        return refused

    def _admit(
        self, session: Session, plan: Plan, message: Publish, now_s: float
    ) -> ReasonCode | None:
        """Check topic, size, permission and retained messages; return a reason code or None."""
        if plan.refused is not None:
            self._reject(session, message.topic, Reason.TOPIC_REFUSED, now_s)
            return plan.refused
        if len(message.payload) > self.payload_bytes_max:
            self._reject(session, message.topic, Reason.PAYLOAD_TOO_LARGE, now_s)
            return ReasonCode.QUOTA_EXCEEDED
        if self.asks and not self.may_publish(session, message):
            self._reject(session, message.topic, Reason.NOT_AUTHORIZED, now_s)
            return ReasonCode.NOT_AUTHORIZED
        if not message.retain:
            return None
        if self._node.read_only:
            self._node.counters.drop(Reason.STORE_FULL)
            return self.deliveries.refusal_to(session, message)
        if not self._node.settings.session.retain_available:
            # [MQTT-3.2.2-14]
            raise ProtocolViolation("no retain here", ReasonCode.RETAIN_NOT_SUPPORTED)
        if self.retaining.keep(message, expiry_of(message, now_s)):
            return None
        return self.deliveries.refusal_to(session, message)

    def _reject(self, session: Session, topic: str, reason: Reason, now_s: float) -> None:
        self._node.rejections.publish(session.client_id, session.user, topic, reason, now_s)

    def may_publish(self, session: Session, message: Publish) -> bool:
        """Return True if rules and authorizer, if configured, let a client publish it."""
        return self._hooks.may_publish(session, message, self._node)

    def publish_own(self, message: Publish, now_s: float, settle: Settle | None = None) -> None:
        """Publish a message of the node: `$SYS`, a will, or the replacement of a settled message.

        Operations that are noted in the same time slice become durable with it.
        """
        if message.retain:
            self.retaining.keep(message, expiry_of(message, now_s))
        system = message.topic.startswith("$SYS/")
        plan = self.plans.make(message.topic) if system else self.plans.find(message.topic)
        if plan.is_wide:
            incoming = Incoming(None, message, now_s)
            wide = FanOut(self.deliveries, self.lane, incoming, plan, settle=settle)
            self._node.chores.add(wide.step, wide.failed)
        else:
            self.route_own(plan, message, now_s, settle)

    def route_own(
        self,
        plan: Plan,
        message: Publish,
        now_s: float,
        settle: Settle | None,
        *,
        is_local: bool = False,
    ) -> None:
        """Route a message of the node to the targets of a plan; if `is_local`, not to peers."""
        admitted: list[Admitted] = []
        self.deliveries.admit(admitted, plan, message, None, now_s)
        ops: list[StoreOp] = []
        then = self.lane.owe(self.deliveries, message, admitted, ops, settle)
        targets = placed(admitted)
        ops += appends(targets)
        if plan.logs and message.qos:
            ops.append(self.log.append("", message, now_s))
        relay = None if is_local else self.peers.relay_own(plan, message, ops, now_s)
        incoming = Incoming(None, message, now_s)
        pending = InProcess(self.deliveries, incoming, targets, SUCCESS, then=then, relay=relay)
        pending.enter(ops, now_s, plan.heavy_count)
