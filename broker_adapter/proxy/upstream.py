"""Upstream: one of the brokers behind a proxy, as far as it can be seen from here."""

from collections.abc import Sequence
from ssl import SSLContext
from typing import Final, final

from broker_adapter.proxy.packets import Outstanding

BUSY: Final = frozenset((3, 0x88, 0x89, 0x97))
"""CONNACK codes by which an upstream says that it cannot now."""
BUSY_S: Final = 1.0
"""So long a broker's own refusals are pressure."""
DIAL_S: Final = 5.0
"""An upstream that takes longer to answer does not, however many addresses it has."""
PLACE_S: Final = 1.0
"""The least that one of its addresses has of that."""

Place = tuple[int, tuple[str, int]]
"""An address as sockets name it: the family, and what `connect` takes."""


@final
class Upstream:
    """Its addresses, and its health."""

    __slots__ = (
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
    )

    def __init__(
        self,
        name: str = "upstream",
        places: Sequence[Place] = ((0, ("", 0)),),
        host: str = "",
        tls: SSLContext | None = None,
    ) -> None:
        """`places`: one at least, which are tried in this order, all round; `host`: whose
        certificate it must have where there is `tls`."""
        self.name = name
        """As its address was written."""
        self.places = tuple(places)
        self.first = self.places[0]
        """The one that is tried first: it has answered last, or its turn has come."""
        self.host = host
        self.tls = tls
        self.is_up = True
        """Whether it was there when it was last asked."""
        self.probe_s = 0.0
        """When it may be asked again, where it was not."""
        self.busy_until_s = 0.0
        self.dials = 0
        """Connections to it that are being opened."""
        self.pairs_count = 0
        """Clients that it has, or that are on their way to it."""
        self.in_process: dict[Outstanding, None] = {}
        """Packets, the oldest first."""

    def age_s(self, now_s: float) -> float:
        """How long the oldest packet in process has waited for it."""
        if not self.in_process:
            return 0.0
        return now_s - next(iter(self.in_process)).since_s

    def is_busy(self, now_s: float) -> bool:
        """Whether it has just refused somebody for that."""
        return now_s < self.busy_until_s

    def pressure(self, now_s: float, objective_s: float) -> float:
        """How long it takes, as a multiple of what it may; 1 where it is calm."""
        return max(1.0, self.age_s(now_s) / objective_s, 2.0 * self.is_busy(now_s))


@final
class Dial:
    """A connection to an upstream that is being opened, at one of its addresses after the other."""

    __slots__ = ("_began_at", "_end_s", "_left", "_upstream", "place", "until_s")

    def __init__(self, upstream: Upstream, now_s: float) -> None:
        self._upstream = upstream
        self._began_at = self.place = upstream.first
        """`place`: the address that is tried."""
        at = upstream.places.index(self.place)
        self._left = [*upstream.places[at + 1 :], *upstream.places[:at]]
        self._end_s = now_s + DIAL_S
        self.until_s = self._share_s(now_s)
        """So long it is tried."""

    def _share_s(self, now_s: float) -> float:
        """The end of one's part of the time that is left."""
        share_s = (self._end_s - now_s) / (1 + len(self._left))
        return min(self._end_s, now_s + max(PLACE_S, share_s))

    def go_on(self, now_s: float) -> bool:
        """Try the next address; False: there is none left, or no time.

        Then the next dial begins where this one has ended, unless another has found one that
        answers.
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
        """The address answers: it is the first one that is tried from now on."""
        self._upstream.first = self.place
