"""Replays: messages that were queued for clients while they were offline, sent piece by piece.

The `Pages` and `Turns` of `flowguard serve` decide the order. The thread of the store reads a few
of the wanted pages. The loop sends them at the end of its turns, a piece of a page at a time and no
more than the window allows. The next page is wanted when all of it is acknowledged. A client that
loses its connection gets the unacknowledged messages on the next one.
"""

from collections.abc import Callable
from math import inf
from sys import maxsize
from typing import final

from flowguard.flow import NodeWindow
from flowguard.node.loop.pages import READ_LEAST, Pages
from flowguard.session.outbound.backlog import PAGE_MAX, PIECE_MAX
from simulations.crowd.connection import CONNECTED, Connection, QueuedPage
from simulations.process.host import ProcessHost
from simulations.process.loop import Loop


@final
class Replays:
    def __init__(
        self, host: ProcessHost, window: NodeWindow, loop: Loop, spend: Callable[[float], None]
    ) -> None:
        """`spend` does work of a duration, seconds."""
        self._host = host
        self._plan = host.world.scenario.node
        self._engine = host.world.engine
        self._window = window
        self._loop = loop
        self._spend = spend
        takes_turns = self._plan.takes_turns
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
        packet_bytes = self._plan.packet_bytes
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
            self._loop.wake()

    def forget(self, connection: Connection) -> None:
        self._held.pop(connection, None)

    def read(self, now_s: float) -> None:
        """Between two turns: let the store read the wanted pages."""
        reading = self.pages.to_read()
        if reading:
            self._held.update(dict.fromkeys(reading))
            reads_s = self._host.disk.pages_s(len(reading))
            self._engine.at(now_s + reads_s, self._came, reading)

    def _came(self, connections: list[Connection]) -> None:
        if not self._loop.ended:
            for connection in connections:
                replay = connection.replay = connection.replay or QueuedPage()
                replay.unsent = _page(connection)
                replay.asked = True
            self.pages.came(connections)
            self._loop.wake()

    def send(self, connection: Connection) -> None:
        replay, loop = connection.replay, self._loop
        if connection.state != CONNECTED or replay is None:
            return
        room = self._window.limit - replay.inflight
        count = max(0, min(self._piece_max, replay.unsent, room))
        replay.unsent -= count
        replay.inflight += count
        replay.asked = False
        self._ask(connection, replay)
        started_s = loop.clock_s
        self._spend(count * self._plan.delivery_s)
        self._window.worked(loop.clock_s - started_s, movable=False)
        when_s = loop.clock_s + 2.0 * self._host.world.scenario.network.latency_s
        self._engine.at(when_s, _acknowledge, (connection, count))

    def _ask(self, connection: Connection, replay: QueuedPage) -> None:
        """Request a turn, if there is something to send and the window has capacity for it."""
        has_room = replay.inflight < self._window.limit
        if replay.unsent and has_room and not replay.asked:
            replay.asked = True
            self.pages.ready.append(connection)

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


def _acknowledge(item: tuple[Connection, int]) -> None:
    connection, count = item
    connection.broker.acknowledge(connection, count)


def _page(connection: Connection) -> int:
    return min(PAGE_MAX, connection.population.queued[connection.client])


def _all_at_once() -> Pages[Connection, Connection]:
    """Return pages without limits: all wanted pages are read together, all ready ones are sent."""
    return Pages(turn_s=inf, rest=0, read_max=maxsize, ready_max=maxsize)
