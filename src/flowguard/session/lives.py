"""Lives: begin and end of clients' connections, counted, and reported to the driver's log."""

from collections.abc import Callable
from typing import Final, NamedTuple, final

from flowguard.codec.tables import DISCONNECT_REASONS_OF_CLIENT, DISCONNECT_REASONS_OF_SERVER
from flowguard.session.conversation import Conversation
from flowguard.types import ReasonCode

BY_CLIENT: Final = "client"
BY_BROKER: Final = "broker"
BY_NETWORK: Final = "network"
LOST: Final = "connection_lost"
"""The connection ended without a DISCONNECT of the client."""
CLOSED: Final = "closed"
"""The broker closed the connection without a reason code, as for a socket that failed."""
LAST_MAX: Final = 4_096
LAST_NAME_MAX: Final = 128
"""Bounds of the remembered ends: their number, and the characters of a client id."""
ROW_GAP_S: Final = 300.0
"""Ends of a client's connections form a row if each is at most this long after the one before."""
NORMAL: Final = "normal_disconnection"
AUTHENTICATION: Final = frozenset(
    {
        ReasonCode.BAD_USER_NAME_OR_PASSWORD,
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.BANNED,
        ReasonCode.BAD_AUTHENTICATION_METHOD,
    }
)
"""Reason codes that reject a CONNECT because of the client's identity."""

REASONS: Final = (
    NORMAL,
    LOST,
    CLOSED,
    *(
        ReasonCode(code).name.lower()
        for code in sorted(DISCONNECT_REASONS_OF_CLIENT | DISCONNECT_REASONS_OF_SERVER)
        if code
    ),
)
"""All reasons that an end can have."""


class End(NamedTuple):
    """The end of a client's connection."""

    at_s: float
    reason: str
    """Name of the reason code, `connection_lost` or `closed`."""
    by: str
    """`client`, `broker` or `network`."""
    lasted_s: float
    """Time since CONNACK, seconds."""
    why: str
    """Details beyond the reason, or ""."""
    address: str = ""
    """Address of the client, or "" if it is unknown."""
    row_count: int = 1
    """Number of ends in the row that this one belongs to, up to this one."""
    row_began_s: float = 0.0
    """Time of the first end of this row."""


Connected = Callable[[Conversation, bool], None]
"""Called before CONNACK is written, with the connection and True if a session was present."""
Ended = Callable[[Conversation, str, End], None]
"""Called with the connection, its client id and its end."""


@final
class Lives:
    """One per node."""

    def __init__(self) -> None:
        self.ends: dict[str, int] = {}
        """Number of ended connections of clients, by reason."""
        self.authentication_failures: dict[str, int] = {}
        """Number of CONNECTs rejected because of the client's identity, by reason code."""
        self.last: dict[str, End] = {}
        """The latest ends, by client id, oldest first."""
        self.on_connected: Connected | None = None
        self.on_ended: Ended | None = None

    def began(self, connection: Conversation, present: bool) -> None:
        """Report an accepted client."""
        if self.on_connected is not None:
            self.on_connected(connection, present)

    def refused(self, reason: ReasonCode) -> None:
        """Count a rejected CONNECT if its reason is the client's identity."""
        if reason in AUTHENTICATION:
            name = reason.name.lower()
            counts = self.authentication_failures
            counts[name] = counts.get(name, 0) + 1

    def ended(self, connection: Conversation, client_id: str, end: End) -> None:
        """Count, remember and report the end of a client's connection."""
        self.count(client_id, end)
        if self.on_ended is not None:
            self.on_ended(connection, client_id, end)

    def count(self, client_id: str, end: End) -> None:
        """Count and remember the end of a client's connection."""
        self.ends[end.reason] = self.ends.get(end.reason, 0) + 1
        last = self.last
        before = last.pop(client_id, None)
        count, began_s = 1, end.at_s
        if before is not None and end.at_s - before.at_s <= ROW_GAP_S:
            count, began_s = before.row_count + 1, before.row_began_s
        end = end._replace(row_count=count, row_began_s=began_s)
        if len(client_id) <= LAST_NAME_MAX:
            if len(last) >= LAST_MAX:
                del last[next(iter(last))]
            last[client_id] = end


def reason_of(
    by_broker: ReasonCode | None, by_client: ReasonCode | None, *, is_lost: bool
) -> tuple[str, str]:
    """Return the reason of an end, and what caused it.

    `by_broker` is the reason code of the broker, `by_client` that of the client's DISCONNECT.
    `is_lost` if the socket ended first.
    """
    if by_client is not None:
        normal = by_client == ReasonCode.SUCCESS
        return (NORMAL if normal else by_client.name.lower()), BY_CLIENT
    if by_broker is not None:
        return by_broker.name.lower(), BY_BROKER
    return (LOST, BY_NETWORK) if is_lost else (CLOSED, BY_BROKER)
