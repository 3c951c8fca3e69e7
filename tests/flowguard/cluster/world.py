"""A world of simulated nodes for the model check of links: stores, connections, clients, faults.

The objects of `flowguard.cluster` are the real ones and exchange real bytes. Around them:
- a node (`node.py`) routes, and commits through a journal; a crash keeps only what is committed;
- a connection keeps its bytes in order, delays them at will, and loses the last ones if it is cut;
- clients (`clients.py`) repeat what is not acknowledged, and `Ledger` checks the invariants of
  docs/develop/decisions/0022-links-between-nodes.md at each commit and each acknowledgement.
"""

from collections import Counter, deque
from collections.abc import Iterator
from random import Random
from typing import TypeVar

from flowguard.cluster import LinkConnection
from flowguard.errors import PeerError
from tests.flowguard.cluster.clients import ClientConnection, Publisher, Subscriber
from tests.flowguard.cluster.ledger import Ledger
from tests.flowguard.cluster.node import Node, Parts, Store

COUNTS = Counter[str]()
"""Counts of events in all schedules of this process."""
DRAIN_ROUNDS_MAX = 3_000
N = TypeVar("N", bound=Node)


class Side:
    """One end of a connection between nodes."""

    def __init__(self, node: Node, connection: LinkConnection) -> None:
        self.node = node
        self.connection = connection
        self.is_open = True
        self.arriving = deque[bytes]()
        """Bytes that the other end has sent."""


class Wire:
    """One connection between nodes."""

    def __init__(self, dialler: Node, acceptor: Node) -> None:
        peer = acceptor.name
        self.sides = (
            Side(dialler, dialler.mesh.dial(peer)),
            Side(acceptor, acceptor.mesh.accept()),
        )
        self.is_cut = False

    @property
    def is_open(self) -> bool:
        return any(side.is_open for side in self.sides)

    def close(self, side: Side) -> None:
        """This end is closed: the other one reads what has been sent, then the end."""
        if side.is_open:
            side.is_open = False
            side.arriving.clear()
            if not side.node.has_crashed:
                side.node.mesh.lost(side.connection)

    def send(self, index: int) -> bool:
        side, other = self.sides[index], self.sides[1 - index]
        if not (side.is_open and side.node.runs):
            return False
        output = side.node.mesh.output(side.connection)
        if output and other.is_open and not self.is_cut:
            other.arriving.append(output)
        return bool(output)

    def receive(self, index: int, now_s: float) -> bool:
        side, other = self.sides[index], self.sides[1 - index]
        if not (side.is_open and side.node.runs):
            return False
        if side.arriving:
            try:
                side.node.mesh.receive(side.connection, side.arriving.popleft(), now_s)
            except PeerError as error:
                why = "".join(each for each in str(error) if not each.isdigit())
                COUNTS[f"links closed: {why}"] += 1
                self.close(side)
            return True
        if self.is_cut or not other.is_open:
            self.close(side)
            return True
        return False

    def cut(self) -> None:
        """The network loses the connection; half of what is on its way still arrives."""
        for side in self.sides:
            for _ in range(len(side.arriving) // 2):
                side.arriving.pop()
        self.is_cut = True


class World:
    """All nodes, connections and clients of one schedule."""

    def __init__(self, names: list[str], messages_max: int, parts: Parts) -> None:
        self.now_s = 0.0
        self.parts = parts
        self.messages_max = messages_max
        self.ledger = Ledger(COUNTS)
        self.stores = {name: Store() for name in names}
        self.incarnation = 0
        self.nodes: dict[str, Node] = {}
        self.wires: list[Wire] = []
        self.split: set[str] = set()
        """Two nodes that cannot connect to each other."""
        self.notices = deque[tuple[Node, str, int]]()
        """Deaths that a node does not know yet."""
        for name in names:
            self.restart(name)
        some = next(iter(self.nodes.values()))
        owner_of = some.mesh.members.owner_of
        self.publishers = [Publisher(f"p{i}", owner_of(f"p{i}"), self.ledger) for i in range(4)]
        self.subscribers = [Subscriber(f"s{i}", owner_of(f"s{i}"), self.ledger) for i in range(5)]
        self.clients = [*self.publishers, *self.subscribers]

    # --- faults ----------------------------------------------------------------------------------

    def restart(self, name: str) -> None:
        if name in self.nodes or name not in self.stores:
            return
        self.incarnation += 1
        COUNTS["incarnations"] += 1
        self.nodes[name] = self.parts.node(
            name,
            self.incarnation,
            self.stores[name],
            list(self.stores),
            self.ledger,
            self.messages_max,
            self.parts,
        )

    def crash(self, name: str) -> None:
        node = self.nodes.pop(name, None)
        if node is None:
            return
        COUNTS["crashes"] += 1
        node.has_crashed = True
        for wire in self.wires:
            for side in wire.sides:
                if side.node is node:
                    wire.close(side)
        for client in self.clients:
            if client.connection is not None and client.connection.node is node:
                client.connection = None
        for other in self.nodes.values():
            self.notices.append((other, name, node.incarnation))

    def cut(self, index: int) -> None:
        wires = [wire for wire in self.wires if wire.is_open and not wire.is_cut]
        if wires:
            COUNTS["links cut"] += 1
            wires[index % len(wires)].cut()

    def split_off(self, name: str) -> None:
        """A node loses its links with the next one, and cannot dial it until the split ends."""
        names = list(self.stores)
        self.split = {name, names[names.index(name) - 1]}
        for wire in self.wires:
            if {side.node.name for side in wire.sides} == self.split:
                wire.cut()

    # --- traffic ---------------------------------------------------------------------------------

    def publish(self, random: Random) -> None:
        publisher = random.choice(self.publishers)
        publisher.publish(random.choice("ab"), random.choice((1, 2)))

    def change_subscription(self, random: Random) -> None:
        subscriber = random.choice(self.subscribers)
        kind = random.choice(("subscribe", "subscribe", "unsubscribe"))
        subscriber.ask(kind, random.choice("ab+#"))

    # --- progress --------------------------------------------------------------------------------

    def work(self, random: Random, steps: int) -> None:
        """Small steps of nodes, connections and clients, in any order."""
        for _ in range(steps):
            kind = random.randrange(8)
            if kind < 4 and self.wires:
                wire, index = random.choice(self.wires), random.randrange(2)
                wire.send(index)
                if random.randrange(2):
                    wire.receive(1 - index, self.now_s)
            elif kind < 6:
                self.client_step(random.choice(self.clients))
            elif kind == 6 and self.nodes:
                random.choice(list(self.nodes.values())).commit(self.now_s)
            elif not (self.notices and random.randrange(2) and self.notify()):
                self.dial()

    def dial(self) -> bool:
        done = False
        for node in self.nodes.values():
            if not node.runs:
                continue
            for peer in node.mesh.undialled():
                if peer in self.nodes and {node.name, peer} != self.split:
                    self.wires.append(Wire(node, self.nodes[peer]))
                    COUNTS["links opened"] += 1
                    done = True
        return done

    def notify(self) -> bool:
        return tell_of_death(self.notices)

    def client_step(self, client: Publisher | Subscriber) -> bool:
        if client.connection is None:
            node = self.nodes.get(client.owner)
            if node is None:
                return False
            client.connect(ClientConnection(node))
            return True
        connection = client.connection
        if connection.to_client:
            client.receive(connection.to_client.popleft())
            return True
        return (
            bool(connection.to_node) and connection.node.runs and connection.node.serve(connection)
        )

    def tick(self, seconds: float) -> None:
        self.now_s += seconds
        for node in self.nodes.values():
            if node.runs:
                node.tick(self.now_s)
        self.wires = [wire for wire in self.wires if wire.is_open]

    # --- the end ---------------------------------------------------------------------------------

    def heal(self) -> None:
        """End all faults and let everything finish; then all invariants must hold."""
        for name in self.stores:
            self.restart(name)
        self.split = set()
        for node in self.nodes.values():
            node.is_paused = node.is_full = False
        self.drain()
        self.tick(1.2)  # Each node tells its load again.
        self.drain()
        for publisher in self.publishers:
            if publisher.outstanding:
                self.ledger.fail(f"{publisher.name} waits for an acknowledgement")
        for subscriber in self.subscribers:
            if subscriber.asked is not None:
                self.ledger.fail(f"{subscriber.name} waits for a SUBACK or UNSUBACK")
        for node in self.nodes.values():
            node.check_drained()
        self.ledger.check_all()

    def drain(self) -> None:
        for _ in range(DRAIN_ROUNDS_MAX):
            if not any(list(self.everything())):
                return
        self.ledger.fail("the nodes do not come to rest")

    def everything(self) -> Iterator[bool]:
        """One step of everything; True for each that had something to do."""
        self.tick(0.0)
        yield self.dial()
        yield self.notify()
        for wire in self.wires:
            for index in (0, 1):
                yield wire.send(index)
                yield wire.receive(index, self.now_s)
        for node in self.nodes.values():
            yield node.commit(self.now_s)
        for client in self.clients:
            yield self.client_step(client)


def tell_of_death(notices: deque[tuple[N, str, int]]) -> bool:
    """Tell the first node that runs that the process of a peer has died; return False if none
    runs. Notices for nodes that have crashed are dropped."""
    for _ in range(len(notices)):
        node, peer, incarnation = notices.popleft()
        if node.has_crashed:
            continue
        if node.runs:
            node.mesh.died(peer, incarnation, 0.0)
            return True
        notices.append((node, peer, incarnation))
    return False
