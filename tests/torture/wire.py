"""TCP connections of peers: non-blocking, read and written by one loop in one thread."""

import selectors
import socket

from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.packets import Packet

HOST = "127.0.0.1"
READ_BYTES = 64 * 1024


class TcpWire:
    """One connection: what a peer says gathers until `flush`, what came is in `inbox`."""

    def __init__(self, sock: socket.socket, version: int, selector: selectors.BaseSelector) -> None:
        self.inbox: list[Packet] = []
        self.is_closed = False
        """The broker has ended it, or was ended."""
        self._sock = sock
        self._selector = selector
        self._decoder = PacketDecoder(2**28, version, role="client")
        self._outbox = bytearray()
        selector.register(sock, selectors.EVENT_READ, self)

    def send_bytes(self, data: bytes) -> None:
        self._outbox += data

    def flush(self) -> None:
        """Write what the socket takes; after the broker's end nothing arrives any more."""
        if self._outbox and not self.is_closed:
            try:
                size_bytes = self._sock.send(self._outbox)
            except BlockingIOError:
                return
            except OSError:
                self._outbox.clear()
                return  # Reading will tell.
            del self._outbox[:size_bytes]

    def read(self) -> None:
        """Read once."""
        try:
            data = self._sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        self._decoder.feed(data)
        while (packet := self._decoder.next()) is not None:
            self.inbox.append(packet)

    def read_rest(self) -> None:
        """All that a dead broker had sent before."""
        if not self.is_closed:
            self._sock.setblocking(True)
        while not self.is_closed:
            self.read()

    def _end(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._selector.unregister(self._sock)

    def close(self) -> None:
        """Our end, after what is still to be said."""
        self.flush()
        self._end()
        self._sock.close()


class Line:
    """A client's way to the broker: `dial`, then `open` is the connection for its peer."""

    def __init__(self, port: int, selector: selectors.BaseSelector) -> None:
        self.wire: TcpWire | None = None
        self._port = port
        self._selector = selector
        self._dialled: socket.socket | None = None

    def dial(self) -> bool:
        """Return True if the address has a listener."""
        self.hang_up()
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.connect((HOST, self._port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            sock.close()
            return False
        sock.setblocking(False)
        self._dialled = sock
        return True

    def open(self, version: int) -> TcpWire:
        assert self._dialled is not None, "dial first"
        self.wire = TcpWire(self._dialled, version, self._selector)
        self._dialled = None
        return self.wire

    def hang_up(self) -> None:
        """Close what there is."""
        wire, self.wire = self.wire, None
        if wire is not None:
            wire.close()


def reserve_port() -> socket.socket:
    """A socket that keeps a port from others, but does not listen on it: a broker may."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((HOST, 0))
    return sock
