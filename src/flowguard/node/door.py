"""Door: whether new sockets are accepted, and why connections ended before MQTT began, for whoever
shows it; the driver of a node writes it."""

from enum import StrEnum
from typing import Any, Final, final

from flowguard.flow.policy import Gate


class Rest(StrEnum):
    """Why a listener rests: who comes then waits in the kernel's backlog."""

    DESCRIPTORS = "descriptors"
    """There is no place for one more socket."""
    PRESSURE = "pressure"
    """The top rung of the shedding ladder."""
    REFUSALS = "refusals"
    """The budget for accepting and refusing is spent, and CONNECTs wait."""
    HANDSHAKES = "handshakes"
    """As many as may wait unread for a handshake of TLS or WebSocket."""
    LISTENER = "listener"
    """As many have come in through this listener as may."""


class LayerFault(StrEnum):
    """Why a layer between the socket and MQTT gave up on a connection."""

    LEFT = "left"
    """The peer has left before both sides had agreed."""
    LATE = "late"
    """The broker ended it before: both sides took too long to agree, or it drains."""
    UNTRUSTED = "untrusted"
    """It is no proxy that may say whose a connection is, and the listener is for those."""
    NOT_PROXIED = "not_proxied"
    """It does not say whose connection it is, or says it in another way than PROXY protocol v2."""
    NOT_TLS = "not_tls"
    """Its bytes are no TLS."""
    NOT_AGREED = "not_agreed"
    """No version, cipher or group of TLS is known to both sides."""
    CERTIFICATE = "certificate"
    """The client has no certificate, or one that is not accepted."""
    ALERT = "alert"
    """The peer gave up, and said so: most often it does not accept our certificate."""
    NOT_WEBSOCKET = "not_websocket"
    """Its bytes are no opening handshake of WebSocket."""
    ORIGIN = "origin"
    """A web page of an origin that may not connect."""
    SUBPROTOCOL = "subprotocol"
    """It does not offer the WebSocket subprotocol `mqtt`."""
    FRAME = "frame"
    """It breaks WebSocket, or sends text."""
    BROKEN = "broken"
    """What came cannot be decrypted, or breaks TLS in another way."""
    UNREAD = "unread"
    """It makes the layer answer, and reads no answer."""


class CheckOutcome(StrEnum):
    """How the question was answered who a CONNECT is from."""

    RIGHT = "right"
    """Password or token was checked, and right."""
    WRONG = "wrong"
    """It was wrong, or there is no such user."""
    REMEMBERED = "remembered"
    """It is known to be right."""
    LIMITED = "limited"
    """Refused without a check: its address was wrong too often."""
    BUSY = "busy"
    """Refused without a check: too many wait for one."""
    LEFT = "left"
    """The client had left when it was its turn."""
    CERTIFICATE = "certificate"
    """It says no user name, and its certificate was accepted."""
    ANONYMOUS = "anonymous"
    """It says no user name; the settings say whether it may connect."""


@final
class Door:
    """Listeners rest for a tick at a time; each time is counted, and so is each fault."""

    def __init__(self) -> None:
        self.places: int | None = None
        """Sockets that there may be at once; None: the driver has none."""
        self.resting: Rest | None = None
        """Why a listener rests now; None: all accept."""
        self.rests: Final = dict.fromkeys(Rest, 0)
        self.handshakes: Gate[Any] | None = None
        """The gate for handshakes of TLS and WebSocket; None: the driver has none."""
        self.handshake_bytes = 0
        """Memory of unfinished TLS handshakes besides that of their connections, at most."""
        self.checks: Final = dict.fromkeys(CheckOutcome, 0)
        self.faults: Final = dict.fromkeys(LayerFault, 0)

    def rest(self, reason: Rest) -> None:
        """A listener is left alone until the next tick."""
        self.resting = reason
        self.rests[reason] += 1

    def fault(self, reason: LayerFault) -> None:
        """A layer has given up on its connection."""
        self.faults[reason] += 1
