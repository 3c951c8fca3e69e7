"""Handover: connections whose session another worker owns go there once CONNECT was read.

A worker accepts any client. If the rendezvous hash of the client id gives the session to another
worker, this one sends it the socket and the bytes that it has read (SCM_RIGHTS). With TLS or
WebSocket it keeps the stream, and sends one end of a pair of sockets (`pipes`).

A connection stays an ordinary one of this worker until it is sent. So it ends here if its client
leaves, and it is answered with 0x88 (Server unavailable) if the other worker does not come back in
time. Each worker connects to each other one; nothing is answered on these connections.

In a cluster the other worker may be on another node. Then this one keeps the stream as with TLS,
and passes its bytes on over a connection to that node (`arrivals`).
"""

import errno
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from select import EPOLLIN, EPOLLOUT
from socket import socket, socketpair
from time import monotonic
from typing import Any, Final, final

from flowguard.broker.layers.layer import Layer
from flowguard.broker.layers.proxied import ProxiedStream
from flowguard.broker.sockets.link import Link
from flowguard.broker.sockets.listening import Doorway
from flowguard.broker.sockets.reactor import Reactor, ServerLink
from flowguard.broker.workers.arrivals import Arrivals
from flowguard.broker.workers.fd_frames import (
    NO_DESCRIPTOR,
    FdFrame,
    FdFrameReader,
    frame_bytes,
    send_fd,
)
from flowguard.broker.workers.pipes import Pipes
from flowguard.broker.workers.unix_sockets import WorkerListener, connect_unix
from flowguard.broker.workers.worker_addresses import WorkerAddress
from flowguard.broker.workers.worker_ports import WorkerPorts, WorkerStream
from flowguard.cluster.members import Members
from flowguard.codec.packets import Connect
from flowguard.flow import Reason
from flowguard.node.node import Node
from flowguard.session.connection import ServerConnection
from flowguard.session.inbound.input import LOOKAHEAD_BYTES, READ_BYTES_MAX
from flowguard.types import ReasonCode

WAITING_MAX: Final = 1_024
"""Maximum number of connections that wait for one worker."""
HTTP_HEAD: Final = {"http": True}
"""The head of a connection from another node that is not a client, but a request to HTTP."""
HEAD_BYTES_MAX: Final = 16 * 1024
AHEAD_BYTES_MAX: Final = LOOKAHEAD_BYTES + READ_BYTES_MAX
"""Maximum number of bytes that a connection reads behind its CONNECT."""


@final
class OtherWorker:
    """Another worker, as the destination of connections."""

    __slots__ = ("name", "sock", "unsent", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.sock: socket | None = None
        """The connection to it, or None if it has no listener now."""
        self.unsent = b""
        """The rest of a frame whose descriptor is sent."""
        self.waiting: deque[tuple[ServerConnection, float]] = deque()
        """Connections that are not sent, each with the time since when, in seconds."""


@final
class Handover:
    """The placement (`flowguard.node.connect.placement`) of one of several workers."""

    def __init__(
        self,
        members: Members,
        ports: WorkerPorts,
        node: Node,
        reactor: Reactor,
        doorways: Sequence[Doorway],
        clock: Callable[[], float],
    ) -> None:
        """Raises OSError."""
        self._members = members
        self._ports = ports
        self._node = node
        self._reactor = reactor
        self._doorways = doorways
        self._clock = clock
        self.http: Path | None = None
        """The Unix socket of this worker's HTTP, which other nodes may ask, or None."""
        self._pipes = Pipes(reactor, clock, node.door)
        self._peers = {name: OtherWorker(name) for name in members.peers}
        self._incoming: dict[socket, FdFrameReader] = {}
        self._frame_bytes_max = (
            HEAD_BYTES_MAX + node.settings.session.packet_size_max + AHEAD_BYTES_MAX
        )
        others = reactor.sockets.others
        self._arrivals = Arrivals(others, ports, self._frame_bytes_max, self._take_remote, clock)
        takes = (self._accept, self._arrivals.accept)
        self._listeners = [
            WorkerListener(sock, others, take)
            for sock, take in zip(ports.listeners, takes, strict=False)
        ]

    # --- to other workers ------------------------------------------------------------------------

    def owns(self, client_id: str) -> bool:
        return self._members.owner_of(client_id) == self._members.name

    def hand_over(self, connection: ServerConnection, packet: Connect, now_s: float) -> None:
        peer = self._peers[self._members.owner_of(packet.client_id)]
        if len(peer.waiting) >= WAITING_MAX:
            self._reject(connection, peer, now_s)
            return
        peer.waiting.append((connection, now_s))
        self._send(peer, now_s)

    def part(self, count: int) -> None:
        """Close `count` connections that are passed on to other workers."""
        self._pipes.part(count)

    def tick(self, now_s: float) -> None:
        """Every 100 ms: connect again, and reject connections that have waited too long."""
        self._pipes.tick(now_s)
        self._arrivals.tick(now_s)
        self._ports.tick(now_s)
        for listener in self._listeners:
            listener.tick()
        patience_s = self._node.settings.flow.connect_patience_s
        for peer in self._peers.values():
            if peer.sock is None:
                self._connect(peer, now_s)
            elif not isinstance(self._ports.addresses[peer.name], Path):  # The shard has moved.
                self._disconnect(peer)
            while peer.waiting and now_s - peer.waiting[0][1] > patience_s:
                self._reject(peer.waiting.popleft()[0], peer, now_s)

    def _reject(self, connection: ServerConnection, peer: OtherWorker, now_s: float) -> None:
        if not connection.ended:
            self._node.counters.turn_away(Reason.WORKER_UNAVAILABLE)
            why = f"{peer.name}, which owns its session, is unavailable"
            connection.refuse(ReasonCode.SERVER_UNAVAILABLE, now_s, why=why)

    def _connect(self, peer: OtherWorker, now_s: float) -> None:
        address = self._ports.addresses[peer.name]
        if not isinstance(address, Path):
            self._relay(peer, address, now_s)
            return
        sock = connect_unix(address)
        if sock is None:
            return
        on_event = partial(self._on_event, peer)
        try:
            self._reactor.sockets.others.watch(sock.fileno(), EPOLLIN, on_event)
        except OSError:  # The kernel has no memory for another watch.
            sock.close()
            return
        peer.sock = sock
        self._send(peer, now_s)

    def _on_event(self, peer: OtherWorker) -> None:
        """The worker takes more, or has ended."""
        assert peer.sock is not None
        try:
            has_ended = not peer.sock.recv(1)
        except BlockingIOError:
            has_ended = False
        except OSError:
            has_ended = True
        if has_ended:
            self._disconnect(peer)
        else:
            self._send(peer, self._clock())

    def _disconnect(self, peer: OtherWorker) -> None:
        assert peer.sock is not None
        self._reactor.sockets.others.unwatch(peer.sock.fileno())
        peer.sock.close()
        peer.sock, peer.unsent = None, b""

    def _send(self, peer: OtherWorker, now_s: float) -> None:
        """Send the connections that wait, as many as the worker takes now."""
        if peer.sock is None:
            address = self._ports.addresses[peer.name]
            if not isinstance(address, Path):
                self._relay(peer, address, now_s)
            return
        try:
            if peer.unsent:
                peer.unsent = peer.unsent[peer.sock.send(peer.unsent) :]
            while peer.waiting and not peer.unsent:
                connection, since_s = peer.waiting[0]
                if not connection.ended:
                    frame = self._frame_of(connection, since_s, now_s)
                    if frame and not self._send_one(peer, peer.sock, connection, frame, now_s):
                        break
                peer.waiting.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._disconnect(peer)
            return
        is_blocked = bool(peer.waiting or peer.unsent)
        self._reactor.sockets.others.rewatch(
            peer.sock.fileno(), EPOLLIN | EPOLLOUT if is_blocked else EPOLLIN
        )

    def _relay(self, peer: OtherWorker, address: WorkerAddress, now_s: float) -> None:
        """Pass on the connections that wait to a worker of another node, each over its own one."""
        while peer.waiting:
            connection, since_s = peer.waiting[0]
            if not connection.ended:
                has_descriptor = self._reactor.sockets.listeners.has_descriptor
                stream = self._ports.dial(address) if has_descriptor else None
                if stream is None:
                    return  # The next tick tries again, or rejects it.
                frame = self._frame_of(connection, since_s, now_s, is_remote=True)
                if frame:
                    link = connection.transport
                    assert isinstance(link, Link)
                    self._leave(connection, link, stream, now_s, frame)
                else:
                    stream.sock.close()
            peer.waiting.popleft()

    def _frame_of(
        self,
        connection: ServerConnection,
        since_s: float,
        now_s: float,
        *,
        is_remote: bool = False,
    ) -> bytes:
        """Return what another worker has to know of a connection; empty if that has failed.

        The error of one connection must not end the way to the other worker.
        """
        link = connection.transport
        assert isinstance(link, Link)
        assert link.doorway is not None
        waited_s = self._clock() - since_s + connection.waited_s
        try:
            head = {
                "listener": self._doorways.index(link.doorway),
                "since_s": monotonic() - waited_s,
                "waited_s": waited_s,  # For another machine, which has another clock.
                "version": connection.version,
                **_known_of(link, is_remote=is_remote),
            }
            return frame_bytes(head, connection.sent_so_far())
        except Exception as error:
            self._node.failed(connection, error, now_s)
            return b""

    def _send_one(
        self,
        peer: OtherWorker,
        sock: socket,
        connection: ServerConnection,
        frame: bytes,
        now_s: float,
    ) -> bool:
        """Send a connection; False if the worker takes nothing now. Raises OSError."""
        link = connection.transport
        assert isinstance(link, Link)
        try:
            ours, theirs = self._pair_for(link)
        except OSError:  # There are no descriptors.
            self._reject(connection, peer, now_s)
            return True
        try:
            sent_bytes = send_fd(sock, frame, link.fd if theirs is None else theirs.fileno())
        except BaseException:
            if ours is not None:
                ours.close()
            raise
        finally:
            if theirs is not None:
                theirs.close()
        if not sent_bytes:
            if ours is not None:
                ours.close()
            return False
        peer.unsent = frame[sent_bytes:]
        self._leave(connection, link, None if ours is None else WorkerStream(ours), now_s)
        return True

    def _pair_for(self, link: ServerLink) -> tuple[socket, socket] | tuple[None, None]:
        """Return the sockets of a pipe, or None twice if none is needed. Raises OSError."""
        if link.layer is None or isinstance(link.layer, ProxiedStream):
            return None, None  # The layer is not more than the address of its client.
        if not self._reactor.sockets.listeners.has_descriptor:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return socketpair()

    def _leave(
        self,
        connection: ServerConnection,
        link: ServerLink,
        worker: WorkerStream | None,
        now_s: float,
        first: bytes = b"",
    ) -> None:
        """The connection is another worker's. With `worker` the bytes pass through it, after
        `first`; without one the other worker has the descriptor."""
        self._reactor.sockets.release(link)
        self._node.attempts.handed_over(connection)
        connection.end(None, now_s)
        if worker is None:
            link.sock.close()
        else:
            stream = link.layer or ProxiedStream.handed_over(link.sock)
            self._pipes.add(stream, worker, first)

    # --- from other workers ----------------------------------------------------------------------

    def _accept(self, sock: socket) -> None:
        self._reactor.sockets.others.watch(sock.fileno(), EPOLLIN, partial(self._receive, sock))
        self._incoming[sock] = FdFrameReader(sock, self._frame_bytes_max)

    def _receive(self, sock: socket) -> None:
        try:
            frames = self._incoming[sock].read()
        except (OSError, ValueError) as error:
            self._node.broke(error)
            frames = None
        if frames is None:
            self._end(sock)
            return
        for frame in frames:
            try:
                self._take(frame)
            except Exception as error:
                self._node.broke(error)

    def _take(self, frame: FdFrame) -> None:
        if frame.fd == NO_DESCRIPTOR:
            self._node.counters.drop(Reason.DESCRIPTORS)
            return
        sock, head = socket(fileno=frame.fd), frame.head
        layer = None
        if "peer" in head:
            layer = ProxiedStream.handed_over(sock)
            layer.introduce(head["peer"], head["identity"])
        doorway = self._doorways[head["listener"]]
        waited_s = monotonic() - head["since_s"]
        self._reactor.take_over(sock, doorway, layer, waited_s, head["version"], frame.data)

    def _take_remote(
        self, sock: socket, layer: Layer, head: Mapping[str, Any], data: bytes
    ) -> None:
        """Serve a client that a worker of another node passes on. Raises as `Take`."""
        if head.get("http"):
            self._answer(sock, layer, data)
            return
        doorway = self._doorways[head["listener"]]
        waited_s, version = float(head["waited_s"]), int(head["version"])
        try:
            self._reactor.take_over(sock, doorway, layer, waited_s, version, data)
        except Exception as error:
            self._node.broke(error)

    def _answer(self, sock: socket, layer: Layer, data: bytes) -> None:
        """Pass a request of another node on to the HTTP of this worker."""
        has_descriptor = self._reactor.sockets.listeners.has_descriptor
        http = connect_unix(self.http) if self.http is not None and has_descriptor else None
        if http is None:
            sock.close()
        else:
            self._pipes.add(layer, WorkerStream(http), data)

    def _end(self, sock: socket) -> None:
        self._incoming.pop(sock).close()
        self._reactor.sockets.others.unwatch(sock.fileno())
        sock.close()


def _known_of(link: ServerLink, *, is_remote: bool) -> dict[str, Any]:
    """Return what the layer of a link has learned of its client, or its socket if the other worker
    does not get it."""
    if link.layer is None and not is_remote:
        return {}
    try:
        name = (link.layer or link.sock).getpeername()
    except OSError:  # The client has left; the other worker handles its last packets.
        name = None
    peer = name[:2] if isinstance(name, tuple) else None
    return {"peer": peer, "identity": None if link.layer is None else link.layer.identity}
