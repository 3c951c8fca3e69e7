"""Leaving: a broker that ends disconnects its clients one after the other, over a time.

All at once they would be a flash crowd for the brokers that they connect to next. The clients that
connected last are disconnected last, so a client that comes back to this broker is not ended twice
in a row. A client with packets in process has `BUSY_S` to finish them.
"""

from collections.abc import Callable, Iterable
from math import ceil
from typing import Final, Generic, Protocol, TypeVar, final

import structlog
import trio

from flowguard.flow import AdmissionWindow

STEP_S: Final = 0.1
BUSY_S: Final = 1.0
LOG_S: Final = 10.0

log = structlog.get_logger()


class Departing(Protocol):
    """A connection of a broker, or a client of a proxy."""

    @property
    def ended(self) -> bool: ...

    @property
    def window(self) -> AdmissionWindow | None: ...


C = TypeVar("C", bound=Departing)


@final
class Departures(Generic[C]):
    """Chooses the clients that are to be disconnected by now; time is an argument."""

    def __init__(
        self,
        connections: Iterable[C],
        connected_s: Callable[[C], float],
        began_s: float,
        over_s: float,
    ) -> None:
        """`connected_s`: returns the time at which a client has connected."""
        self._waiting = sorted(connections, key=connected_s, reverse=True)
        """The next one is the last."""
        self._count = len(self._waiting)
        self._busy: dict[C, float] = {}
        """Connections with packets in process, and the time at which they must end."""
        self._began_s = began_s
        self.over_s = over_s

    @property
    def left(self) -> int:
        """Number of clients that are still to be disconnected."""
        return len(self._waiting) + len(self._busy)

    def progress(self, now_s: float) -> dict[str, float]:
        """Return the number of clients at the beginning and of those that are disconnected, and the
        time until the last one is (`flowguard.ops.status.DrainProgress`)."""
        rest_s = max(0.0, self._began_s + self.over_s - now_s) if self.left else 0.0
        return {"clients": self._count, "gone": self._count - self.left, "rest_s": rest_s}

    def due(self, now_s: float) -> list[C]:
        """Return the connections to end now."""
        share = min(1.0, (now_s - self._began_s) / self.over_s)
        stay = self._count - ceil(self._count * share)
        while len(self._waiting) > stay:
            self._busy[self._waiting.pop()] = now_s + BUSY_S
        found = [each for each, until_s in self._busy.items() if _may_end(each, until_s, now_s)]
        for each in found:
            del self._busy[each]
        return [each for each in found if not each.ended]


def _may_end(connection: Departing, until_s: float, now_s: float) -> bool:
    window = connection.window
    is_busy = window is not None and window.in_process > 0 and now_s < until_s
    return connection.ended or not is_busy


async def leave(
    departures: Departures[C], end: Callable[[list[C]], None], clock: Callable[[], float]
) -> None:
    """Disconnect all clients with `end`, which is also called with none."""
    log.info("leaving", clients=departures.left, over_s=departures.over_s)
    told_s = trio.current_time()
    while departures.left:
        end(departures.due(clock()))
        if trio.current_time() - told_s >= LOG_S:
            told_s = trio.current_time()
            log.info("leaving", clients=departures.left)
        await trio.sleep(STEP_S)
