"""RelayedBursts: a burst for sessions of peers alone, which is forwarded as one message.

This node stores nothing for it. At QoS 1 its client is answered when all these peers have it.
"""

from typing import final

from flowguard.codec.burst import BURST_MIN, Burst
from flowguard.node.peers.messages import encode_burst
from flowguard.node.publish.plans import Plan
from flowguard.node.publish.publishing import Router
from flowguard.session.inbound.packets import Inbound
from flowguard.session.node_state import NodeState


@final
class RelayedBursts:
    """One per node."""

    def __init__(self, node: NodeState, router: Router) -> None:
        self._node = node
        self._router = router

    def publish(self, inbound: Inbound, plan: Plan, burst: Burst, now_s: float) -> Burst | None:
        """Return what is forwarded of a burst, or None if its packets must go one by one."""
        peers = self._router.peers
        if burst.topics is not None or plan.is_heavy or not all([p.is_known for p in plan.peers]):
            return None
        if burst.qos:
            count = self._count_admitted(inbound, plan, burst)
            if count < BURST_MIN:
                return None
            burst = burst.first_of(count)
        counters = self._node.counters
        counters.publish_received += burst.count
        counters.publish_bytes_received += burst.payload_bytes
        data = encode_burst(burst, inbound.session.client_id)
        if burst.qos:
            inbound.unacknowledged += burst.count
            inbound.window.admit(burst.count, burst.payload_bytes, packets=burst.count)
            relayed = RelayedBurst(self._router, inbound, burst, len(plan.peers), now_s)
            peers.ordered_answers.begin(inbound, relayed, waits=True)
            for peer in plan.peers:
                peer.outgoing.put(data, relayed.part_done, burst.count)
        else:
            for peer in plan.peers:
                peer.outgoing.put_unnumbered(data, burst.count)
        peers.wake()
        return burst

    def _count_admitted(self, inbound: Inbound, plan: Plan, burst: Burst) -> int:
        """Return how many packets of QoS 1 can be forwarded now; 0 if they must go one by one."""
        node, peers = self._node, self._router.peers
        if node.read_only or node.maximum_qos < burst.qos:
            return 0
        if inbound.must_wait and inbound not in peers.ordered_answers.orders:
            return 0
        if not all([peer.outgoing.has_capacity() for peer in plan.peers]):
            return 0
        window = inbound.window
        count = min(
            window.room_together(burst.count, burst.payload_bytes),
            peers.window(plan) - window.in_process,
        )
        exceeds = burst.is_5 and inbound.unacknowledged + count > node.receive_maximum
        return 0 if exceeds else count


@final
class RelayedBurst:
    """A burst of QoS 1 that waits for the commits of peers."""

    __slots__ = ("_burst", "_inbound", "_router", "_since_s", "commits_left", "is_in_order")

    def __init__(
        self, router: Router, inbound: Inbound, burst: Burst, peers_count: int, since_s: float
    ) -> None:
        self._router = router
        self._inbound = inbound
        self._burst = burst
        self._since_s = since_s
        self.commits_left = peers_count
        self.is_in_order = False

    def part_done(self, now_s: float) -> None:
        """A peer has committed it."""
        self.commits_left -= 1
        if not self.commits_left:
            self._router.peers.ordered_answers.release(self._inbound, now_s)

    def answer(self, inbound: Inbound, now_s: float) -> None:
        """Acknowledge it to its publisher."""
        burst = self._burst
        inbound.unacknowledged -= burst.count
        inbound.acknowledge_all(burst)
        inbound.window.worked(burst.count)
        inbound.settle(burst.count, burst.payload_bytes)
        self._router.acknowledgements.came(self._since_s, now_s, burst.count)
