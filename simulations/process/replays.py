"""Replays: messages that were queued for clients while they were offline, sent piece by piece.

The `Pages` and `Turns` of `flowguard serve` decide the order. The thread of the store reads a few
of the wanted pages. The loop sends them at the end of its turns, a piece of a page at a time and no
more than the window allows. The next page is wanted when all of it is acknowledged. A client that
loses its connection gets the unacknowledged messages on the next one.
"""

from math import inf
from sys import maxsize
from typing import TYPE_CHECKING, final

from flowguard.node.loop.pages import READ_LEAST, Pages
from flowguard.session.outbound.backlog import PAGE_MAX, PIECE_MAX
from simulations.crowd.connection import CONNECTED, Connection, QueuedPage

if TYPE_CHECKING:
    from simulations.process.broker import Broker


@final
class Replays:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._engine = broker.engine
        takes_turns = broker.plan.takes_turns
        self.pages: Pages[Connection, Connection] = (
            Pages(read_max=READ_LEAST) if takes_turns else _all_at_once()
        )
        """Reads `READ_LEAST` pages at a time, because all pages are full."""
        self._piece_max = PIECE_MAX if takes_turns else PAGE_MAX
        self._held: dict[Connection, None] = {}
        """Clients whose page is being read, or is not acknowledged."""

    @property
    def held_bytes(self) -> int:
        """Bytes of the pages that are in memory or being read."""
        packet_bytes = self._broker.plan.packet_bytes
        return sum(
            _page(connection) * (packet_bytes + connection.population.plan.queued_bytes)
            for connection in self._held
        )

    @property
    def is_ready(self) -> bool:
        """True if a page only waits for its turn."""
        return bool(self.pages.ready)

    def want(self, connection: Connection) -> None:
        """Request the next page of a client, if there is one."""
        if connection.state == CONNECTED and _page(connection):
            self.pages.wanted.append(connection)
            self._broker.loop.wake()

    def forget(self, connection: Connection) -> None:
        self._held.pop(connection, None)

    def read(self, now_s: float) -> None:
        """Between two turns: let the store read the wanted pages."""
        reading = self.pages.to_read()
        if reading:
            self._held.update(dict.fromkeys(reading))
            reads_s = self._broker.machine.disk.pages_s(len(reading))
            self._engine.at(now_s + reads_s, self._came, reading)

    def _came(self, connections: list[Connection]) -> None:
        if not self._broker.loop.ended:
            for connection in connections:
                replay = connection.replay = connection.replay or QueuedPage()
                replay.unsent = _page(connection)
                replay.asked = True
            self.pages.came(connections)
            self._broker.loop.wake()

    def send(self, connection: Connection) -> None:
        broker, replay = self._broker, connection.replay
        if connection.state != CONNECTED or replay is None:
            return
        room = broker.guard.window.limit - replay.inflight
        count = max(0, min(self._piece_max, replay.unsent, room))
        replay.unsent -= count
        replay.inflight += count
        replay.asked = False
        self._ask(connection, replay)
        started_s = broker.loop.clock_s
        broker.spend(count * broker.plan.delivery_s)
        broker.guard.window.worked(broker.loop.clock_s - started_s, movable=False)
        latency_s = broker.world.scenario.network.latency_s
        when_s = broker.loop.clock_s + 2.0 * latency_s
        self._engine.at(when_s, self._acknowledge, (connection, count))

    def _ask(self, connection: Connection, replay: QueuedPage) -> None:
        """Request a turn, if there is something to send and the window has capacity for it."""
        has_room = replay.inflight < self._broker.guard.window.limit
        if replay.unsent and has_room and not replay.asked:
            replay.asked = True
            self.pages.ready.append(connection)

    def _acknowledge(self, item: tuple[Connection, int]) -> None:
        self._broker.acknowledge(*item)

    def acknowledged(self, connection: Connection, replay: QueuedPage, now_s: float) -> None:
        """Read the PUBACKs of a socket."""
        count, replay.unread = replay.unread, 0
        if not count:
            return
        replay.inflight -= count
        connection.population.replayed(connection.client, count, now_s)
        self._ask(connection, replay)
        if not replay.unsent and not replay.inflight:
            self._held.pop(connection, None)
            self.want(connection)


def _page(connection: Connection) -> int:
    return min(PAGE_MAX, connection.population.queued[connection.client])


def _all_at_once() -> Pages[Connection, Connection]:
    """Return pages without limits: all wanted pages are read together, all ready ones are sent."""
    return Pages(turn_s=inf, rest=0, read_max=maxsize, ready_max=maxsize)
