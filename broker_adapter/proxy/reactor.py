"""ProxyReactor: the sockets of a proxy, driven like the broker's own.

Turns, links, listeners and the layers of TLS and WebSocket are those of `flowguard.broker` and
`flowguard.node.loop.turns`. Two things are specific to the proxy: two links belong to a pair, and
one of them is opened by the proxy. A pair that has ended sends its last bytes on both sides. The
sockets are closed when the peers have closed, or a little later.
"""

import errno
import os
import socket
import sys
from collections.abc import Callable
from socket import MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_WR
from typing import Final, final

from broker_adapter.proxy.core import ProxyCore
from broker_adapter.proxy.pair import ProxyPair, ProxySide
from broker_adapter.proxy.protocol import header
from broker_adapter.proxy.states import DIALING
from broker_adapter.proxy.upstream import Upstream
from flowguard.broker.layers.tls import TlsStream
from flowguard.broker.sockets.link import Link
from flowguard.broker.sockets.socket_set import READ, WRITE, Event, SocketSet
from flowguard.node.journal import Batch, Journal
from flowguard.node.loop.pages import Pages
from flowguard.node.loop.turns import NOTHING, Ports, Turns
from flowguard.session.chores import Chores

READ_BYTES: Final = 64 * 1024
SEND_FLAGS: Final = MSG_DONTWAIT | MSG_NOSIGNAL
GONE: Final = (BrokenPipeError, ConnectionResetError)
"""Errors of a peer that has stopped receiving."""
OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

ProxyLink = Link[ProxySide]


@final
class ProxyReactor(Ports[Event, ProxyPair, None]):
    """Moves bytes between sockets and the pairs of a core."""

    def __init__(
        self, core: ProxyCore, clock: Callable[[], float], *, says_address: bool = False
    ) -> None:
        """`says_address`: send client addresses to upstreams, by PROXY protocol v2."""
        self._core = core
        self._says_address = says_address
        self.sockets: SocketSet[ProxySide] = SocketSet(
            core, core.settings, clock, self._shake_hands
        )
        self._links = self.sockets.links
        self._chunks: list[tuple[ProxyLink, bytes]] = []
        """Data read in this slice."""
        pages: Pages[None, None] = Pages()
        guard = core.guard
        self.turns: Turns[Event, ProxyPair, None, None] = Turns(
            self,
            clock,
            Journal.create(core.settings, guard.window, guard.observer),
            pages,
            Chores(None),
            immediate=True,
        )

    async def run(self) -> None:
        """Serve until cancelled."""
        await self.sockets.drive(self.turns)

    # --- turns -------------------------------------------------------------------------------

    def wake(self) -> None:
        self.sockets.wake()

    @property
    def sockets_count(self) -> int:
        return self.sockets.count

    def poll(self, count_max: int, stay_s: float) -> list[Event]:
        return self.sockets.poll(count_max, stay_s)

    @property
    def has_runnable(self) -> bool:
        return bool(self._core.runnable)

    def take_runnable(self) -> list[ProxyPair]:
        return self._core.take_runnable()

    def has_room(self, connection: ProxyPair) -> bool:
        window = connection.window
        return connection.ended or window is None or window.room() > 0

    def run_again(self, connection: ProxyPair, now_s: float) -> bool:
        connection.queued = False
        if connection.ended:
            return False
        connection.run(now_s)
        return True

    def leave(self) -> list[ProxyPair]:
        return self._core.take_dirty()

    @property
    def has_work(self) -> bool:
        core = self._core
        return core.guard.has_work or bool(core.to_dial) or self.sockets.layer_gate.has_work

    def admit(self, now_s: float) -> None:
        core = self._core
        core.turn(now_s)
        while core.to_dial:
            dialing, core.to_dial = core.to_dial, []
            for pair in dialing:
                self._dial(pair, now_s)

    def store(self, batch: Batch) -> None:
        raise AssertionError("nothing is stored here")

    def ask_store(self) -> bool:
        raise AssertionError("nothing is stored here")

    def replay(self, piece: None, now_s: float) -> None:
        raise AssertionError("nothing is stored here")

    # --- reading -----------------------------------------------------------------------------

    def read(self, event: Event, now_s: float) -> int:
        fd, kind = event
        link = self._links.get(fd)
        if link is None:
            self.sockets.serve_other(fd, self.turns.heard_s, now_s)
            return NOTHING
        side = link.connection
        if side.is_upstream and side.pair.state is DIALING:
            self._go_on_dialing(link, now_s)
            return NOTHING
        if kind & WRITE:
            self._flush(side.pair, now_s)
            if kind == WRITE or link.fd < 0:
                return NOTHING
        layer = link.layer
        if layer is not None and not side.is_upstream and self.sockets.is_left_unread(link):
            return NOTHING
        if not (side.wants_read or side.said_last):
            self.sockets.set_interest(link, link.interest & ~READ)
            return NOTHING
        data = self.sockets.read(link, READ_BYTES, now_s)
        if data is None:
            return NOTHING
        self._chunks.append((link, data))
        return len(data)

    def receive(self, now_s: float) -> None:
        chunks, self._chunks = self._chunks, []
        for link, data in chunks:
            self._receive(link, data, now_s)

    def _receive(self, link: ProxyLink, data: bytes, now_s: float) -> None:
        side = link.connection
        pair = side.pair
        if not data:
            self._on_end(link, now_s)
        elif pair.ended:
            pass  # The pair lingers; its data are ignored.
        elif side.is_upstream:
            pair.upstream_data(data, now_s)
        else:
            side.last_received_s = now_s
            self._core.counters.bytes_received += len(data)
            pair.client_data(data, now_s)

    def _shake_hands(self, link: ProxyLink, now_s: float) -> None:
        """Do a step of a client's handshake, and handle the data after it."""
        data = self.sockets.read(link, READ_BYTES, now_s)
        if data is None or data:
            self.sockets.set_interest(link, link.interest | READ)
        if data is not None:
            self._receive(link, data, now_s)

    def _on_end(self, link: ProxyLink, now_s: float) -> None:
        """Handle the end of a stream."""
        link.peer_closed = True
        self.sockets.set_interest(link, link.interest & ~READ)
        side = link.connection
        if side.ended:
            self.sockets.close_link(link)
        elif side.is_upstream:
            side.pair.end(now_s)
        else:
            if link.doorway is not None and link.doorway.scheme.has_websocket:
                side.pair.client_deafened(now_s)  # WebSocket closes both directions at once.
            side.pair.client_ended(now_s)
        side.pair.soil()

    # --- writing -----------------------------------------------------------------------------

    def send(self, connections: list[ProxyPair], now_s: float) -> None:
        for pair in connections:
            self._flush(pair, now_s)

    def _flush(self, pair: ProxyPair, now_s: float) -> None:
        """Send pending bytes, update which sockets are read, and close what has ended."""
        upstream, client = pair.upstream.transport, pair.client.transport
        if pair.to_upstream.size_bytes:
            self._send(pair.upstream, now_s)
        if pair.to_client.size_bytes:
            self._send(pair.client, now_s)
        if pair.client_eof:
            self._pass_end(pair, now_s)
        if (
            isinstance(upstream, Link)
            and isinstance(client, Link)
            and upstream.interest == READ
            and client.interest == READ
            and pair.flows
        ):
            return
        self._settle_side(pair.upstream, now_s)
        self._settle_side(pair.client, now_s)
        pair.weigh()

    def _send(self, side: ProxySide, now_s: float) -> None:
        link = side.transport
        if not isinstance(link, Link):
            side.outbox.clear()
            return
        data = side.outbox.take()
        try:
            sent_bytes = link.sock.send(data, SEND_FLAGS)
        except BlockingIOError:
            sent_bytes = 0
        except Exception as error:
            if isinstance(error, GONE) and not (side.is_upstream or side.ended):
                # Data that it has sent before can still be read.
                side.pair.client_deafened(now_s)
            else:
                self.sockets.broke(link, error, now_s)
            return
        if sent_bytes < len(data):
            side.outbox.put_back(data[sent_bytes:])
        side.sent_bytes += sent_bytes
        if side.is_upstream:
            side.pair.sent_upstream(sent_bytes, now_s)
        else:
            self._core.counters.bytes_sent += sent_bytes
        if sent_bytes:
            side.pair.progressed(now_s)

    def _pass_end(self, pair: ProxyPair, now_s: float) -> None:
        """Half-close the upstream's socket when all of the client's data are sent."""
        link = pair.upstream.transport
        if not isinstance(link, Link):
            return
        # After close_notify nothing is read (`TlsStream.shutdown`).
        if pair.pass_end(now_s, half_closes=link.layer is None):
            try:
                link.sock.shutdown(SHUT_WR)
            except OSError as error:
                self.sockets.broke(link, error, now_s)

    def _settle_side(self, side: ProxySide, now_s: float) -> None:
        """Watch the events that a side waits for now; close it after its last bytes if it has
        ended."""
        link = side.transport
        if not isinstance(link, Link):
            return
        layer = link.layer
        is_flushed = layer is None or self.sockets.flush_layer(link, now_s)
        waits = WRITE if side.outbox.size_bytes or not is_flushed else 0
        if not side.ended:
            if side.is_upstream and side.pair.state is DIALING:
                return
            if layer is not None and not layer.established:
                return  # The layer gate watches the link during the handshake.
            self.sockets.set_interest(link, waits | (READ if side.wants_read else 0))
        elif waits:
            self.sockets.set_interest(link, WRITE)
            self.sockets.linger(link, now_s)
        elif not side.said_last:
            side.said_last = True
            self.sockets.say_last(link, now_s)

    # --- the upstreams -----------------------------------------------------------------------

    def _dial(self, pair: ProxyPair, now_s: float) -> None:
        upstream = pair.broker
        if upstream is None:
            return  # The pair has ended meanwhile.
        family, address = self._core.place_of(pair)
        try:
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS:
                self._core.no_descriptor(pair, now_s)
            else:
                self._core.not_dialed(pair, now_s, str(error.strerror))
            return
        if family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        error_number = sock.connect_ex(address)
        if error_number not in (0, errno.EINPROGRESS):
            sock.close()
            self._core.not_dialed(pair, now_s, os.strerror(error_number))
            return
        link: ProxyLink = Link(sock, WRITE)
        link.connection = pair.upstream
        try:
            self.sockets.add(link)
        except OSError:  # The kernel has no memory for another watch.
            sock.close()
            self._core.not_dialed(pair, now_s)
            return
        pair.upstream.transport = link

    def _go_on_dialing(self, link: ProxyLink, now_s: float) -> None:
        pair = link.connection.pair
        upstream = pair.broker
        assert upstream is not None
        if link.layer is None:
            why = self._greet(link)
            if why:
                self.give_up_dial(pair, now_s, why)
                return
            if upstream.tls is not None:
                try:
                    self._begin_tls(link, upstream)
                except OSError as error:
                    self.give_up_dial(pair, now_s, f"TLS: {error.strerror or error}")
                except Exception as error:
                    self.sockets.broke(link, error, now_s)
                return
        else:
            data = self.sockets.read(link, READ_BYTES, now_s)
            if data is not None and not data:
                self.give_up_dial(pair, now_s, "the TLS handshake failed")
                return
            if link.fd < 0 or not link.layer.established:
                return
        self.sockets.set_interest(link, READ)
        self._core.dialed(pair, now_s)

    def _begin_tls(self, link: ProxyLink, upstream: Upstream) -> None:
        assert upstream.tls is not None
        link.layer = TlsStream.connect(
            link.sock, upstream.tls, upstream.host, self._core.door.fault
        )
        link.sock = link.layer
        self.sockets.set_interest(link, READ)

    def _greet(self, link: ProxyLink) -> str:
        """Return why the connection is not open, or ""; send the PROXY header before anything else,
        even TLS."""
        error = link.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR, 4)
        if any(error):
            return os.strerror(int.from_bytes(error, sys.byteorder))
        client = link.connection.pair.client.transport
        if not self._says_address or not isinstance(client, Link):
            return ""
        try:
            said = header(client.sock.getpeername(), client.sock.getsockname())
            is_sent = link.sock.send(said, SEND_FLAGS) == len(said)
        except OSError as failed:
            return str(failed.strerror)
        return "" if is_sent else "it takes no PROXY header"

    def give_up_dial(self, pair: ProxyPair, now_s: float, why: str = "") -> None:
        """Give up a connection that failed or took too long."""
        link = pair.upstream.transport
        if isinstance(link, Link):
            self.sockets.close_link(link)
        self._core.not_dialed(pair, now_s, why)

    # --- time, and the end -------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Every 100 ms."""
        if self.sockets.is_idle and self.sockets.is_silent:
            self.turns.has_heard(now_s)
        for pair in self._core.tick(now_s, self.turns.heard_s):
            self.give_up_dial(pair, now_s)
        self.sockets.sweep(self.turns.heard_s, self._core.guard.grant.pressure)
        self.turns.end_slice(now_s)
        if self._core.runnable:
            self.wake()

    def drain(self, now_s: float) -> None:
        """Stop accepting connections, and end all pairs; their last bytes are still sent."""
        self.sockets.listeners.close()
        for pair in list(self._core.pairs):
            pair.end(now_s)
        self.turns.end_slice(now_s)

    @property
    def is_empty(self) -> bool:
        """True if every socket of a pair is closed."""
        return not self._links

    def close(self) -> None:
        """Close every socket, without any packet."""
        self.sockets.close()
