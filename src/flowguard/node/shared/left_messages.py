"""Messages of shared subscriptions in an ended session go to other members.

When a session ends, an unacknowledged message of QoS 1 goes to another member, as the standard
recommends [MQTT 5.0, 4.8.2]. So does a message that was not sent yet. A message that was sent at
QoS 2 must not ([MQTT-4.8.2-5]).
"""

from collections import deque
from dataclasses import replace
from typing import Final, final

from flowguard.flow import Reason
from flowguard.node.publish.plans import Plan
from flowguard.node.publish.publishing import Router
from flowguard.records import NEVER_S, Delivery
from flowguard.routing import parse_shared
from flowguard.session.node_state import NodeState
from flowguard.session.session import Session

MESSAGES_PIECE: Final = 50
"""Number of messages that are routed in one time slice."""


def left_messages(session: Session) -> deque[Delivery]:
    """Return such messages of a session that ends: in flight, and waiting if not stored."""
    sent = session.inflight.messages.values()
    found = [each for each in sent if each is not None and each.qos == 1]
    while not session.durable and (waiting := session.queue.take()) is not None:
        found.append(waiting[1])
    return deque([delivery for delivery in found if delivery.share])


@final
class LeftMessages:
    __slots__ = ("_left", "_node", "_router")

    def __init__(self, left: deque[Delivery], node: NodeState, router: Router) -> None:
        self._left = left
        self._node = node
        self._router = router

    def step(self, now_s: float) -> bool:
        for _ in range(min(MESSAGES_PIECE, len(self._left))):
            self._route(self._left.popleft(), now_s)
        return bool(self._left)

    def _route(self, delivery: Delivery, now_s: float) -> None:
        message, expires_at_s = delivery.message, delivery.expires_at_s
        if expires_at_s <= now_s:
            self._node.counters.drop(Reason.MESSAGE_EXPIRED)
            return
        if expires_at_s != NEVER_S:  # [MQTT-3.3.2-6] the interval minus the time it has waited.
            left_s = max(1, round(expires_at_s - now_s))
            properties = replace(message.properties, message_expiry_interval=left_s)
            message = replace(message, properties=properties)
        key = parse_shared(delivery.share)
        group = self._router.table.group(*key) if key is not None else None
        if group is not None:
            self._router.route_own(Plan([], [group]), message, now_s, None, is_local=True)
