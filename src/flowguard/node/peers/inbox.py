"""Inbox: the messages of one peer, on their way to sessions of this node, in their order.

A message for many sessions is delivered piece by piece. Messages behind it wait, so that a mark is
never committed before a message below it.
"""

from collections import deque
from dataclasses import replace
from math import ceil
from typing import Final, final

from flowguard.cluster import NOT_OWED, LinkMessage
from flowguard.cluster.links import Then, nothing_waits
from flowguard.flow import Reason
from flowguard.node.journal import Journal
from flowguard.node.peers.messages import (
    APPLY,
    BEGINS,
    DELIVER,
    ENDS,
    NO_SHARES,
    ORDER,
    SHARED_ONLY,
    ForwardedMessage,
    decode_burst,
    decode_forwarded,
    encode_forwarded,
    is_burst,
)
from flowguard.node.peers.peer import Peer
from flowguard.node.peers.relay import PeerSource
from flowguard.node.peers.retained import RetainedSync
from flowguard.node.publish.bursts import Bursts
from flowguard.node.publish.deliveries import Admitted, placed
from flowguard.node.publish.fan_out import FanOut
from flowguard.node.publish.in_process import InProcess, appends
from flowguard.node.publish.incoming import Incoming
from flowguard.node.publish.plans import Plan
from flowguard.node.publish.publishing import Router
from flowguard.records import NEVER_S, StoreOp
from flowguard.session.node_state import NodeState
from flowguard.types import Publish, ReasonCode

SUCCESS: Final = ReasonCode.SUCCESS


@final
class Inbox:
    __slots__ = (
        "_bursts",
        "_entries",
        "_is_busy",
        "_journal",
        "_node",
        "_peer",
        "_peers",
        "_router",
        "_retained",
    )

    def __init__(
        self,
        node: NodeState,
        journal: Journal,
        router: Router,
        retained: RetainedSync,
        peer: Peer,
    ) -> None:
        self._node = node
        self._journal = journal
        self._router = router
        self._bursts = Bursts(node, router)
        self._peers = router.peers
        self._retained = retained
        self._peer = peer
        self._entries: deque[tuple[LinkMessage | None, Then | None]] = deque()
        """Messages, and what is called when those before it are committed."""
        self._is_busy = False
        """True while a message for many sessions is delivered."""

    def take(self, messages: list[LinkMessage], then: Then, now_s: float) -> None:
        """Route messages; `then` is called when they are committed."""
        self._entries.extend([(message, None) for message in messages])
        self._entries.append((None, then))
        self._run(now_s)

    def _go_on(self, now_s: float) -> None:
        """The message for many sessions has its place among all others."""
        self._is_busy = False
        self._run(now_s)

    def _run(self, now_s: float) -> None:
        entries = self._entries
        while entries and not self._is_busy:
            message, then = entries.popleft()
            if message is not None and is_burst(message.data):
                self._take_burst(message.data, now_s)
            elif message is not None:
                self._take(message, now_s)
            elif then is not None:
                self._answer(then, now_s)

    def _answer(self, then: Then, now_s: float) -> None:
        """Call `then` when everything before is durable."""
        if self._journal.is_empty:
            then(now_s)
        else:
            self._journal.append([], then, now_s)

    def _take(self, message: LinkMessage, now_s: float) -> None:
        forwarded = decode_forwarded(message.data)
        ops: list[StoreOp] = []
        if message.owed != NOT_OWED:
            ops.append(self._peer.put(message.owed))
        if forwarded.flags & DELIVER and forwarded.expires_at_s > now_s:
            if forwarded.flags & ORDER:
                self._router.retaining.keep(forwarded.message, forwarded.expires_at_s)
            self._route(forwarded, ops, now_s)
            return
        for op in ops:
            self._journal.note(op)
        if forwarded.flags & DELIVER:
            self._node.counters.drop(Reason.MESSAGE_EXPIRED)
        elif forwarded.flags & ORDER:
            self._router.retaining.keep(forwarded.message, forwarded.expires_at_s)
        elif forwarded.flags & APPLY:
            self._retained.applied(self._peer, forwarded.message, forwarded.expires_at_s)
        elif forwarded.flags & BEGINS:
            self._retained.begins(self._peer)
        elif forwarded.flags & ENDS:
            self._retained.ends(self._peer)

    # --- messages for sessions -------------------------------------------------------------------

    def _route(self, forwarded: ForwardedMessage, ops: list[StoreOp], now_s: float) -> None:
        deliveries, message = self._router.deliveries, live_message(forwarded, now_s)
        plan = self._plan(forwarded)
        relay = self._peers.pass_on(forwarded, plan, ops) if forwarded.shares else None
        if plan.is_wide:
            self._is_busy = True
            source = PeerSource(forwarded.publisher, ops, relay, self._go_on)
            self._fan_out(plan, message, now_s, source)
            return
        admitted: list[Admitted] = []
        deliveries.admit(admitted, plan, message, None, now_s)
        targets = placed(admitted)
        ops += appends(targets)
        if plan.logs:
            ops.append(deliveries.log.append(forwarded.publisher, message, now_s))
        pending = InProcess(
            deliveries, Incoming(None, message, now_s), targets, SUCCESS, relay=relay
        )
        if ops or not self._journal.is_empty:
            pending.enter(ops, now_s, plan.heavy_count)
        else:
            pending.committed(now_s)

    def deliver(self, data: bytes, now_s: float) -> None:
        """Route a QoS 0 message, or a burst of them."""
        if not is_burst(data):
            self._deliver(decode_forwarded(data), now_s)
            return
        burst, publisher = decode_burst(data)
        if not self._bursts.take(self._router.plans.find(burst.topic), burst, now_s):
            for each in burst.deliveries():
                message = Publish(burst.topic, each.message.payload)
                self._deliver(ForwardedMessage(DELIVER, message, NEVER_S, publisher, {}), now_s)

    def _take_burst(self, data: bytes, now_s: float) -> None:
        """Route a burst as one, or let its messages follow one by one."""
        burst, publisher = decode_burst(data)
        if self._bursts.take(self._router.plans.find(burst.topic), burst, now_s):
            return
        for each in reversed(burst.deliveries()):
            one = encode_forwarded(each.message, DELIVER, NEVER_S, publisher, NO_SHARES)
            self._entries.appendleft((LinkMessage(one), None))

    def _deliver(self, forwarded: ForwardedMessage, now_s: float) -> None:
        """Route a QoS 0 message."""
        if forwarded.expires_at_s <= now_s:
            self._node.counters.drop(Reason.MESSAGE_EXPIRED)
            return
        message = live_message(forwarded, now_s)
        plan = self._plan(forwarded)
        if forwarded.shares:
            self._peers.pass_on(forwarded, plan, [])
        if plan.is_wide:
            source = PeerSource(forwarded.publisher, [], None, nothing_waits)
            self._fan_out(plan, message, now_s, source)
        else:
            self._router.deliveries.deliver_qos_0(plan, message, None, now_s)

    def _fan_out(self, plan: Plan, message: Publish, now_s: float, source: PeerSource) -> None:
        deliveries, lane = self._router.deliveries, self._router.lane
        incoming = Incoming(None, message, now_s)
        wide = FanOut(deliveries, lane, incoming, plan, source=source)
        self._node.chores.add(wide.step, wide.failed)

    def _plan(self, forwarded: ForwardedMessage) -> Plan:
        """Return the plan, with the shared subscriptions that the message leaves to this node."""
        plan, own = self._router.plans.find(forwarded.message.topic), self._peers.name
        shared = [each for each in plan.shared if forwarded.server_of(each.share) == own]
        if forwarded.flags & SHARED_ONLY:
            return Plan([], shared, logs=plan.logs)
        if len(shared) == len(plan.shared):
            return plan
        while plan.making is not None:
            plan.making.step()
        return plan.with_shared(shared)


def live_message(forwarded: ForwardedMessage, now_s: float) -> Publish:
    """Return the message with the rest of its expiry interval [MQTT-3.3.2-6]."""
    message = forwarded.message
    if forwarded.expires_at_s == NEVER_S:
        return message
    left_s = max(1, ceil(forwarded.expires_at_s - now_s))
    properties = replace(message.properties, message_expiry_interval=left_s)
    return Publish(
        message.topic, message.payload, message.qos, message.retain, properties=properties
    )
