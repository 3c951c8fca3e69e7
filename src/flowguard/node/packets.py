"""PacketRouting: where the PUBLISH, SUBSCRIBE and UNSUBSCRIBE of a node's clients go."""

from typing import final

from flowguard.codec.packets import Subscribe, Unsubscribe
from flowguard.node.full_queues import FullQueues
from flowguard.node.publishing import Router
from flowguard.node.subscribing import Subscriptions
from flowguard.session.inbound import Inbound, Routing
from flowguard.types import Publish


@final
class PacketRouting(Routing):
    """One per node."""

    def __init__(
        self, router: Router, full_queues: FullQueues, subscriptions: Subscriptions, *, blocks: bool
    ) -> None:
        """`blocks`: publishers wait for room in a full queue."""
        self._router = router
        self._full_queues = full_queues
        self._subscriptions = subscriptions
        self._blocks = blocks

    def publish(self, inbound: Inbound, message: Publish, now_s: float) -> int:
        if self._blocks:
            return self._full_queues.publish(inbound, message, now_s)
        return self._router.publish(inbound, message, now_s)

    def subscribe(self, inbound: Inbound, packet: Subscribe, now_s: float) -> bool:
        return self._subscriptions.subscribe(inbound, packet, now_s)

    def unsubscribe(self, inbound: Inbound, packet: Unsubscribe, now_s: float) -> bool:
        return self._subscriptions.unsubscribe(inbound, packet, now_s)
