"""Replays: what was queued for clients while they were away, sent page by page.

This is what `flowguard.broker.committer` does with `Node.fetches`: all pages that are wanted are
read together, by the thread of the store, then sent together. A client's next page is wanted when
it has acknowledged the one before. Who loses its connection gets the rest, and a page that it had
not acknowledged, on the next one.
"""

from typing import TYPE_CHECKING, final

from flowguard.session.backlog import PAGE_MAX
from simulations.connection import CONNECTED, Connection

if TYPE_CHECKING:
    from simulations.broker import Broker


@final
class Replays:
    """One process's."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._engine = broker.engine
        self._wanted: list[Connection] = []
        self._reading: list[Connection] = []
        self._is_read = False

    @property
    def held_bytes(self) -> int:
        """Of the pages that are being read, or are read and not sent."""
        packet_bytes = self._broker.plan.packet_bytes
        return sum(
            _page(connection) * (packet_bytes + connection.population.plan.queued_bytes)
            for connection in self._reading
        )

    def want(self, connection: Connection) -> None:
        """The next page, if there is one."""
        if connection.state == CONNECTED and _page(connection):
            self._wanted.append(connection)
            self._broker.loop.wake()

    def run(self, now_s: float) -> None:
        """Between two turns: send what is read, have the store read what is wanted."""
        if self._is_read:
            self._is_read = False
            reading, self._reading = self._reading, []
            for connection in reading:
                self._send(connection)
        if self._wanted and not self._reading:
            self._reading, self._wanted = self._wanted, []
            self._read(now_s)

    def _read(self, now_s: float) -> None:
        machine = self._broker.machine
        reads_s = machine.disk.pages_s(len(self._reading))
        self._engine.at(now_s + reads_s, self._done, None)

    def _done(self, _: None) -> None:
        if not self._broker.loop.ended:
            self._is_read = True
            self._broker.loop.wake()

    def _send(self, connection: Connection) -> None:
        broker, count = self._broker, _page(connection)
        if connection.state != CONNECTED:
            return
        broker.spend(count * broker.plan.delivery_s)
        latency_s = broker.world.scenario.network.latency_s
        self._engine.at(broker.loop.clock_s + 2.0 * latency_s, self._acknowledged, connection)

    def _acknowledged(self, connection: Connection) -> None:
        if connection.state == CONNECTED:
            count = _page(connection)
            connection.population.replayed(connection.client, count, self._engine.now_s)
            self.want(connection)


def _page(connection: Connection) -> int:
    return min(PAGE_MAX, connection.population.queued[connection.client])
