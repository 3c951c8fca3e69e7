"""The cost of a rejection is booked without the cost of admitted clients of its slice."""

import random
from socket import socketpair
from time import thread_time

from flowguard.bounds import Bounds
from flowguard.broker.sockets.reactor import Reactor
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connect
from flowguard.config import Settings
from flowguard.node.connect.authentication import Hooks
from flowguard.node.loop.turns import Next
from flowguard.node.node import Node, Surroundings
from flowguard.stores import MemoryStore
from flowguard.types import MQTT_5, Properties, ReasonCode

NOW_S = 1_700_000_000.0
CHECK_S = 0.2


class Thorough:
    """Takes `CHECK_S` of the processor to accept a client."""

    def __init__(self) -> None:
        self.count = 0

    def authenticate(self, packet: Connect) -> ReasonCode:
        self.count += 1
        until_s = thread_time() + CHECK_S
        while thread_time() < until_s:
            pass
        return ReasonCode.SUCCESS


def test_who_is_let_in_beside_a_refusal_takes_nothing_of_its_budget() -> None:
    """One is let in, one waits and one is refused, all of them in one slice."""
    thorough, store = Thorough(), MemoryStore()
    settings = Settings.model_validate(
        {"flow": {"connects_in_process_max": 1, "connect_buffer_max": 1}}
    )
    node = Node(
        Bounds.of(settings, 1 << 30),
        NOW_S,
        Surroundings(lambda: "r", random.Random(1).random, thread_time),
        hooks=Hooks(authenticator=thorough),
    )
    reactor = Reactor(node, store, lambda: NOW_S, lambda: True)
    node.recover(store, NOW_S)
    clients = []
    try:
        for name in ("let-in", "waits", "refused"):
            ours, theirs = socketpair()
            clients.append(theirs)
            reactor.adopt(ours)
            theirs.send(
                encode(Connect(name, properties=Properties(session_expiry_interval=60)), MQTT_5)
            )
        reactor.turns.resume()
        assert reactor.turns.go_on() is Next.TURN
        guard = node.guard
        assert (thorough.count, guard.gate.buffered, guard.refused_count) == (1, 1, 1)
        assert guard.observer.connecting_s >= CHECK_S
        assert guard.gate.may_accept(NOW_S)
    finally:
        reactor.close()
        for client in clients:
            client.close()
