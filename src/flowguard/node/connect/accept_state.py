"""Whether new sockets are accepted, and why connections ended before MQTT began.

The driver of a node writes it, for metrics and the status page.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, final

from flowguard.flow.policy import Gate


class Rest(StrEnum):
    """Reason why a listener accepts nothing; connections then wait in the listen backlog."""

    DESCRIPTORS = "descriptors"
    """All descriptors are used."""
    REFUSALS = "refusals"
    """CONNECTs wait, and the time budget for accepting and rejecting or the memory is used up."""
    HANDSHAKES = "handshakes"
    """The maximum number of connections waits for a handshake of TLS or WebSocket."""
    LISTENER = "listener"
    """The listener has its maximum number of connections."""


class LayerFault(StrEnum):
    """Reason why a layer between the socket and MQTT gave up on a connection."""

    LEFT = "left"
    """The peer left during the handshake."""
    LATE = "late"
    """The handshake took longer than `flow.connect_timeout_s`, or the broker drains."""
    UNTRUSTED = "untrusted"
    """The peer's address is not in the listener's `proxies`."""
    NOT_PROXIED = "not_proxied"
    """The peer sent no valid header of the PROXY protocol."""
    NOT_TLS = "not_tls"
    """The peer's bytes are not TLS."""
    NOT_AGREED = "not_agreed"
    """Both sides share no TLS version, cipher or group."""
    CERTIFICATE = "certificate"
    """The client has no certificate, or the broker does not accept it."""
    ALERT = "alert"
    """The peer sent a TLS alert; usually it does not accept the broker's certificate."""
    NOT_WEBSOCKET = "not_websocket"
    """The peer's bytes are not a WebSocket handshake."""
    ORIGIN = "origin"
    """The connection comes from a web page of an origin that may not connect."""
    SUBPROTOCOL = "subprotocol"
    """The peer does not offer the WebSocket subprotocol `mqtt`."""
    FRAME = "frame"
    """The peer breaks the WebSocket protocol, or sends text."""
    BROKEN = "broken"
    """The peer's bytes cannot be decrypted, or break TLS in another way."""
    UNREAD = "unread"
    """The peer makes TLS or WebSocket answer, and does not read the answers."""


class CheckOutcome(StrEnum):
    """Outcome of the authentication of a CONNECT."""

    RIGHT = "right"
    """The password or token was checked and correct."""
    WRONG = "wrong"
    """The password or token was wrong, or the user does not exist."""
    REMEMBERED = "remembered"
    """The password or token was checked before and is remembered."""
    LIMITED = "limited"
    """Rejected without a check: too many wrong attempts from the address."""
    BUSY = "busy"
    """Rejected without a check: too many checks wait."""
    LEFT = "left"
    """The client left before its check."""
    CERTIFICATE = "certificate"
    """No user name was sent, and the client's certificate was accepted."""
    ANONYMOUS = "anonymous"
    """No user name was sent; the settings decide whether the client may connect."""


OnFault = Callable[[LayerFault, object, str], None]
"""Called with the reason, the stream that failed, and a detail for the log; "" means that the fault
is only counted."""


@final
class Door:
    """Counts rests of listeners, each until the next tick, and faults."""

    def __init__(self) -> None:
        self.places: int | None = None
        """Maximum number of sockets, or None if the driver has no sockets."""
        self.resting: Rest | None = None
        """Reason why a listener rests now, or None if all accept."""
        self.leaving = False
        """True if clients are disconnected one after the other, because the broker ends."""
        self.server_reference = ""
        """The node that takes the clients when this one ends, instead of those of the settings."""
        self.drain: Callable[[float], dict[str, float]] | None = None
        """Progress of that at a time, or None before it begins."""
        self.rests: Final = dict.fromkeys(Rest, 0)
        self.handshakes: Gate[Any] | None = None
        """The gate for handshakes of TLS and WebSocket, or None if the driver has none."""
        self.handshake_bytes = 0
        """Maximum memory of unfinished TLS handshakes, besides that of their connections."""
        self.checks: Final = dict.fromkeys(CheckOutcome, 0)
        self.faults: Final = dict.fromkeys(LayerFault, 0)
        self.certificates: dict[str, float] = {}
        """Unix time at which the first certificate or list of each file expires."""
        self.relayed_count = 0
        """Connections whose bytes are passed on to another worker."""
        self.relayed_bytes = 0
        self.log_fault: OnFault | None = None
        """The log of the driver, or None if it has none."""

    def rest(self, reason: Rest) -> None:
        """Count that a listener accepts nothing until the next tick."""
        self.resting = reason
        self.rests[reason] += 1

    def fault(self, reason: LayerFault, stream: object, why: str) -> None:
        """Count that a layer has given up on its connection (`OnFault`)."""
        self.faults[reason] += 1
        if why and self.log_fault is not None:
            self.log_fault(reason, stream, why)
