"""Links: the connections of a mesh (`flowguard.cluster.mesh`) as sockets in the loop.

The loop asks the mesh for output at the end of each slice. A peer that is down is dialled again
with each tick.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from select import EPOLLIN, EPOLLOUT
from socket import MSG_DONTWAIT, MSG_NOSIGNAL, socket
from typing import Final, final

import structlog

from flowguard.broker.sockets.reactor import Reactor
from flowguard.broker.workers.unix_sockets import WorkerListener
from flowguard.broker.workers.worker_addresses import WorkerAddress, connect
from flowguard.cluster.mesh import LinkConnection, Mesh
from flowguard.errors import PeerError

READ_BYTES: Final = 256 * 1024
FLAGS: Final = MSG_DONTWAIT | MSG_NOSIGNAL

log = structlog.get_logger()


@final
class LinkSocket:
    """A socket with the state of its connection."""

    __slots__ = ("connection", "address", "sock", "unsent")

    def __init__(
        self, sock: socket, connection: LinkConnection, address: WorkerAddress | None
    ) -> None:
        self.sock = sock
        self.connection = connection
        self.address = address
        """The address that was dialled, or None if the connection was accepted."""
        self.unsent = b""
        """Output that the socket has not taken."""


@final
class Links:
    def __init__(
        self,
        mesh: Mesh,
        addresses: Mapping[str, WorkerAddress],
        listeners: Sequence[socket],
        reactor: Reactor,
        clock: Callable[[], float],
        on_error: Callable[[Exception], None],
    ) -> None:
        """`addresses` has the address of each peer, which may change. Raises OSError."""
        self._on_error = on_error
        self._mesh = mesh
        self._addresses = addresses
        self._sockets = reactor.sockets
        self._clock = clock
        self._open: dict[LinkConnection, LinkSocket] = {}
        self._listeners = [
            WorkerListener(sock, self._sockets.others, lambda sock: self._add(sock, mesh.accept()))
            for sock in listeners
        ]
        self._has_output = True
        mesh.wake = self._wake
        reactor.on_slice = self._end_slice

    def tick(self, now_s: float) -> None:
        """Every 100 ms: dial peers that are not connected, or are at another address now."""
        for listener in self._listeners:
            listener.tick()
        for link in list(self._open.values()):
            if link.address is not None and link.address != self._addresses[link.connection.peer]:
                self._lose(link)
        for peer in self._mesh.undialled():
            address = self._addresses[peer]
            sock = connect(address)
            if sock is None:
                continue
            try:
                self._add(sock, self._mesh.dial(peer), address)
            except OSError:  # The kernel has no memory for another watch.
                sock.close()
        self._flush()

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

    def _add(
        self, sock: socket, connection: LinkConnection, address: WorkerAddress | None = None
    ) -> None:
        """Watch a connection. Raises OSError; then the connection is lost."""
        link = LinkSocket(sock, connection, address)
        try:
            self._sockets.others.watch(sock.fileno(), EPOLLIN, partial(self._on_event, link))
        except OSError:
            self._mesh.lost(connection)
            raise
        self._open[connection] = link

    def _on_event(self, link: LinkSocket) -> None:
        """The socket has brought bytes, takes more, or has ended."""
        if link.unsent:
            self._send(link)
        if link.connection not in self._open:
            return
        try:
            data = link.sock.recv(READ_BYTES, FLAGS)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose(link)
            return
        self._has_output = True
        try:
            self._mesh.receive(link.connection, data, self._clock())
        except PeerError as error:
            log.warning("link closed", peer=link.connection.peer, why=error.why)
            self._lose(link)
        except Exception as error:
            self._lose(link)
            self._on_error(error)

    def _send(self, link: LinkSocket) -> None:
        """Send until nothing is left or the socket takes no more."""
        while data := link.unsent or self._mesh.output(link.connection):
            try:
                link.unsent = data[link.sock.send(data, FLAGS) :]
            except BlockingIOError:
                link.unsent = data
            except OSError:
                self._lose(link)
                return
            if link.unsent:
                break
        self._sockets.others.rewatch(
            link.sock.fileno(), EPOLLIN | EPOLLOUT if link.unsent else EPOLLIN
        )

    def _lose(self, link: LinkSocket) -> None:
        del self._open[link.connection]
        self._sockets.others.unwatch(link.sock.fileno())
        link.sock.close()
        self._mesh.lost(link.connection)
