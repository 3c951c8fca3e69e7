"""Leaving: a broker that ends disconnects its clients one after the other, over a time.

All at once they would be a flash crowd for the brokers that they connect to next. The clients that
connected last are disconnected last, so a client that comes back to this broker is not ended twice
in a row. A client with packets in process has `BUSY_S` to finish them.
"""

from collections.abc import Callable, Iterable
from math import ceil
from typing import Final, final

import structlog
import trio

from flowguard.broker.sockets.reactor import Reactor
from flowguard.node.node import Node
from flowguard.session.connection import ServerConnection
from flowguard.types import ReasonCode

STEP_S: Final = 0.1
BUSY_S: Final = 1.0
LOG_S: Final = 10.0

log = structlog.get_logger()


@final
class Departures:
    """Chooses the clients that are to be disconnected by now; time is an argument."""

    def __init__(
        self, connections: Iterable[ServerConnection], began_s: float, over_s: float
    ) -> None:
        self._waiting = sorted(connections, key=lambda each: each.connected_s, reverse=True)
        """The next one is the last."""
        self._count = len(self._waiting)
        self._busy: dict[ServerConnection, float] = {}
        """Connections with packets in process, and the time at which they must end."""
        self._began_s = began_s
        self._over_s = over_s

    @property
    def left(self) -> int:
        """Number of clients that are still to be disconnected."""
        return len(self._waiting) + len(self._busy)

    def due(self, now_s: float) -> list[ServerConnection]:
        """Return the connections to end now."""
        share = min(1.0, (now_s - self._began_s) / self._over_s)
        stay = self._count - ceil(self._count * share)
        while len(self._waiting) > stay:
            self._busy[self._waiting.pop()] = now_s + BUSY_S
        found = [each for each, until_s in self._busy.items() if _may_end(each, until_s, now_s)]
        for each in found:
            del self._busy[each]
        return [each for each in found if not each.ended]


def _may_end(connection: ServerConnection, until_s: float, now_s: float) -> bool:
    inbound = connection.inbound
    is_busy = inbound is not None and inbound.window.in_process > 0 and now_s < until_s
    return connection.ended or not is_busy


async def leave(node: Node, reactor: Reactor, clock: Callable[[], float], over_s: float) -> None:
    """Accept no new connections, and disconnect all clients within `over_s` seconds, evenly."""
    reactor.stop_listening()
    node.door.leaving = True
    departures = Departures(reactor.connections(), clock(), over_s)
    log.info("leaving", clients=departures.left, over_s=over_s)
    told_s = trio.current_time()
    while departures.left:
        for connection in departures.due(clock()):
            connection.end(ReasonCode.SERVER_SHUTTING_DOWN, clock())
        reactor.turns.end_slice(clock())
        reactor.wake()
        if trio.current_time() - told_s >= LOG_S:
            told_s = trio.current_time()
            log.info("leaving", clients=departures.left)
        await trio.sleep(STEP_S)
