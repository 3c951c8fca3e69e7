"""Upstream: one of the brokers behind a proxy, with the health that the proxy observes."""

from collections.abc import Sequence
from ssl import SSLContext
from typing import Final, final

from broker_adapter.proxy.packets import Outstanding

BUSY: Final = frozenset((3, 0x88, 0x89, 0x97))
"""CONNACK codes by which an upstream reports that it is temporarily unable."""
BUSY_S: Final = 1.0
"""Time for which such a rejection counts as pressure, seconds."""
DIAL_S: Final = 5.0
"""Maximum time for an upstream to answer, over all its addresses, seconds."""
PLACE_S: Final = 1.0
"""Minimum share of that time for each of its addresses, seconds."""

Place = tuple[int, tuple[str, int]]
"""A socket address: the family, and the argument of `connect`."""


@final
class Upstream:
    """The addresses of an upstream, and its health."""

    __slots__ = (
        "away_since_s",
        "busy_until_s",
        "dials",
        "first",
        "host",
        "in_process",
        "is_up",
        "name",
        "pairs_count",
        "places",
        "probe_s",
        "tls",
        "why",
    )

    def __init__(
        self,
        name: str = "upstream",
        places: Sequence[Place] = ((0, ("", 0)),),
        host: str = "",
        tls: SSLContext | None = None,
    ) -> None:
        """`places`: its addresses, at least one, tried cyclically in this order; `host`: the name
        in its certificate if `tls` is set."""
        self.name = name
        """Address as configured."""
        self.places = tuple(places)
        self.first = self.places[0]
        """The address to try first: the last that answered, or the next in order."""
        self.host = host
        self.tls = tls
        self.is_up = True
        """True if it answered the last try."""
        self.away_since_s = 0.0
        """Time since which it does not answer, if it is unavailable."""
        self.why = ""
        """Error of the last try, or ""."""
        self.probe_s = 0.0
        """Time of the next try, if it is unavailable."""
        self.busy_until_s = 0.0
        self.dials = 0
        """Connections to it that are being opened."""
        self.pairs_count = 0
        """Clients that are connected or connecting to it."""
        self.in_process: dict[Outstanding, None] = {}
        """Packets in process, oldest first."""

    def age_s(self, now_s: float) -> float:
        """Return how long the oldest packet in process has waited, seconds."""
        if not self.in_process:
            return 0.0
        return now_s - next(iter(self.in_process)).since_s

    def is_busy(self, now_s: float) -> bool:
        """True if it has just rejected a CONNECT as busy."""
        return now_s < self.busy_until_s

    def pressure(self, now_s: float, objective_s: float) -> float:
        """Return its response time as a multiple of the objective; 1 if it is calm."""
        return max(1.0, self.age_s(now_s) / objective_s, 2.0 * self.is_busy(now_s))


@final
class Dial:
    """A connection to an upstream that is being opened, trying its addresses in turn."""

    __slots__ = ("_began_at", "_end_s", "_left", "_upstream", "place", "until_s")

    def __init__(self, upstream: Upstream, now_s: float) -> None:
        self._upstream = upstream
        self._began_at = self.place = upstream.first
        """`place`: the address being tried."""
        at = upstream.places.index(self.place)
        self._left = [*upstream.places[at + 1 :], *upstream.places[:at]]
        self._end_s = now_s + DIAL_S
        self.until_s = self._share_s(now_s)
        """End of the try of this address."""

    def _share_s(self, now_s: float) -> float:
        """Return the end of one address's share of the remaining time."""
        share_s = (self._end_s - now_s) / (1 + len(self._left))
        return min(self._end_s, now_s + max(PLACE_S, share_s))

    def go_on(self, now_s: float) -> bool:
        """Try the next address; return False if no address or time is left.

        In that case the next dial begins with the first untried address, unless another dial has
        found one that answers.
        """
        upstream = self._upstream
        if self._left and now_s < self._end_s:
            self.place = self._left.pop(0)
            self.until_s = self._share_s(now_s)
            return True
        if self._left and upstream.first == self._began_at:
            upstream.first = self._left[0]
        return False

    def answered(self) -> None:
        """Note that the address answers; it is tried first from now on."""
        self._upstream.first = self.place
