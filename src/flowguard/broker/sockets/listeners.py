"""Listeners: accept connections as far as connect gate and descriptors allow.

Further connections stay in the kernel's backlog, in order of arrival. After accepting one, the
kernel reports how long it has waited. A listener that may not accept rests until the next tick,
because its level-triggered event would spin. If it rests without a free slot, connections that
clients close meanwhile are closed unread, so that the next slot is for a client that still waits.
"""

import errno
import select
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from socket import socket
from sys import maxsize
from time import thread_time
from typing import Any, Final, Generic, Protocol, TypeVar, final

from flowguard.broker.layers.layer import Layer
from flowguard.broker.layers.layer_gate import LayerGate, has_left
from flowguard.broker.sockets.link import Carried, Link
from flowguard.broker.sockets.listening import Doorway
from flowguard.flow import Guard, Reason
from flowguard.node.connect.accept_state import Door, Rest
from flowguard.node.loop.turns import ACCEPTS_MAX
from flowguard.session.counters import Counters

ACCEPT_S: Final = 0.00025
"""Maximum time for accepting connections with layers, seconds per turn and listener. Slots for
their handshakes are few, so accepting more of them gains nothing."""
SILENT_S: Final = 1.0
"""A connection without a CONNECT may be closed after this many seconds if capacity is exhausted."""
SOCKETS_OF_PIPE: Final = 2
READ: Final = select.EPOLLIN
OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


C = TypeVar("C", bound=Carried)


class Host(Protocol[C]):
    """A node or a proxy that owns the accepted connections."""

    @property
    def guard(self) -> Guard[Any]:
        """The guard whose gate decides if connections are accepted."""

    @property
    def door(self) -> Door:
        """The state that records why connections are not accepted."""

    @property
    def counters(self) -> Counters:
        """The counters of rejected connections."""

    def opened(self, transport: object, now_s: float, waited_s: float = 0.0) -> C:
        """Open a connection for an accepted socket; `waited_s`: time in the kernel, with its
        data."""

    def shook_hands(self, connection: C, now_s: float) -> None:
        """Our part of a layer's handshake is done: the connect timeout begins now."""

    def awaits_connect(self, connection: C) -> bool:
        """True if no CONNECT has come yet."""

    def closed(self) -> None:
        """A socket was closed, whatever the reason."""

    def broke(self, error: Exception) -> None:
        """Report that a layer has failed and its connection is closed; raise it if no one
        listens."""


@final
class Listeners(Generic[C]):
    """The listening sockets of a reactor, in its epoll set."""

    def __init__(
        self,
        host: Host[C],
        epoll: select.epoll,
        links: dict[int, Link[C]],
        close: Callable[[Link[C]], None],
        layer_gate: LayerGate[C],
    ) -> None:
        """`links`: the reactor's links by descriptor; `close` closes one of them at once."""
        self._host = host
        self._epoll = epoll
        self._links = links
        self._close = close
        self._layer_gate = layer_gate
        self._door = host.door
        self._places = 0
        self.descriptors_max = maxsize
        """Maximum number of descriptors of connections and pipes."""
        self.pipes_count = 0
        """Connections whose bytes are forwarded to other workers. Each has two sockets. The owner
        of the session counts the client."""
        self._doorways: dict[int, Doorway] = {}
        self._resting: list[int] = []
        self._behind: set[int] = set()
        """Listeners that rested because no slot was free, and may still have connections from that
        time. In other cases the gate learns from clients that disconnect."""
        self.newcomers: dict[Link[C], float] = {}
        """New connections with the instant they came, oldest first; removed by a tick after their
        CONNECT."""

    def listen(self, doorway: Doorway, places: int) -> None:
        """Accept on this listening socket, as long as all clients have less than `places`
        connections."""
        self._door.places = self._places = places
        doorway.report(self._door.fault)
        sock = doorway.sock
        sock.setblocking(False)
        self._doorways[sock.fileno()] = doorway
        self._epoll.register(sock.fileno(), READ)

    def adopt(self, sock: socket, now_s: float) -> None:
        """Serve a client of this process, at the other end of `sock`."""
        sock.setblocking(False)
        link: Link[C] = Link(sock, READ)
        self._epoll.register(link.fd, READ)
        link.connection = self._host.opened(link, now_s)
        self._links[link.fd] = link
        self.newcomers[link] = now_s

    def take_over(
        self, sock: socket, doorway: Doorway, layer: Layer | None, waited_s: float, now_s: float
    ) -> Link[C] | None:
        """Serve a client that another worker has accepted; return None without capacity for it."""
        if not self.has_place:
            self._host.counters.drop(Reason.DESCRIPTORS)
            sock.close()
            return None
        sock.setblocking(False)
        link: Link[C] = Link(sock, READ)
        try:
            self._epoll.register(link.fd, READ)
        except OSError:  # The kernel has no memory for another watch.
            sock.close()
            return None
        link.doorway, link.layer, link.sock = doorway, layer, sock if layer is None else layer
        link.connection = self._host.opened(link, now_s, waited_s)
        self._host.counters.connections_accepted -= 1  # The other worker has counted it.
        self._links[link.fd] = link
        doorway.count += 1
        return link

    @property
    def has_place(self) -> bool:
        """True if one more connection may be served; unfinished handshakes also take memory."""
        return len(self._links) + self._layer_gate.places < self._places and self.has_descriptor

    @property
    def has_descriptor(self) -> bool:
        """True if one more connection or pipe may have a descriptor."""
        return len(self._links) + SOCKETS_OF_PIPE * self.pipes_count < self.descriptors_max

    def close(self) -> None:
        """Close every listener; the kernel then refuses new connections."""
        for fd, doorway in self._doorways.items():
            if fd not in self._resting:
                self._epoll.unregister(fd)
            doorway.close()
        self._doorways.clear()
        self._resting.clear()
        self._behind.clear()

    def sweep(self) -> None:
        """The tick: accept again, and forget connections that have sent CONNECT."""
        waits = self._host.awaits_connect
        # One pass, because finding the first entry of a dict skips all removed entries again.
        for link in list(takewhile(lambda link: not waits(link.connection), self.newcomers)):
            del self.newcomers[link]
        while self._resting:
            try:
                self._epoll.register(self._resting[-1], READ)
            except OSError:
                return  # No memory for another watch; the next tick tries again.
            self._resting.pop()
        self._door.resting = None

    @property
    def count(self) -> int:
        """The number of listening sockets."""
        return len(self._doorways)

    def accept(self, fd: int, heard_s: float, now_s: float) -> None:
        """Accept what has arrived at this listener, if it still is one.

        `heard_s`: see `flowguard.node.loop.turns.Turns.heard_s`.
        """
        doorway = self._doorways.get(fd)
        if doorway is None:
            return
        sock = doorway.sock
        gate = self._host.guard.gate
        if not gate.may_accept(now_s):
            self._rest(sock, Rest.REFUSALS)
            return
        started_s = thread_time()  # Processor time, so that other programs' work does not count.
        if gate.closes(now_s):
            self._close_all(sock)
        else:
            if doorway.is_full:  # A slot that another listener frees does not help.
                self._make_room(doorway, heard_s, now_s)
            elif not self.has_place:
                self._make_room(None, heard_s, now_s)
            self._accept_all(doorway, now_s, started_s)
        gate.spent(thread_time() - started_s, now_s)

    def _make_room(self, doorway: Doorway | None, heard_s: float, now_s: float) -> None:
        """Close connections of one listener, or of any, that have been silent for a while.

        Otherwise a few silent sockets would lock out other clients until their connect timeout.
        """
        until_s = heard_s - SILENT_S
        silent = takewhile(lambda each: each[1] <= until_s, self.newcomers.items())
        here = (link for link, _ in silent if doorway is None or link.doorway is doorway)
        for link in list(islice(here, ACCEPTS_MAX)):
            if not link.interest & READ:
                continue  # The client waits for the broker, not the reverse.
            if self._host.awaits_connect(link.connection):
                self._host.counters.drop(Reason.DESCRIPTORS)
                link.connection.end(None, now_s)
                self._close(link)
            else:
                del self.newcomers[link]

    def _accept_all(self, doorway: Doorway, now_s: float, started_s: float) -> None:
        gate = self._host.guard.gate
        listener = doorway.sock
        arrivals = self._arrivals(listener)
        while self.has_place and self.pipes_count < self._places:
            if doorway.has_layers and self._layer_gate.is_crowded:
                self._rest(listener, Rest.HANDSHAKES)
                return
            if doorway.is_full:
                self._rest(listener, Rest.LISTENER)
                return
            sock = next(arrivals, None)
            if sock is None:
                return
            try:
                link: Link[C] = Link(sock, READ, doorway)
                self._epoll.register(link.fd, READ)
            except Exception as error:
                sock.close()
                if not isinstance(error, OSError):  # An OSError: no memory for a watch.
                    self._host.broke(error)
                continue
            waited_s = link.waited_s()
            link.connection = self._host.opened(link, now_s, waited_s)
            self._links[link.fd] = link
            doorway.count += 1
            self.newcomers[link] = now_s
            gate.let_in(waited_s)
            if not gate.may_accept(now_s):
                self._rest(listener, Rest.REFUSALS)
                return
            if doorway.has_layers and thread_time() - started_s > ACCEPT_S:
                return
        self._rest(listener, Rest.DESCRIPTORS)

    def _close_all(self, listener: socket) -> None:
        """Close the waiting connections before they use resources."""
        for sock in self._arrivals(listener):
            sock.close()
            self._host.counters.connections_closed += 1

    def _arrivals(self, listener: socket) -> Iterator[socket]:
        """Yield the connections accepted in a turn; the listener rests if descriptors are
        exhausted."""
        for _ in range(ACCEPTS_MAX):
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                self._behind.discard(listener.fileno())
                return
            except OSError as error:
                if error.errno in OUT_OF_DESCRIPTORS:
                    self._rest(listener, Rest.DESCRIPTORS)
                    return
                continue  # The peer has disconnected already.
            if listener.fileno() in self._behind and has_left(sock.fileno()):
                sock.close()
                continue
            yield sock

    def _rest(self, listener: socket, reason: Rest) -> None:
        self._door.rest(reason)
        self._resting.append(listener.fileno())
        if reason is Rest.LISTENER or reason is Rest.DESCRIPTORS:
            self._behind.add(listener.fileno())
        self._epoll.unregister(listener.fileno())
