"""Listener: how connections come in: the kernel's listen backlog, and accepting from it.

A SYN that finds the backlog full is lost. Accepting is `flowguard.broker.reactor.Reactor._accept`,
a few sockets per turn between all other work, or, where `NodePlan.accepts_first`, all there are
before anything else, as acceptor threads do it.
"""

from collections import deque
from typing import TYPE_CHECKING, final

from flowguard.broker.listeners import ACCEPTS_MAX
from flowguard.flow import Rung
from simulations.connection import BACKLOG, ENDED, OPENED, Connection

if TYPE_CHECKING:
    from simulations.broker import Broker


@final
class Listener:
    """One process's; `is_ready` while somebody waits in the backlog and it does not rest."""

    def __init__(self, broker: "Broker") -> None:
        self.backlog: deque[Connection] = deque()
        """The kernel's."""
        self.is_ready = False
        self._broker = broker
        self._plan = broker.plan
        self._gate = broker.guard.gate
        self._loop = broker.loop
        self._counters = broker.machine.counters
        self._rests = False

    def knock(self, connection: Connection) -> bool:
        """A SYN; False: it is lost, because the listen backlog is full."""
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
            self._broker.ready.append(None)
        self._loop.wake()

    def sweep(self) -> None:
        """Look again, after a rest; see `Reactor.sweep`."""
        if self._rests:
            self._rests = False
            if self.backlog:
                self._listen()

    def accept(self, now_s: float) -> None:
        """At most ACCEPTS_MAX; their CONNECTs are read when their turn comes."""
        gate, loop, backlog, ready = self._gate, self._loop, self.backlog, self._broker.ready
        if not gate.may_accept(now_s):
            self._rest()
            return
        closes = gate.closes(now_s)
        started_s = loop.clock_s
        for _ in range(min(len(backlog), ACCEPTS_MAX)):
            connection = self._accept_one(closes=closes)
            if not closes:
                connection.is_ready = True
                ready.append(connection)
                gate.let_in(connection.waited_s)
                if gate.rung is Rung.STOP and not gate.may_accept(now_s):
                    self._rest()
                    break
        self.is_ready = bool(backlog) and not self._rests
        if self.is_ready:
            ready.append(None)
        gate.spent(loop.clock_s - started_s, now_s)

    def accept_until(self, until_s: float) -> None:
        """Accept and decode one by one, and offer each to the gate."""
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
        """Not now; `sweep` listens again."""
        self._rests = True
        self.is_ready = False
        invariants = self._broker.world.invariants
        if invariants is not None:
            invariants.on_rest(self._broker)

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
