"""Sockets: readiness, accepting, and the cost of a turn over all sockets.

`flowguard.node.loop.turns` decides the order and the amount of work, and when a client yields, as
it does for the reactor. At its ports, this module does a piece of work by moving the clock on by
its cost.

Connections arrive in the kernel's listen backlog; a SYN that finds it full is lost. A few sockets
per turn are accepted between all other work, as by flowguard's reactor. With
`NodePlan.accepts_first`, all of them are accepted before anything else, as acceptor threads do it.
"""

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Final, final

from flowguard.node.journal import Batch
from flowguard.node.loop.turns import ACCEPTS_MAX, NOTHING, Ports, Turns
from simulations.crowd.connection import BACKLOG, CONNECTED, ENDED, OPENED, Connection
from simulations.crowd.topics import Message

if TYPE_CHECKING:
    from simulations.process.broker import Broker

ACCEPTOR_TURN_S: Final = 0.02
"""Time for accepting before any other work."""


class OtherSocket(Enum):
    """A socket that becomes ready besides those of clients."""

    LISTENER = 0
    PEERS = 1
    """The other nodes of the cluster."""


Ready = Connection | OtherSocket
BrokerTurns = Turns[Ready, Connection, Connection, Connection]


@final
class BrokerPorts(Ports[Ready, Connection, Connection]):
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._ready: deque[Ready] = deque()
        """Sorted as in epoll: the socket that became ready first is reported first."""
        self._runnable: list[Connection] = []
        self._forwarded: list[tuple[Message, int]] = []
        """Messages that other nodes have forwarded and that are not read yet."""

    # --- what is ready -----------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        return bool(self._ready or self._runnable)

    def announce(self, ready: Ready) -> None:
        """Add a readable socket. The caller adds it only once."""
        self._ready.append(ready)

    def forward(self, message: Message, deliveries: int) -> None:
        """Take a message of another node, which waits in the socket."""
        if not self._forwarded:
            self._ready.append(OtherSocket.PEERS)
        self._forwarded.append((message, deliveries))

    def take_forwarded(self) -> list[tuple[Message, int]]:
        """Remove and return the messages of other nodes."""
        forwarded, self._forwarded = self._forwarded, []
        return forwarded

    def schedule(self, connection: Connection) -> None:
        self._runnable.append(connection)

    # --- sockets: see `Ports` ----------------------------------------------------------------

    def poll(self, count_max: int, stay_s: float) -> list[Ready]:
        self._broker.packets.begin_turn()
        ready = self._ready
        return [ready.popleft() for _ in range(min(len(ready), count_max))]

    def read(self, event: Ready, now_s: float) -> int:
        broker = self._broker
        if event is OtherSocket.LISTENER:
            broker.listener.accept(now_s)
        elif event is OtherSocket.PEERS:
            for message, deliveries in self.take_forwarded():
                broker.packets.arrived(message, deliveries)
        else:
            assert isinstance(event, Connection)
            event.is_ready = False
            broker.read(event, now_s)
            return 0
        return NOTHING

    def receive(self, now_s: float) -> None:
        pass  # The packets ran when they were read, because this model has no caches.

    @property
    def sockets_count(self) -> int:
        return len(self._broker.connections) + len(OtherSocket)

    def send(self, connections: list[Connection], now_s: float) -> None:
        raise NotImplementedError  # All answers have left already.

    def wake(self) -> None:
        self._broker.loop.wake()

    # --- conversations -----------------------------------------------------------------------

    @property
    def has_runnable(self) -> bool:
        return bool(self._runnable)

    def take_runnable(self) -> list[Connection]:
        runnable = self._runnable
        if runnable:
            self._runnable = []
        return runnable

    def has_room(self, connection: Connection) -> bool:
        inbound = connection.inbound
        return connection.state != CONNECTED or inbound is None or inbound.window.room() > 0

    def run_again(self, connection: Connection, now_s: float) -> bool:
        connection.queued = False
        if connection.state != CONNECTED:
            return False
        started_s = self._broker.loop.clock_s
        self._broker.packets.run(connection, now_s)
        inbound = connection.inbound
        if inbound is not None:
            inbound.window.worked(self._broker.loop.clock_s - started_s)
        return True

    def leave(self) -> list[Connection]:
        """Send the answers at once, which costs nothing more."""
        self._broker.entrance.answer()
        return []

    # --- work --------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return self._broker.guard.has_work or len(self._broker.chores) > 0

    def admit(self, now_s: float) -> None:
        self._broker.guard.turn(now_s)

    def store(self, batch: Batch) -> None:
        self._broker.spend(self._broker.machine.disk.commit_s(len(batch.ops)))

    def ask_store(self) -> bool:
        """True if a commit is urgent and the store is free; pages are read beside commits."""
        return self._broker.is_store_free and self._broker.journal.is_urgent

    def replay(self, piece: Connection, now_s: float) -> None:
        self._broker.replays.send(piece)


@final
class Listener:
    """The listener of one process. `is_ready` is True while connections wait and it does not
    rest."""

    def __init__(self, broker: "Broker") -> None:
        self.backlog: deque[Connection] = deque()
        """The kernel's listen backlog."""
        self.is_ready = False
        self._broker = broker
        self._plan = broker.plan
        self._gate = broker.guard.gate
        self._loop = broker.loop
        self._counters = broker.machine.counters
        self._rests = False

    def knock(self, connection: Connection) -> bool:
        """Receive a SYN. Return False if it is lost, because the listen backlog is full."""
        backlog = self.backlog
        if len(backlog) >= self._plan.listen_backlog:
            return False
        connection.state = BACKLOG
        connection.last_received_s = self._broker.engine.now_s
        backlog.append(connection)
        if not self.is_ready and not self._rests:
            self._listen()
        return True

    def _listen(self) -> None:
        self.is_ready = True
        if not self._plan.accepts_first:
            self._broker.ports.announce(OtherSocket.LISTENER)
        self._loop.wake()

    def sweep(self) -> None:
        """Listen again, after a rest."""
        if self._rests:
            self._rests = False
            if self.backlog:
                self._listen()

    def accept(self, now_s: float) -> None:
        """Accept at most ACCEPTS_MAX connections; their CONNECTs are read when their turn comes."""
        gate, loop, backlog, ports = self._gate, self._loop, self.backlog, self._broker.ports
        if not gate.may_accept(now_s):
            self._rest()
            return
        closes = gate.closes(now_s)
        started_s = loop.clock_s
        for _ in range(min(len(backlog), ACCEPTS_MAX)):
            connection = self._accept_one(closes=closes)
            if not closes:
                connection.is_ready = True
                ports.announce(connection)
                gate.let_in(connection.waited_s)
                if not gate.may_accept(now_s):
                    self._rest()
                    break
        self.is_ready = bool(backlog) and not self._rests
        if self.is_ready:
            ports.announce(OtherSocket.LISTENER)
        gate.spent(loop.clock_s - started_s, now_s)

    def accept_until(self, until_s: float) -> None:
        """Accept connections and decode their CONNECTs one by one, and offer each to the gate."""
        broker, gate, loop, backlog = self._broker, self._gate, self._loop, self.backlog
        while backlog and loop.clock_s < until_s:
            now_s = loop.clock_s
            if not gate.may_accept(now_s):
                self._rest()
                break
            if gate.closes(now_s):
                self._accept_one(closes=True)
            else:
                connection = self._accept_one(closes=False)
                gate.let_in(connection.waited_s)
                if connection.ended_by_peer:
                    broker.end(connection, now_s)
                else:
                    broker.entrance.offer(connection, now_s)
            gate.spent(loop.clock_s - now_s, now_s)
        self.is_ready = bool(backlog) and not self._rests

    def _rest(self) -> None:
        """Stop accepting until `sweep` listens again."""
        self._rests = True
        self.is_ready = False
        invariants = self._broker.world.invariants
        if invariants is not None:
            invariants.on_rest(self._broker.node)

    def _accept_one(self, *, closes: bool) -> Connection:
        broker = self._broker
        connection = self.backlog.popleft()
        counters, started_s = self._counters, self._loop.clock_s
        broker.spend(self._plan.accept_s)
        if closes:
            connection.state = ENDED
            counters.closed_count += 1
            counters.refusing_s += self._loop.clock_s - started_s
            connection.population.closed(connection, self._loop.clock_s)
            return connection
        if connection.is_alive:
            broker.spend(self._plan.tls_s)
        counters.refusing_s += self._loop.clock_s - started_s
        connection.state = OPENED
        connection.waited_s = self._loop.clock_s - connection.last_received_s
        broker.connections[connection] = None
        return connection


@final
class AcceptorTurns(BrokerTurns):
    """The turns of another broker: it accepts connections before it serves any. It serves the
    admitted ones one by one, in the time that accepting has left."""

    broker: "Broker"
    """Set before the first turn."""

    def turn(self, now_s: float) -> bool:
        broker = self.broker
        listener, entrance = broker.listener, broker.entrance
        until_s = now_s + ACCEPTOR_TURN_S
        worked = listener.is_ready or entrance.is_serving
        if listener.is_ready:
            listener.accept_until(until_s)
        worked |= super().turn(broker.loop.clock_s)
        worked |= super().run_round()
        entrance.serve_until(until_s)
        self.end_slice(broker.loop.clock_s)
        return worked

    def run_round(self) -> bool:
        return False  # The turn included the round.
