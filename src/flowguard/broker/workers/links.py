"""Links: the connections of a mesh (`flowguard.cluster.mesh`) as sockets in the loop.

The loop asks the mesh for output at the end of each slice. A peer that is down is dialled again
with each tick.
"""

from collections.abc import Callable
from functools import partial
from select import EPOLLIN
from socket import MSG_DONTWAIT, MSG_NOSIGNAL, socket
from typing import Final, final

import structlog

from flowguard.broker.sockets.reactor import Reactor
from flowguard.broker.workers.unix_sockets import WorkerListener
from flowguard.broker.workers.worker_addresses import NodeAddress, WorkerAddress
from flowguard.broker.workers.worker_ports import WorkerPorts, WorkerStream
from flowguard.cluster.mesh import LinkConnection, Mesh
from flowguard.errors import PeerError

READ_BYTES: Final = 256 * 1024
FLAGS: Final = MSG_DONTWAIT | MSG_NOSIGNAL
HELLO_S: Final = 5.0
"""Maximum time for the hello of an accepted connection, seconds."""
UNKNOWN_MAX: Final = 256
"""Maximum number of accepted connections without a hello."""
CLOSED: Final = "it closed the connection at once: if it has cluster.cert, set it here, too"

log = structlog.get_logger()


@final
class LinkSocket:
    """A socket with the state of its connection."""

    __slots__ = ("address", "connection", "since_s", "stream", "unsent")

    def __init__(
        self,
        stream: WorkerStream,
        connection: LinkConnection,
        address: WorkerAddress | None,
        since_s: float,
    ) -> None:
        self.stream = stream
        self.connection = connection
        self.address = address
        """The address that was dialled, or None if the connection was accepted."""
        self.since_s = since_s
        self.unsent = b""
        """Output that the socket has not taken."""

    @property
    def is_unknown(self) -> bool:
        """True if it was accepted and has sent no hello."""
        return self.address is None and not self.connection.incarnation


@final
class Links:
    def __init__(
        self,
        mesh: Mesh,
        ports: WorkerPorts,
        reactor: Reactor,
        clock: Callable[[], float],
        on_error: Callable[[Exception], None],
    ) -> None:
        """Raises OSError."""
        self._on_error = on_error
        self._mesh = mesh
        self._ports = ports
        self._sockets = reactor.sockets
        self._clock = clock
        self._open: dict[LinkConnection, LinkSocket] = {}
        takes = (self._accept, self._accept_from_node)
        self._listeners = [
            WorkerListener(sock, self._sockets.others, take)
            for sock, take in zip(ports.listeners, takes, strict=False)
        ]
        self._has_output = True
        mesh.wake = self._wake
        reactor.on_slice = self._end_slice

    def tick(self, now_s: float) -> None:
        """Every 100 ms: dial peers that are not connected, or are at another address now."""
        self._ports.tick(now_s)
        for listener in self._listeners:
            listener.tick()
        addresses, failed = self._ports.addresses, self._ports.failed
        for link in list(self._open.values()):
            if link.address is not None and link.address != addresses[link.connection.peer]:
                self._lose(link)
            elif link.is_unknown and now_s - link.since_s > HELLO_S:
                self._reject(link, "no hello of a worker in time")
        for peer in self._mesh.undialled():
            if addresses[peer] not in failed:
                self._dial(peer, addresses[peer], now_s)
        self._flush()

    def _dial(self, peer: str, address: WorkerAddress, now_s: float) -> None:
        stream = self._ports.dial(address)
        if stream is None:
            return
        try:
            self._add(LinkSocket(stream, self._mesh.dial(peer), address, now_s))
        except OSError:  # The kernel has no memory for another watch.
            stream.sock.close()

    def _accept(self, sock: socket) -> None:
        self._add(LinkSocket(WorkerStream(sock), self._mesh.accept(), None, self._clock()))

    def _accept_from_node(self, sock: socket) -> None:
        """Accept a connection; the oldest one without a hello may have to end. Raises OSError."""
        unknown = [link for link in self._open.values() if link.is_unknown]
        if len(unknown) >= UNKNOWN_MAX:
            self._reject(unknown[0], "too many connections without a hello")
        stream = self._ports.accepted(sock)
        self._add(LinkSocket(stream, self._mesh.accept(), None, self._clock()))

    def _wake(self) -> None:
        self._has_output = True

    def _end_slice(self) -> None:
        if self._has_output:
            self._flush()

    def _flush(self) -> None:
        """Send what each connection has to send, as far as its socket takes it."""
        self._has_output = False
        for link in list(self._open.values()):
            if not link.unsent:
                self._send(link)

    def _add(self, link: LinkSocket) -> None:
        """Watch a connection. Raises OSError; then the connection is lost."""
        fd = link.stream.sock.fileno()
        try:
            self._sockets.others.watch(fd, EPOLLIN, partial(self._on_event, link))
        except OSError:
            self._mesh.lost(link.connection)
            raise
        self._open[link.connection] = link

    def _on_event(self, link: LinkSocket) -> None:
        """The socket has brought bytes, takes more, or has ended."""
        if link.unsent:
            self._send(link)
        if link.connection not in self._open:
            return
        try:
            data = link.stream.stream.recv(READ_BYTES, FLAGS)
        except BlockingIOError:
            if link.stream.layer is not None:
                self._send(link)  # The handshake of TLS may have gone on.
            return
        except OSError:
            self._lose(link)
            return
        if not data:
            self._ended(link)
            return
        self._has_output = True
        try:
            self._mesh.receive(link.connection, data, self._clock())
        except PeerError as error:
            self._broken(link, error.why, data)
        except Exception as error:
            self._lose(link)
            self._on_error(error)

    def _send(self, link: LinkSocket) -> None:
        """Send until nothing is left or the socket takes no more."""
        stream = link.stream.stream
        try:
            while data := link.unsent or self._mesh.output(link.connection):
                try:
                    link.unsent = data[stream.send(data, FLAGS) :]
                except BlockingIOError:
                    link.unsent = data
                if link.unsent:
                    break
            interest = EPOLLIN | link.stream.write_interest(has_unsent=bool(link.unsent))
        except OSError:
            self._lose(link)
            return
        self._sockets.others.rewatch(link.stream.sock.fileno(), interest)

    def _ended(self, link: LinkSocket) -> None:
        """The other end has closed. If that is before its hello, this is a failure, which TLS has
        noted already if its handshake is not complete."""
        layer = link.stream.layer
        is_noted = layer is not None and not layer.established
        if isinstance(link.address, NodeAddress) and not (link.connection.incarnation or is_noted):
            self._ports.fail(link.address, CLOSED)
        self._lose(link)

    def _broken(self, link: LinkSocket, why: str, data: bytes) -> None:
        """The other end has sent what no worker sends, or is rejected."""
        if link.is_unknown:
            self._reject(link, why, data)
            return
        if isinstance(link.address, NodeAddress) and not link.connection.incarnation:
            self._ports.fail(link.address, why, data)
        else:
            log.warning("link closed", peer=link.connection.peer, why=why)
        self._lose(link)

    def _reject(self, link: LinkSocket, why: str, data: bytes = b"") -> None:
        self._ports.reject(link.stream, why, data)
        self._lose(link)

    def _lose(self, link: LinkSocket) -> None:
        del self._open[link.connection]
        self._sockets.others.unwatch(link.stream.sock.fileno())
        link.stream.sock.close()
        self._mesh.lost(link.connection)
