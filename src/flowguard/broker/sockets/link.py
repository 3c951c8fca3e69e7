"""A socket and the conversation it carries."""

from socket import IPPROTO_TCP, MSG_DONTWAIT, TCP_INFO, socket
from struct import Struct
from typing import Final, Generic, Protocol, TypeVar, final

from flowguard.broker.layers.layer import ByteStream, Layer
from flowguard.broker.sockets.listening import Doorway
from flowguard.types import ReasonCode

LAST_DATA_RECV: Final = Struct("=52xI")
"""`tcpi_last_data_recv` in struct tcp_info of Linux: since data or the connection came, ms."""


LOCAL: Final = "this machine"


class Carried(Protocol):
    """A conversation, as far as its link is concerned."""

    transport: object | None
    """Its link; None: that is closed."""
    waited_s: float
    """How long what its peer sent has waited, before it was heard."""
    last_received_s: float

    @property
    def ended(self) -> bool:
        """Whether it is over; a last word may be left to be sent."""

    @property
    def may_close(self) -> bool:
        """Whether it is over, and its link need not stay open for anything else."""

    def end(self, reason: ReasonCode | None, now_s: float) -> None:
        """End it; None: without a word."""


C = TypeVar("C", bound=Carried)


@final
class Link(Generic[C]):
    """A socket with its conversation, as a loop keeps it."""

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
        """`doorway`: where it came in, which says what stands between socket and MQTT."""
        self.doorway = doorway
        self.layer: Layer | None = None if doorway is None else doorway.layer(sock)
        self.sock: ByteStream = sock if self.layer is None else self.layer
        self.fd = sock.fileno()
        self.interest = interest
        self.lingers = False
        """True once the conversation is over and only a last word may still be on its way."""
        self.peer_closed = False
        self.connection: C

    def peer(self) -> str:
        """The address of the other end, for people."""
        return peer_of(self.sock, "this process" if self.doorway is None else LOCAL)

    def read(self, size_bytes: int) -> bytes | None:
        """Read at most so many bytes; empty: the stream has ended. None: there are none now.

        What is no OSError is raised: a layer is broken.
        """
        try:
            return self.sock.recv(size_bytes, MSG_DONTWAIT) if size_bytes else None
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def waited_s(self) -> float:
        """How long the data of the peer has waited in the kernel; without data: since it
        connected. 0: that is not known, as of a Unix socket."""
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
        return "unknown"  # It is gone already.
    if not isinstance(name, tuple):
        return unnamed
    host, port, *_ = name
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
