"""PacketRouting: entry of the PUBLISH, SUBSCRIBE and UNSUBSCRIBE of a node's clients."""

from typing import final

from flowguard.codec.burst import Burst
from flowguard.codec.packets import Subscribe, Unsubscribe
from flowguard.node.publish.bursts import Bursts
from flowguard.node.publish.full_queues import FullQueues
from flowguard.node.publish.publishing import Router
from flowguard.node.subscribe.subscribing import Subscriptions
from flowguard.session.host import WAITS, Routing
from flowguard.session.inbound.packets import Inbound
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
        self._blocks = self._detours = node.blocks
        """`_detours`: True if a PUBLISH may have to wait before it is routed."""
        self.in_doubt = False
        """True if another broker may own the store: what is acknowledged has to wait."""
        self._lane = router.lane

    def doubt(self, *, in_doubt: bool) -> None:
        """Let packets wait that may not be answered while another broker may own the store.

        It may have subscriptions, and answer clients, of which this node does not know.
        """
        if in_doubt is self.in_doubt:
            return
        self.in_doubt = in_doubt
        self._detours = in_doubt or self._blocks
        if not in_doubt:
            self._router.peers.ordered_answers.go_on()

    def publish(self, inbound: Inbound, message: Publish, now_s: float) -> int:
        if self._lane.is_closed and self._waits(inbound, message):
            return WAITS
        if self._detours:
            return self._publish_slowly(inbound, message, now_s)
        return self._router.publish(inbound, message, now_s)

    def _publish_slowly(self, inbound: Inbound, message: Publish, now_s: float) -> int:
        if message.qos and self._must_wait(inbound):
            return WAITS
        if self._blocks:
            return self._full_queues.publish(inbound, message, now_s)
        return self._router.publish(inbound, message, now_s)

    def _must_wait(self, inbound: Inbound) -> bool:
        """Return True if a packet of this client must wait until it is known who owns the store."""
        if self.in_doubt:
            self._router.peers.ordered_answers.block(inbound)
        return self.in_doubt

    def publish_burst(self, inbound: Inbound, burst: Burst, now_s: float) -> Burst | None:
        return None if self._detours else self._bursts.publish(inbound, burst, now_s)

    def _waits(self, inbound: Inbound, message: Publish) -> bool:
        """Return True if a message must wait for the store of applications before it is routed."""
        lane, router = self._lane, self._router
        if not message.qos or not lane.concerns(router.deliveries, inbound, message):
            return False
        if not router.may_publish(inbound.session, message):
            return False  # `publish` rejects it.
        lane.wait(inbound)
        return True

    def subscribe(self, inbound: Inbound, packet: Subscribe, now_s: float) -> bool:
        if self._must_wait(inbound):
            return False
        return self._subscriptions.subscribe(inbound, packet, now_s)

    def unsubscribe(self, inbound: Inbound, packet: Unsubscribe, now_s: float) -> bool:
        if self._must_wait(inbound):
            return False
        return self._subscriptions.unsubscribe(inbound, packet, now_s)
