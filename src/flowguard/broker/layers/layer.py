"""Layer: a stream between a socket and MQTT that the reactor uses like a socket.

A layer has the five methods of a socket that the reactor uses, with the same errors: `recv` and
`send` raise `BlockingIOError` if no data came or no data can be sent. One more, `flush`, sends the
layer's own output. Layers stack: WebSocket on TLS on a socket.
"""

from contextlib import suppress
from socket import MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_RD
from typing import Final, Protocol

from flowguard.node.connect.accept_state import LayerFault, OnFault

PENDING_MAX_BYTES: Final = 64 * 1024
"""Maximum output of a layer that the stream below does not take; a peer that causes more without
reading is closed, bytes."""
FLAGS: Final = MSG_DONTWAIT | MSG_NOSIGNAL


class ByteStream(Protocol):
    """The part of a socket that reactor and layers use."""

    def recv(self, size_bytes: int, flags: int = 0, /) -> bytes:
        """Return data, or b"" at the end of the stream. Raises BlockingIOError, OSError."""

    def send(self, data: bytes, flags: int = 0, /) -> int:
        """Send what fits; return the number of bytes sent. Raises BlockingIOError, OSError."""

    def shutdown(self, how: int, /) -> None:
        """Shut down the sending half. Raises OSError."""

    def getsockopt(self, level: int, option: int, size_bytes: int, /) -> bytes:
        """Return an option of the socket. Raises OSError."""

    def getpeername(self) -> object:
        """Return the address of the other end. Raises OSError."""

    def getsockname(self) -> object:
        """Return the address of this end. Raises OSError."""

    def fileno(self) -> int:
        """Return the descriptor of the socket, or -1 if it is closed."""

    def close(self) -> None:
        """Close the socket, without any packet."""


class Layer(ByteStream, Protocol):
    """A stream that runs its own protocol on another stream."""

    @property
    def established(self) -> bool:
        """True if the handshake is complete, and MQTT bytes may pass."""

    @property
    def begun(self) -> bool:
        """True if the costly part of the handshake is done, because we have answered the peer."""

    @property
    def identity(self) -> str | None:
        """The name that the peer has proved, or None."""

    def flush(self) -> bool:
        """Send the layer's output; return False if the socket takes no more of it now.

        Raises OSError.
        """


def end_reading(stream: ByteStream) -> None:
    """Make the next `recv` report the end of the stream, which a layer above has received."""
    with suppress(OSError):  # The peer has closed already.
        stream.shutdown(SHUT_RD)


class OnSocket:
    """The part of a layer that the stream below it, or finally the socket, implements."""

    __slots__ = ("_sock",)

    def __init__(self, sock: ByteStream) -> None:
        self._sock = sock

    def getsockopt(self, level: int, option: int, size_bytes: int) -> bytes:
        return self._sock.getsockopt(level, option, size_bytes)

    def getpeername(self) -> object:
        return self._sock.getpeername()

    def getsockname(self) -> object:
        return self._sock.getsockname()

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()


class Answering(OnSocket):
    """The part of a layer that sends bytes of its own, besides those of the stream above."""

    __slots__ = ("_on_fault", "_pending", "_said_last")

    def __init__(self, sock: ByteStream, on_fault: OnFault) -> None:
        super().__init__(sock)
        self._on_fault = on_fault
        self._pending = b""
        """Bytes that the stream below has not taken."""
        self._said_last = False

    def flush(self) -> bool:
        """Send pending bytes; return False if some are left."""
        while self._pending:
            try:
                sent_bytes = self._sock.send(self._pending, FLAGS)
            except BlockingIOError:
                return False
            self._pending = self._pending[sent_bytes:]
        return True

    def _leave(self) -> None:
        try:
            self.flush()
        except OSError:
            return  # The peer has closed, but the data it sent counts: the next `recv` returns it.
        if len(self._pending) > PENDING_MAX_BYTES:
            why = "the client does not read the answers of TLS or WebSocket"
            self._fail(LayerFault.UNREAD, why)
            raise ConnectionResetError(why)

    def _fail(self, fault: LayerFault, why: str) -> None:
        self._said_last = True
        self._on_fault(fault, self, why)
