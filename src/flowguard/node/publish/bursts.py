"""Bursts: the short path of many PUBLISHes at once inside a node.

`Router` routes one message, and `Bursts` routes a burst (`codec.burst`) with the same result for
each of its packets. All subscribers must take the packets unchanged and at once, and no check of
publish rights may be configured. Otherwise nothing is done, and the packets are routed one by one.

- A durable burst must have a single subscriber (`durable_bursts`).
- A burst of several topics is cut at the first topic that has not the same single subscriber.
- A burst for sessions of peers alone is forwarded (`relayed_bursts`), and the peers `take` it.
"""

from typing import Final, final

from flowguard.codec.burst import BURST_MIN, Burst
from flowguard.node.publish.durable_bursts import DurableBursts
from flowguard.node.publish.plans import Plan
from flowguard.node.publish.publishing import Router
from flowguard.node.publish.relayed_bursts import RelayedBursts
from flowguard.session.inbound.packets import Inbound
from flowguard.session.node_state import NodeState
from flowguard.session.session import Session

DELIVERIES_MAX: Final = 4_000
"""Maximum number of deliveries of a burst in one time slice: up to three milliseconds at QoS 1.
The rest of the burst follows later. One message has fewer, as a wide plan has no bursts."""

NOT_AS_ONE: Final = -1


@final
class Bursts:
    """One per node."""

    def __init__(self, node: NodeState, router: Router) -> None:
        self._node = node
        self._router = router
        self._durable = DurableBursts(node, router)
        self._relayed = RelayedBursts(node, router)
        self._payload_bytes_max = min(router.payload_bytes_max, router.cost.unit_bytes - 1)
        """A larger message is rejected, or costs more than one unit."""

    def publish(self, inbound: Inbound, burst: Burst, now_s: float) -> Burst | None:
        """See `Routing.publish_burst`."""
        router = self._router
        plans = router.plans
        plan = plans.by_topic.get(burst.topic)
        if plan is None or plan.version != plans.version:
            plan = plans.find(burst.topic)
        durably = burst.qos > plan.burst_qos
        if durably and plan.is_for_peers and not router.asks:
            if burst.payload_bytes_max > self._payload_bytes_max:
                return None
            return self._relayed.publish(inbound, plan, burst, now_s)
        if router.asks or (durably and not plan.takes_durable_bursts):
            return None
        if burst.topics is not None:
            count = self._count_alike(plan, burst.topics, burst.qos, durably=durably)
            if count < BURST_MIN:
                return None
            burst = burst.first_of(count)
        if burst.payload_bytes_max > self._payload_bytes_max:
            return None
        if durably:
            return self._durable.publish(inbound, plan, burst, now_s)
        return self._publish_at_once(inbound, plan, burst, now_s)

    def take(self, plan: Plan, burst: Burst, now_s: float) -> bool:
        """Give a burst of a peer to the sessions of its plan; False if it must go one by one.

        The caller does not go on before the journal has the operations of the burst.
        """
        if burst.payload_bytes_max > self._payload_bytes_max:
            return False
        if burst.count * plan.deliveries > DELIVERIES_MAX:
            return False
        if burst.qos > plan.burst_qos:
            return plan.takes_durable_bursts and self._durable.take(plan, burst, now_s)
        if burst.qos:
            if not self._router.journal.is_empty or not self._are_sent(plan, burst, None):
                return False
            sent_count = self._deliver(plan, burst)
        else:
            sent_count = self._deliver_qos_0(plan, burst, None)
            if sent_count == NOT_AS_ONE:
                return False
        self._count_sent(burst, sent_count)
        return True

    def _count_sent(self, burst: Burst, sent_count: int) -> None:
        counters = self._node.counters
        counters.publish_sent += burst.count * sent_count
        counters.publish_bytes_sent += burst.payload_bytes * sent_count

    def _publish_at_once(
        self, inbound: Inbound, plan: Plan, burst: Burst, now_s: float
    ) -> Burst | None:
        if burst.count * plan.deliveries > DELIVERIES_MAX:
            burst = burst.first_of(DELIVERIES_MAX // plan.deliveries)
        if burst.qos:
            if not self._admits(inbound, plan, burst):
                return None
            sent_count = self._deliver(plan, burst)
            inbound.acknowledge_all(burst)
            acknowledgements = self._router.acknowledgements
            acknowledgements.at_once_count += burst.count
            acknowledgements.since_s = now_s
        else:
            sent_count = self._deliver_qos_0(plan, burst, inbound.session)
            if sent_count == NOT_AS_ONE:
                return None
        self._count_sent(burst, sent_count)
        counters = self._node.counters
        counters.publish_received += burst.count
        counters.publish_bytes_received += burst.payload_bytes
        inbound.extra += plan.extra * burst.count
        return burst

    def _count_alike(self, plan: Plan, topics: list[str], qos: int, *, durably: bool) -> int:
        """Return how many topics, from the first on, have the same single subscriber as `plan`."""
        solo = plan.solo
        if solo is None:
            return 0
        plans = self._router.plans
        by_topic, version = plans.by_topic, plans.version
        count = 0
        for topic in topics:
            other = by_topic.get(topic)
            if other is None or other.version != version:
                other = plans.find(topic)
            is_alike = other.takes_durable_bursts if durably else other.burst_qos >= qos
            if other.solo is not solo or not is_alike:
                break
            count += 1
        return count

    def _admits(self, inbound: Inbound, plan: Plan, burst: Burst) -> bool:
        """Return True if the whole burst can be answered with success in this time slice."""
        node, origin = self._node, inbound.session
        if origin.durable or inbound.window.in_process or node.maximum_qos < burst.qos:
            return False
        if burst.is_5 and inbound.unacknowledged >= node.receive_maximum:
            return False
        return self._are_sent(plan, burst, origin)

    def _are_sent(self, plan: Plan, burst: Burst, origin: Session | None) -> bool:
        """Return True if all of it can be sent to all sessions of a plan now, at QoS 1."""
        if not self._node.inflight.has_common_room(burst, plan.deliveries):
            return False
        for group in plan.groups:
            for session in group.sessions:
                outbound = session.outbound
                if outbound is None or session is origin:
                    return False
                if not outbound.takes_in_flight(burst, session, session.next_pos):
                    return False
        return True

    def _deliver(self, plan: Plan, burst: Burst) -> int:
        """Send to all sessions of a plan, and return their number."""
        sent_count = 0
        for group in plan.groups:
            for session in group.sessions:
                outbound = session.outbound
                assert outbound is not None
                outbound.send_in_flight(burst, session)
            sent_count += len(group.sessions)
        return sent_count

    def _deliver_qos_0(self, plan: Plan, burst: Burst, origin: Session | None) -> int:
        """Send to all connected sessions, and return their number.

        Return NOT_AS_ONE, and send nothing, if one of them cannot take the burst as one.
        """
        for group in plan.groups:
            for session in group.sessions:
                outbound = session.outbound
                if outbound is None:
                    continue
                if session is origin or not outbound.takes_as_is(burst):
                    return NOT_AS_ONE
        sent_count = 0
        for group in plan.groups:
            for session in group.sessions:
                outbound = session.outbound
                if outbound is not None:
                    outbound.send_as_is(burst)
                    sent_count += 1
        return sent_count
