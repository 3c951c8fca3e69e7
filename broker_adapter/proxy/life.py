"""Life: the begin and the end of a client's connection, as the log and `explain` show them.

`ProxyLives` has those of all clients.
"""

from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar, final

from flowguard.flow.load.histogram import Histogram
from flowguard.session.counters import Counters
from flowguard.session.lives import End, reason_of
from flowguard.types import ReasonCode

BY_PROXY: Final = "proxy"
BY_UPSTREAM: Final = "answer of the broker behind"
NONE: Final = -1


@final
class Life:
    """One per pair."""

    __slots__ = (
        "admitted_s",
        "by_broker",
        "by_client",
        "by_proxy",
        "client_id",
        "connected_s",
        "is_lost",
    )

    def __init__(self) -> None:
        self.client_id = ""
        """The client id in its CONNECT, or "" before it and if the upstream is to choose one."""
        self.admitted_s = 0.0
        """Time at which its CONNECT passed the gate, or 0."""
        self.connected_s = 0.0
        """Time of its CONNACK, or 0."""
        self.by_client = NONE
        """Reason code of the client's DISCONNECT, or NONE."""
        self.by_broker = NONE
        """Reason code of the upstream's DISCONNECT, or NONE."""
        self.by_proxy: ReasonCode | None = None
        """The proxy's reason to end the connection, or None."""
        self.is_lost = False
        """True if the client's socket ended first."""

    def end(self, now_s: float, address: str) -> End:
        """Return the end of a connected client."""
        reason, by = reason_of(
            self.by_proxy or code_of(self.by_broker), code_of(self.by_client), is_lost=self.is_lost
        )
        if self.by_proxy is not None and self.by_client == NONE:
            by = BY_PROXY
        return End(now_s, reason, by, now_s - self.connected_s, "", address)


def code_of(number: int) -> ReasonCode | None:
    """Return a reason code that a peer sent, or None for none and for an unknown one."""
    return ReasonCode(number) if number in _CODES else None


_CODES: Final = frozenset(int(code) for code in ReasonCode)


class Living(Protocol):
    @property
    def life(self) -> Life: ...


P = TypeVar("P", bound=Living)


@final
class ProxyLives(Generic[P]):
    """The clients of a proxy by their id, and the callbacks of its log."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self.clients: dict[str, P] = {}
        """Pairs by client id; of several, the one that is connected."""
        self.connect_service = Histogram()
        """Times from the gate to the upstream's CONNACK, seconds."""
        self.on_connected: Callable[[P], None] | None = None
        self.on_ended: Callable[[P, End], None] | None = None
        self.on_rejected: Callable[[P, int, str], None] | None = None
        """Called with a rejected CONNECT, its code, and the reason of the gate, `BY_UPSTREAM` or
        ""."""

    def offered(self, pair: P, client_id: str) -> None:
        """Note the client id of a CONNECT, or "" for none."""
        if client_id:
            pair.life.client_id = client_id
            self.clients.setdefault(client_id, pair)

    def connected(self, pair: P, now_s: float) -> None:
        """Note a CONNACK of the upstream with success."""
        life = pair.life
        life.connected_s = now_s
        self.connect_service.observe(now_s - life.admitted_s)
        self._counters.client_connected()
        if life.client_id:
            before = self.clients.get(life.client_id)
            if before is not None and before is not pair and before.life.connected_s:
                self._counters.takeovers += 1
            self.clients[life.client_id] = pair
        if self.on_connected is not None:
            self.on_connected(pair)

    def rejected(self, pair: P, code: int, why: str) -> None:
        self._counters.connects_refused += 1
        if self.on_rejected is not None:
            self.on_rejected(pair, code, why)

    def gone(self, pair: P, address: str, now_s: float) -> None:
        """Forget a pair; count, remember and report the end of a connected client."""
        life = pair.life
        if self.clients.get(life.client_id) is pair:
            del self.clients[life.client_id]
        if life.by_proxy is ReasonCode.MALFORMED_PACKET:
            self._counters.malformed += 1
        if not life.connected_s:
            return
        end = life.end(now_s, address)
        self._counters.clients_connected -= 1
        self._counters.lives.count(life.client_id, end)
        if self.on_ended is not None:
            self.on_ended(pair, end)
