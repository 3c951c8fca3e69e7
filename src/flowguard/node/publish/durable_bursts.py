"""DurableBursts: a burst for one durable session, through the journal as one.

Each message of the burst is an operation of the store and takes a position. The burst is routed,
answered and sent together. After the commit the session may be unable to take the whole burst, as
its client has disconnected or has few free slots. Then the messages are delivered one by one.
"""

from typing import final

from flowguard.codec.burst import BURST_MIN, Burst
from flowguard.node.publish.deliveries import SUCCESS, Target
from flowguard.node.publish.in_process import InProcess
from flowguard.node.publish.incoming import Incoming
from flowguard.node.publish.plans import Plan
from flowguard.node.publish.publishing import Router
from flowguard.records import Append, Delivery, StoreOp
from flowguard.session.inbound.packets import Inbound
from flowguard.session.node_state import NodeState
from flowguard.session.outbound.dispatch import are_free
from flowguard.session.owner import own_queue
from flowguard.session.session import Session


@final
class DurableBursts:
    """One per node."""

    def __init__(self, node: NodeState, router: Router) -> None:
        self._node = node
        self._router = router

    def publish(self, inbound: Inbound, plan: Plan, burst: Burst, now_s: float) -> Burst | None:
        """Admit a burst of a plan that takes it; the answers follow after the commit.

        Return what is admitted, or None if its packets must go one by one.
        """
        node, session = self._node, plan.solo
        assert session is not None
        if node.read_only or self._router.lane.is_separate or node.maximum_qos < burst.qos:
            return None
        if inbound in self._router.peers.ordered_answers.orders:
            return None
        if session.ended or session is inbound.session:
            return None
        count = inbound.window.room_together(burst.count, burst.payload_bytes)
        if count < BURST_MIN:
            return None
        if burst.is_5 and inbound.unacknowledged + count > node.receive_maximum:
            return None
        burst = burst.first_of(count)
        if not self._enter(inbound, session, burst, now_s):
            return None
        counters = node.counters
        counters.publish_received += count
        counters.publish_bytes_received += burst.payload_bytes
        inbound.unacknowledged += count
        inbound.window.admit(count, burst.payload_bytes, packets=count)
        return burst

    def take(self, plan: Plan, burst: Burst, now_s: float) -> bool:
        """Admit a burst of a peer; False if its packets must go one by one."""
        session = plan.solo
        assert session is not None
        return not session.ended and self._enter(None, session, burst, now_s)

    def _enter(self, inbound: Inbound | None, session: Session, burst: Burst, now_s: float) -> bool:
        """Append it to the journal; False if the session has no slots for all of it."""
        count = burst.count
        if not are_free(session.inflight.messages, session.next_pos, count):
            return False
        deliveries = burst.deliveries()
        size_bytes = sum(delivery.size_bytes for delivery in deliveries)
        if own_queue(session, self._node).reserve(size_bytes, count) is not None:
            return False
        first_pos = session.take_position(count)
        client_id = session.client_id
        ops: list[StoreOp] = [
            Append(client_id, pos, delivery) for pos, delivery in enumerate(deliveries, first_pos)
        ]
        in_process = BurstInProcess(
            self._router, inbound, burst, session, first_pos, deliveries, now_s
        )
        self._router.journal.append_burst(ops, size_bytes, in_process.committed, now_s)
        return True


@final
class BurstInProcess:
    """A burst between route and commit."""

    __slots__ = (
        "_burst",
        "_deliveries",
        "_first_pos",
        "_inbound",
        "_router",
        "_session",
        "_since_s",
    )

    def __init__(
        self,
        router: Router,
        inbound: Inbound | None,
        burst: Burst,
        session: Session,
        first_pos: int,
        deliveries: list[Delivery],
        since_s: float,
    ) -> None:
        """`session` has `deliveries` from `first_pos` on; it was decoded at `since_s`.

        `inbound` is None if a peer has forwarded it.
        """
        self._router = router
        self._inbound = inbound
        self._burst = burst
        self._session = session
        self._first_pos = first_pos
        self._deliveries = deliveries
        self._since_s = since_s

    def committed(self, now_s: float) -> None:
        burst, inbound, session = self._burst, self._inbound, self._session
        node = self._router.deliveries.node
        if not session.offer_burst(burst, self._first_pos, self._deliveries, node):
            self._go_one_by_one(now_s)
            return
        if inbound is None:
            return
        inbound.unacknowledged -= burst.count
        inbound.acknowledge_all(burst)
        inbound.window.worked(2 * burst.count)
        inbound.settle(burst.count, burst.payload_bytes)
        self._router.acknowledgements.came(self._since_s, now_s, burst.count)

    def _go_one_by_one(self, now_s: float) -> None:
        for pos, delivery in enumerate(self._deliveries, self._first_pos):
            targets: list[Target] = [(self._session, pos, delivery)]
            incoming = Incoming(self._inbound, delivery.message, self._since_s)
            pending = InProcess(self._router.deliveries, incoming, targets, SUCCESS)
            pending.committed(now_s)
