"""Bursts: the short way of a PUBLISH inside a node, for many at once.

`Router` says what is done with a message. Here it is done with a burst (`codec.burst`), if that
comes to the same for each packet of it: all who get it take it as it is and at once, nobody asks
who may publish it. Else nothing is done, and each goes the long way. Where it has to be durable,
there is one subscriber (`durable_bursts`). One of several topics goes as far as they have one, the
same. One for sessions of peers alone is forwarded (`relayed_bursts`), and they `take` it.
"""

from typing import Final, final

from flowguard.codec.burst import BURST_MIN, Burst
from flowguard.node.publish.durable_bursts import DurableBursts
from flowguard.node.publish.plans import Plan
from flowguard.node.publish.publishing import Router
from flowguard.node.publish.relayed_bursts import RelayedBursts
from flowguard.session.inbound.packets import Inbound
from flowguard.session.node_state import NodeState
from flowguard.session.outbound.messages import Outbound
from flowguard.session.session import Session

DELIVERIES_MAX: Final = 4_000
"""Of a burst, in one stretch: up to three milliseconds at QoS 1. What is left of it goes another
time. More than one message's, as a wide plan has no bursts."""
Connected = tuple[Outbound, Session]


@final
class Bursts:
    """One per node."""

    def __init__(self, node: NodeState, router: Router) -> None:
        self._node = node
        self._router = router
        self._durable = DurableBursts(node, router)
        self._relayed = RelayedBursts(node, router)
        self._payload_bytes_max = min(router.payload_bytes_max, router.cost.unit_bytes - 1)
        """A larger message is refused, or weighs more than one."""

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
        """Give a burst of a peer to the sessions of its plan; False if it cannot be as one.

        The caller does not go on before the journal has what is written for it.
        """
        if burst.payload_bytes_max > self._payload_bytes_max:
            return False
        if burst.count * plan.deliveries > DELIVERIES_MAX:
            return False
        if burst.qos > plan.burst_qos:
            return plan.takes_durable_bursts and self._durable.take(plan, burst, now_s)
        if burst.qos and not self._router.journal.is_empty:
            return False
        return self._send(plan, burst, None)

    def _publish_at_once(
        self, inbound: Inbound, plan: Plan, burst: Burst, now_s: float
    ) -> Burst | None:
        if burst.count * plan.deliveries > DELIVERIES_MAX:
            burst = burst.first_of(DELIVERIES_MAX // plan.deliveries)
        if burst.qos and not self._admits(inbound, burst):
            return None
        if not self._send(plan, burst, inbound.session):
            return None
        if burst.qos:
            inbound.acknowledge_all(burst)
            acknowledgements = self._router.acknowledgements
            acknowledgements.at_once_count += burst.count
            acknowledgements.since_s = now_s
        counters = self._node.counters
        counters.publish_received += burst.count
        counters.publish_bytes_received += burst.payload_bytes
        inbound.extra += plan.extra * burst.count
        return burst

    def _count_alike(self, plan: Plan, topics: list[str], qos: int, *, durably: bool) -> int:
        """How many of them, from the first, have the one subscriber that `plan` has."""
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

    def _admits(self, inbound: Inbound, burst: Burst) -> bool:
        """Whether its publisher can be answered in this stretch."""
        node = self._node
        if inbound.session.durable or inbound.window.in_process or node.maximum_qos < burst.qos:
            return False
        return not burst.is_5 or inbound.unacknowledged < node.receive_maximum

    def _send(self, plan: Plan, burst: Burst, origin: Session | None) -> bool:
        """Send it to all connected sessions of a plan; False if it cannot be as one.

        At QoS 1 all of them have to be connected. `origin` is the publisher, or None if a peer
        forwards it.
        """
        connected = self._connected(plan, origin)
        if connected is None:
            return False
        sent_count = len(connected)
        if burst.qos:
            if sent_count < plan.deliveries or not self._takes_in_flight(burst, connected):
                return False
            for outbound, session in connected:
                outbound.send_in_flight(burst, session)
        else:
            if not all([outbound.takes_as_is(burst) for outbound, _ in connected]):
                return False
            for outbound, _ in connected:
                outbound.send_as_is(burst)
        counters = self._node.counters
        counters.publish_sent += burst.count * sent_count
        counters.publish_bytes_sent += burst.payload_bytes * sent_count
        return True

    def _connected(self, plan: Plan, origin: Session | None) -> list[Connected] | None:
        """Return the connected sessions, or None if the publisher is one of them."""
        found: list[Connected] = []
        for group in plan.groups:
            for session in group.sessions:
                if session is origin:
                    return None
                outbound = session.outbound
                if outbound is not None:
                    found.append((outbound, session))
        return found

    def _takes_in_flight(self, burst: Burst, connected: list[Connected]) -> bool:
        return self._node.inflight.has_common_room(burst, len(connected)) and all(
            [
                outbound.takes_in_flight(burst, session, session.next_pos)
                for outbound, session in connected
            ]
        )
