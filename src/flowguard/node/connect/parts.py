"""ConnectParts: the parts of a node that the path of a CONNECT uses."""

from dataclasses import dataclass
from typing import final

from flowguard.flow import Guard
from flowguard.node.connect.attempts import Attempts
from flowguard.node.connect.authentication import Hooks
from flowguard.node.connect.registry import Registry
from flowguard.node.connect.reviews import Reviews
from flowguard.node.journal import Journal
from flowguard.node.publish.packets import PacketRouting
from flowguard.node.publish.publishing import Router
from flowguard.node.subscribe.subscribing import Subscriptions
from flowguard.node.upkeep.timers import Timers, Wheel
from flowguard.session.connection import ServerConnection
from flowguard.session.node_state import NodeState


@final
@dataclass(slots=True, eq=False)
class ConnectParts:
    state: NodeState
    hooks: Hooks
    guard: Guard[ServerConnection]
    journal: Journal
    router: Router
    registry: Registry
    subscriptions: Subscriptions
    reviews: Reviews
    packets: PacketRouting
    attempts: Attempts
    timers: Timers
    wheel: Wheel[ServerConnection]
