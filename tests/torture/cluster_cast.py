"""Clients of a cluster: each connects to any node, and some to another one while connected."""

import socket
import time
from random import Random
from selectors import BaseSelector
from typing import Any

from flowguard.cluster import Members
from flowguard.types import MQTT_5, MQTT_311
from tests.torture.ledger import Account, Ledger
from tests.torture.nodes import SHARDS
from tests.torture.players import Mortal, Player, Publisher, Reader, Subscriber
from tests.torture.wire import Line, TcpWire

Address = tuple[str, int]


class ClusterLine(Line):
    """A client's way to any node."""

    def __init__(self, nodes: list[Address], selector: BaseSelector, random: Random) -> None:
        super().__init__(0, selector)
        self._nodes = nodes
        self._random = random
        self.dialled_s = 0.0
        self.address: Address = nodes[0]
        self.former: list[TcpWire] = []
        """Connections that the client has left open."""

    def dial(self) -> bool:
        if time.monotonic() < self.dialled_s + 0.1:
            return False
        self.hang_up()
        self.dialled_s = time.monotonic()
        self.address = self._random.choice(self._nodes)
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.settimeout(0.3)
        try:
            sock.connect(self.address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            sock.close()
            return False
        sock.setblocking(False)
        self._dialled = sock
        return True

    def leave_open(self) -> None:
        """The next connection begins while this one is open."""
        if self.wire is not None:
            self.wire.flush()
            self.former.append(self.wire)
            self.wire = None
        while len(self.former) > 3:
            self.former.pop(0).close()

    def hang_up_all(self) -> None:
        self.hang_up()
        for wire in self.former:
            wire.close()
        self.former.clear()


class SlowPublisher(Publisher):
    """As many messages as three nodes and Redis take on two busy cores."""

    share = 0.3

    def listen(self) -> None:
        calm = self.calm
        self.calm = calm or self.random.random() > self.share
        try:
            super().listen()
        finally:
            self.calm = calm


class CleanSubscriber(Subscriber):
    """Its session ends with each connection; it gets what is acknowledged after its SUBACK."""

    def listen(self) -> None:
        super().listen()
        self.start()


def cast(
    nodes: list[Address], selector: BaseSelector, ledger: Ledger, random: Random, *, qos: int = 2
) -> list[Player]:
    """Return the clients; `qos` is that of all subscriptions, 0 for a control."""
    members = Members("worker-0", 1, [f"worker-{each}" for each in range(SHARDS)])

    def named(prefix: str, shard: int, version: int = 5) -> tuple[Any, ...]:
        client_id = next(
            name
            for name in (f"{prefix}-{number}v{version}" for number in range(10_000))
            if members.owner_of(name) == f"worker-{shard % SHARDS}"
        )
        line = ClusterLine(nodes, selector, Random(random.random()))
        kind = MQTT_5 if version == 5 else MQTT_311
        return client_id, kind, line, ledger, Random(random.random())

    group = Account("group g", shared=True)
    topics = ["t/0", "t/1", "t/2"]
    every = {"t/#": qos, "w/#": qos}
    players: list[Player] = []
    for shard in range(SHARDS):
        players += [
            SlowPublisher(*named("p", shard, 5 - shard % 2), topics=topics),
            Subscriber(*named("s", shard, 5 - shard % 2), filters=every),
            Subscriber(*named("lazy", shard), filters=every, laziness=0.5, receive_maximum=20),
            Mortal(*named("mortal", shard), topic=f"w/{shard}", qos=1 + shard % 2),
            Subscriber(*named("member", shard), filters={"$share/g/t/#": qos}, account=group),
        ]
    players += [
        SlowPublisher(*named("keeper", 1), topics=["r/0", "r/1", "r/2"], retain=True),
        Subscriber(*named("one", 0), filters={"t/#": min(qos, 1), "w/#": min(qos, 1)}),
        Subscriber(*named("sleeper", 1), filters=every, sleeps=True),
        Subscriber(*named("sleeper", 2, 4), filters=every, sleeps=True),
        CleanSubscriber(*named("clean", 0), filters={"t/#": qos}, expiry_s=0),
        CleanSubscriber(*named("clean", 2, 4), filters={"t/#": qos}, expiry_s=0),
        Reader(*named("reader", 0), filter="r/#"),
        Reader(*named("reader", 2), filter="r/#"),
    ]
    for player in players:
        if isinstance(player, Reader):
            player.repeats = True
    ledger.ignore_order_of_groups()
    return players
