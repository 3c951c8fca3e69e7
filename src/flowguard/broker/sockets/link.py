"""A socket and its connection."""

from socket import IPPROTO_TCP, MSG_DONTWAIT, TCP_INFO, socket
from struct import Struct
from typing import Final, Generic, Protocol, TypeVar, final

from flowguard.broker.layers.layer import ByteStream, Layer
from flowguard.broker.sockets.listening import Doorway
from flowguard.types import ReasonCode

LAST_DATA_RECV: Final = Struct("=52xI")
"""`tcpi_last_data_recv` in struct tcp_info of Linux: time since data or the connection came, ms."""


LOCAL: Final = "this machine"


class Carried(Protocol):
    """A connection, as its link needs it."""

    transport: object | None
    """The link, or None if it is closed."""
    waited_s: float
    """Time that the peer's data waited before they were read, seconds."""
    last_received_s: float

    @property
    def ended(self) -> bool:
        """True if the connection has ended; last bytes may still have to be sent."""

    @property
    def may_close(self) -> bool:
        """True if it has ended and its link may be closed."""

    def end(self, reason: ReasonCode | None, now_s: float) -> None:
        """End it with a reason code, or without any packet if `reason` is None."""


C = TypeVar("C", bound=Carried)


@final
class Link(Generic[C]):
    """A socket with its connection, as a loop keeps it."""

    __slots__ = (
        "connection",
        "doorway",
        "fd",
        "interest",
        "layer",
        "lingers",
        "peer_closed",
        "sock",
    )

    def __init__(self, sock: socket, interest: int, doorway: Doorway | None = None) -> None:
        """The layers below MQTT depend on the listener that accepted the connection."""
        self.doorway = doorway
        self.layer: Layer | None = None if doorway is None else doorway.layer(sock)
        self.sock: ByteStream = sock if self.layer is None else self.layer
        self.fd = sock.fileno()
        self.interest = interest
        self.lingers = False
        """True if the connection has ended and only its last bytes may still be in transit."""
        self.peer_closed = False
        self.connection: C

    def peer(self) -> str:
        """The address of the other end, for people."""
        return peer_of(self.sock, "this process" if self.doorway is None else LOCAL)

    def read(self, size_bytes: int) -> bytes | None:
        """Read at most `size_bytes`; return b"" at the end of the stream, or None if no data came.

        Any error but an OSError is raised, because it means that a layer is broken.
        """
        try:
            return self.sock.recv(size_bytes, MSG_DONTWAIT) if size_bytes else None
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def waited_s(self) -> float:
        """Return how long the peer's data have waited in the kernel, seconds. Without data, it is
        the time since the peer connected. 0 if unknown, as for a Unix socket."""
        try:
            info = self.sock.getsockopt(IPPROTO_TCP, TCP_INFO, LAST_DATA_RECV.size)
        except OSError:
            return 0.0
        (waited_ms,) = LAST_DATA_RECV.unpack(info)
        return float(waited_ms) / 1_000.0


def peer_of(stream: ByteStream, unnamed: str = LOCAL) -> str:
    """Return the address of the other end, for people; `unnamed` if its socket has no address."""
    try:
        name = stream.getpeername()
    except OSError:
        return "unknown"  # The peer has disconnected.
    if not isinstance(name, tuple):
        return unnamed
    host, port, *_ = name
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
