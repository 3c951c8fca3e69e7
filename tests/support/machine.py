"""A machine: several nodes on virtual time in one process, which only exchange bytes.

    machine = Machine("a", "b")
    subscriber = machine["b"].connect("s")
    subscriber.subscribe("t", qos=1)
    publisher = machine["a"].connect("p")
    publisher.publish("t", b"x", qos=1)
    assert subscriber.publishes()[0].payload == b"x"

Every call turns all nodes and carries the bytes of their links, until nothing moves.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from flowguard.cluster import LinkConnection, Members, Mesh
from flowguard.codec.packets import Packet
from flowguard.stores import MemoryStore, Store
from tests.support.stage import TICK_S, Client, Stage

P = TypeVar("P", bound=Packet)
PASSES_MAX = 10_000
BEFORE = 1_800_000_000_000
"""Number before the first incarnation: a start in milliseconds, as the supervisor has it."""


def answers(client: Client, kind: type[P]) -> list[P]:
    """Take the packets of a kind that a client has received."""
    found = [each for each in client.inbox if isinstance(each, kind)]
    client.inbox = [each for each in client.inbox if not isinstance(each, kind)]
    return found


class Worker(Stage):
    """One incarnation of a node."""

    def __init__(self, machine: "Machine", name: str, incarnation: int, store: Store) -> None:
        self.machine = machine
        self.name = name
        self.is_paused = False
        """True: it neither reads nor writes."""
        members = Members(name, incarnation, machine.names)
        super().__init__(machine.settings, store=store, now_s=machine.now_s, members=members)

    @property
    def mesh(self) -> Mesh:
        mesh = self.node.router.peers.mesh
        assert mesh is not None
        return mesh

    def settle(self) -> None:
        self.machine.settle()

    def settle_alone(self) -> None:
        super().settle()


class Wire:
    """One connection between two workers."""

    def __init__(self, dialler: Worker, acceptor: Worker) -> None:
        self.ends: list[tuple[Worker, LinkConnection]] = [
            (dialler, dialler.mesh.dial(acceptor.name)),
            (acceptor, acceptor.mesh.accept()),
        ]

    @property
    def names(self) -> set[str]:
        return {worker.name for worker, _ in self.ends}

    def carry(self) -> bool:
        """Carry bytes both ways; True if there were some."""
        moved = False
        for (sender, out), (receiver, into) in (self.ends, self.ends[::-1]):
            if sender.is_paused or receiver.is_paused:
                continue
            if data := sender.mesh.output(out):
                receiver.mesh.receive(into, data, receiver.now_s)
                moved = True
        return moved


class Machine:
    """All nodes, their stores and links."""

    def __init__(
        self,
        *names: str,
        settings: dict[str, dict[str, Any]] | None = None,
        store: Callable[[str], Store] = lambda name: MemoryStore(),
    ) -> None:
        """`store` makes the store of a node."""
        self.names = names
        self.settings = settings
        self.now_s = 1_000_000.0
        self.stores = {name: store(name) for name in names}
        self.cut: set[str] = set()
        """Nodes whose links are cut."""
        self.wires: list[Wire] = []
        self.is_carrying = True
        """False: no bytes arrive."""
        self.workers: dict[str, Worker] = {}
        self._incarnations = dict.fromkeys(names, BEFORE)
        for name in names:
            self.start(name)

    def __getitem__(self, name: str) -> Worker:
        return self.workers[name]

    def owned_by(self, name: str, what: str = "topic") -> str:
        """Return a topic, or another name, that a node owns."""
        members = next(iter(self.workers.values())).mesh.members
        return next(
            f"{what}{number}"
            for number in range(1_000)
            if members.owner_of(f"{what}{number}") == name
        )

    def incarnation_of(self, name: str) -> int:
        """Return the last incarnation of a node."""
        return self._incarnations[name]

    def start(self, name: str) -> Worker:
        self._incarnations[name] += 1
        worker = Worker(self, name, self._incarnations[name], self.stores[name])
        self.workers[name] = worker
        self.settle()
        return worker

    def kill(self, name: str, *, is_noticed: bool = True) -> None:
        """End a node without a word; `is_noticed`: the others know that its process has ended."""
        self.drop_links(name)
        del self.workers[name]
        for worker in self.workers.values():
            if is_noticed:
                worker.mesh.died(name, self._incarnations[name], self.now_s)
        self.settle()

    def drop_links(self, name: str) -> None:
        """End the connections of a node."""
        for wire in [each for each in self.wires if name in each.names]:
            self.wires.remove(wire)
            for worker, connection in wire.ends:
                worker.mesh.lost(connection)

    def settle(self) -> None:
        for _ in range(PASSES_MAX):
            for worker in self.workers.values():
                if not worker.is_paused:
                    worker.settle_alone()
            self._dial()
            moved = [wire.carry() for wire in self.wires if self.is_carrying]
            if not any(moved):
                return
        raise AssertionError("it does not end")

    def _dial(self) -> None:
        for worker in self.workers.values():
            for peer in worker.mesh.undialled():
                if peer in self.workers and not {worker.name, peer} & self.cut:
                    self.wires.append(Wire(worker, self.workers[peer]))

    def advance(self, seconds: float) -> None:
        """Let time pass on all nodes, tick by tick."""
        for _ in range(round(seconds / TICK_S)):
            self.now_s += TICK_S
            for worker in self.workers.values():
                worker.now_s = self.now_s
                worker.node.tick(self.now_s)
            self.settle()
