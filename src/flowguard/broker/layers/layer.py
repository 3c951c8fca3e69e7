"""Layer: something between a socket and MQTT that looks to the reactor like the socket itself.

A layer has the five methods of a socket that the reactor uses, with the same errors: `recv` and
`send` raise `BlockingIOError` where there is nothing, or no room. One more, `flush`, sends what the
layer itself has to say. Layers stand on each other: WebSocket on TLS on a socket.
"""

from contextlib import suppress
from socket import MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_RD
from typing import Final, Protocol

from flowguard.node.connect.accept_state import LayerFault, OnFault

PENDING_MAX_BYTES: Final = 64 * 1024
"""Bytes of a layer that the stream below does not take; a peer that has caused more without reading
is closed."""
FLAGS: Final = MSG_DONTWAIT | MSG_NOSIGNAL


class ByteStream(Protocol):
    """A socket, as far as reactor and layers want to know it."""

    def recv(self, size_bytes: int, flags: int = 0, /) -> bytes:
        """Bytes that have come; empty: the stream has ended. Raises BlockingIOError, OSError."""

    def send(self, data: bytes, flags: int = 0, /) -> int:
        """Send as many as there is room for; returns how many. Raises BlockingIOError, OSError."""

    def shutdown(self, how: int, /) -> None:
        """Say that nothing more is sent. Raises OSError."""

    def getsockopt(self, level: int, option: int, size_bytes: int, /) -> bytes:
        """Return an option of the socket. Raises OSError."""

    def getpeername(self) -> object:
        """Return the address of the other end. Raises OSError."""

    def getsockname(self) -> object:
        """Return the address of this end. Raises OSError."""

    def fileno(self) -> int:
        """Return the descriptor of the socket; -1: it is closed."""

    def close(self) -> None:
        """Close the socket, without a word."""


class Layer(ByteStream, Protocol):
    """A stream that speaks a protocol of its own on another one."""

    @property
    def established(self) -> bool:
        """Whether both sides have agreed, and bytes of the conversation may pass."""

    @property
    def begun(self) -> bool:
        """Whether the costly part of agreeing is behind it: it has answered its peer."""

    @property
    def identity(self) -> str | None:
        """The name that the peer has proved to have; None: none, or it was not asked."""

    def flush(self) -> bool:
        """Send what the layer has to say; False: the socket takes no more of it now.

        Raises OSError.
        """


def end_reading(stream: ByteStream) -> None:
    """Make the next `recv` report the end of the stream, which a layer above has received."""
    with suppress(OSError):  # The peer has closed already.
        stream.shutdown(SHUT_RD)


class OnSocket:
    """The part of a layer that the stream below it answers, at last the socket."""

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
        """Send them; False: some are left."""
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
