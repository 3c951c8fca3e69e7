"""PacketRouting: where the PUBLISH, SUBSCRIBE and UNSUBSCRIBE of a node's clients go."""

from typing import final

from flowguard.codec.burst import Burst
from flowguard.codec.packets import Subscribe, Unsubscribe
from flowguard.node.bursts import Bursts
from flowguard.node.full_queues import FullQueues
from flowguard.node.publishing import Router
from flowguard.node.subscribing import Subscriptions
from flowguard.session.host import Routing
from flowguard.session.inbound import Inbound
from flowguard.session.node_state import NodeState
from flowguard.types import Publish


@final
class PacketRouting(Routing[Inbound]):
    """One per node."""

    def __init__(
        self,
        node: NodeState,
        router: Router,
        full_queues: FullQueues,
        subscriptions: Subscriptions,
    ) -> None:
        self._router = router
        self._bursts = Bursts(node, router)
        self._full_queues = full_queues
        self._subscriptions = subscriptions
        self._blocks = node.blocks

    def publish(self, inbound: Inbound, message: Publish, now_s: float) -> int:
        if self._blocks:
            return self._full_queues.publish(inbound, message, now_s)
        return self._router.publish(inbound, message, now_s)

    def publish_burst(self, inbound: Inbound, burst: Burst, now_s: float) -> Burst | None:
        return None if self._blocks else self._bursts.publish(inbound, burst, now_s)

    def subscribe(self, inbound: Inbound, packet: Subscribe, now_s: float) -> bool:
        return self._subscriptions.subscribe(inbound, packet, now_s)

    def unsubscribe(self, inbound: Inbound, packet: Unsubscribe, now_s: float) -> bool:
        return self._subscriptions.unsubscribe(inbound, packet, now_s)
