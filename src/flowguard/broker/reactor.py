"""Reactor: one trio task over one epoll set; connections are objects, not tasks.

What a turn does, and when other trio tasks get their chance, is `flowguard.node.turns`. Here are
its sockets: a turn polls once, without waiting, and a connection with something to say gets one
non-blocking send at the end of a slice. Only reading ever pauses: a socket whose conversation does
not want bytes leaves the read set.
"""

import select
from collections import deque
from collections.abc import Callable
from os import close as close_fd
from os import eventfd, eventfd_read, eventfd_write
from socket import MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_WR, socket
from time import thread_time
from typing import Final, final

import trio

from flowguard.broker.doorway import Doorway
from flowguard.broker.layer_gate import LayerGate
from flowguard.broker.link import Link
from flowguard.broker.listeners import Listeners
from flowguard.flow import Reason
from flowguard.node.journal import Batch
from flowguard.node.node import Node
from flowguard.node.ports import NodePorts
from flowguard.node.turns import NOTHING, Next
from flowguard.session.connection import READ_BYTES_MAX, ServerConnection
from flowguard.stores import Store

LINGER_S: Final = 2.0
"""How long we wait for a peer to close after our last word, so that no reset destroys it."""
LINGERING_MAX: Final = 10_000
SEND_FLAGS: Final = MSG_DONTWAIT | MSG_NOSIGNAL

READ: Final = select.EPOLLIN
WRITE: Final = select.EPOLLOUT


Event = tuple[int, int]
"""A descriptor, and what the kernel says of it."""


@final
class Reactor(NodePorts[Event]):
    """Moves bytes between sockets and the conversations of a node."""

    def __init__(
        self,
        node: Node,
        store: Store,
        clock: Callable[[], float],
        on_work: Callable[[], bool],
    ) -> None:
        """`on_work` is told that the store is to be asked; whether only its turn is missing."""
        super().__init__(node, clock, immediate=store.immediate)
        self._store = store
        self._on_work = on_work
        self._epoll = select.epoll()
        self._wakeup = eventfd(0)
        self._epoll.register(self._wakeup, READ)
        self._links: dict[int, Link] = {}
        self._chunks: list[tuple[Link, bytes]] = []
        """Read in this slice."""
        self._is_tight = False
        """So little memory is left for input that each is asked for how much it may bring."""
        self._layer_gate = LayerGate(
            node.settings.flow, clock, node.door, self._shake_hands, self._close
        )
        self._listeners = Listeners(node, self._epoll, self._links, self._close, self._layer_gate)
        self._lingering: deque[tuple[float, Link]] = deque()
        self._is_idle = False
        self.idle_s = 0.0
        """How long it has waited for events, in all."""

    # --- the loop ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until cancelled."""
        turns = self.turns
        await trio.lowlevel.checkpoint()
        turns.resume()
        while True:
            following = turns.go_on()
            if following is Next.TURN:
                continue
            if following is Next.IDLE:
                await self._wait()
            else:
                # Tasks run in any order: a single checkpoint may end with ours.
                await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()
            turns.resume()

    async def _wait(self) -> None:
        began_s = self._clock()
        self._is_idle = True
        await trio.lowlevel.wait_readable(self._epoll)
        self._is_idle = False
        self.idle_s += self._clock() - began_s

    def wake(self) -> None:
        eventfd_write(self._wakeup, 1)

    def heard_s(self, now_s: float) -> float:
        """Until when whatever had come has been read: not yet now, where the loop was away."""
        if self._is_idle and not self._epoll.poll(0, 1):
            self.turns.has_heard(now_s)
        return self.turns.heard_s

    @property
    def sockets_count(self) -> int:
        return len(self._links) + self._listeners.count + 1

    def poll(self, count_max: int) -> list[Event]:
        if self._layer_gate.has_work:
            self._layer_gate.run()
        return self._epoll.poll(0, count_max)

    def read(self, event: Event, now_s: float) -> int:
        fd, kind = event
        link = self._links.get(fd)
        if link is None:
            self._on_other(fd, now_s)
            return NOTHING
        if kind != READ and not self._write_first(link, kind, now_s):
            return NOTHING
        layer = link.layer
        if layer is not None and self._is_left_unread(link, now_s):
            return NOTHING
        read_bytes = READ_BYTES_MAX
        if not self._chunks:  # A slice begins.
            self._is_tight = self._node.input_holders.is_tight
        if self._is_tight or link.interest != READ:
            read_bytes = link.connection.read_bytes_max(blocked=link.interest & WRITE != 0)
        data = link.read(read_bytes)
        if layer is not None:
            self._flush_layer(link, now_s)
        if data is None:
            if not read_bytes:
                self._set_interest(link, link.interest & ~READ)
            return NOTHING
        self._chunks.append((link, data))
        return len(data)

    def _write_first(self, link: Link, kind: int, now_s: float) -> bool:
        """Send where the socket takes more; whether there is something to read, too."""
        if kind & WRITE:
            self._flush(link, now_s)
        return kind != WRITE

    def receive(self, now_s: float) -> None:
        chunks, self._chunks = self._chunks, []
        guard = self._node.guard
        started_s, before = thread_time(), guard.refused_count
        for link, data in chunks:
            if not data:  # The peer has ended.
                self._on_end_of_input(link, now_s)
            elif not link.connection.receive_data(data, now_s):
                self._update_interest(link)
        count = guard.refused_count - before
        if count:  # Each took as long as any other conversation of this slice.
            guard.refused((thread_time() - started_s) * count / len(chunks), now_s, count)

    def run_again(self, connection: ServerConnection, now_s: float) -> bool:
        if not super().run_again(connection, now_s):
            return False
        self._update_interest(connection.transport)
        return True

    def send(self, connections: list[ServerConnection], now_s: float) -> None:
        for connection in connections:
            link = connection.transport
            if not isinstance(link, Link):
                continue  # Closed meanwhile.
            if not connection.outbound.blocked:
                self._flush(link, now_s)
            elif connection.ended:
                self._linger(link, now_s)

    def store(self, batch: Batch) -> None:
        self._store.commit(batch.ops)

    def ask_store(self) -> bool:
        return self._on_work()

    @property
    def has_work(self) -> bool:
        return self._node.has_work or self._layer_gate.has_work

    # --- reading -----------------------------------------------------------------------------

    def _is_left_unread(self, link: Link, now_s: float) -> bool:
        """Whether the handshake of a layer is not over: what has come waits for its gate."""
        layer = link.layer
        assert layer is not None
        if layer.established or link.connection.ended:
            return False
        self._set_interest(link, link.interest & ~READ)
        self._layer_gate.heard(link, now_s)
        return True

    def _shake_hands(self, link: Link, now_s: float) -> None:
        """A step of the handshake of a layer, and what has come behind it."""
        data = link.read(READ_BYTES_MAX)
        if data is not None and not data:
            self._on_end_of_input(link, now_s)
            return
        self._set_interest(link, link.interest | READ)
        self._flush_layer(link, now_s)
        if data is not None and not link.connection.receive_data(data, now_s):
            self._update_interest(link)

    def _on_end_of_input(self, link: Link, now_s: float) -> None:
        link.peer_closed = True
        self._set_interest(link, link.interest & ~READ)
        if link.connection.ended:
            self._close(link)
        else:
            link.connection.receive_eof(now_s)

    def _update_interest(self, link: object) -> None:
        assert isinstance(link, Link)
        connection = link.connection
        if connection.ended:
            return
        wanted = READ if connection.wants_read else 0
        self._set_interest(link, (link.interest & WRITE) | wanted)

    def _set_interest(self, link: Link, interest: int) -> None:
        if interest == link.interest or link.fd < 0:
            return
        # A socket without interest leaves the set: epoll would report its hang-up for ever.
        if not interest:
            self._epoll.unregister(link.fd)
        elif not link.interest:
            self._epoll.register(link.fd, interest)
        else:
            self._epoll.modify(link.fd, interest)
        link.interest = interest

    # --- writing -----------------------------------------------------------------------------

    def _flush(self, link: Link, now_s: float) -> None:
        """Send everything there is, once; what the socket does not take waits for it."""
        outbound = link.connection.outbound
        if link.fd < 0:
            return
        if outbound.outbox:
            data = outbound.take_outbox()
            try:
                size_bytes = link.sock.send(data, SEND_FLAGS)
            except BlockingIOError:
                size_bytes = 0
            except OSError:
                link.connection.end(None, now_s)
                self._close(link)
                return
            if size_bytes < len(data):
                self._wait_until_writable(link, data[size_bytes:], now_s)
                return
        if link.layer is not None and not self._flush_layer(link, now_s):
            return
        if outbound.has_more:
            outbound.pump(now_s)
        if link.interest != READ:
            self._set_interest(link, link.interest & ~WRITE)
            self._update_interest(link)
        if outbound.ended and not outbound.outbox:
            self._say_last(link, now_s)

    def _flush_layer(self, link: Link, now_s: float) -> bool:
        """Send what the layer has to say; False: it waits for the socket to take it."""
        assert link.layer is not None
        try:
            if link.layer.flush():
                return True
        except OSError:
            return True  # Whoever reads or writes next is told.
        self._set_interest(link, link.interest | WRITE)
        if link.connection.ended:
            self._linger(link, now_s)
        return False

    def _wait_until_writable(self, link: Link, rest: bytes, now_s: float) -> None:
        outbound = link.connection.outbound
        if not outbound.put_back(rest):
            # The node's memory for sockets that take nothing is spent: no more of them.
            self._node.counters.drop(Reason.NODE_OUTBOX_BYTES)
            link.connection.end(None, now_s)
            self._close(link)
            return
        self._set_interest(link, link.interest | WRITE)
        if outbound.ended:
            self._linger(link, now_s)

    def _say_last(self, link: Link, now_s: float) -> None:
        """Everything is sent and the conversation is over: let the peer read it, then close."""
        if link.peer_closed:
            self._close(link)
            return
        try:
            link.sock.shutdown(SHUT_WR)
        except OSError:
            self._close(link)
            return
        self._set_interest(link, READ)
        self._linger(link, now_s)

    def _linger(self, link: Link, now_s: float) -> None:
        """Close the socket soon, whether or not the peer takes our last word."""
        if link.lingers:
            return
        link.lingers = True
        self._lingering.append((now_s + LINGER_S, link))
        if len(self._lingering) > LINGERING_MAX:
            self._close(self._lingering.popleft()[1])

    def sweep(self) -> None:
        """Close what has lingered long enough; accept again where listeners rested."""
        while self._lingering and self._lingering[0][0] <= self.turns.heard_s:
            self._close(self._lingering.popleft()[1])
        self._layer_gate.tick(self._clock(), self._node.guard.grant.pressure)
        if self._layer_gate.has_work:
            self.wake()
        self._listeners.sweep()

    def _close(self, link: Link) -> None:
        if link.fd < 0:
            return
        del self._links[link.fd]
        self._listeners.newcomers.pop(link, None)
        link.fd = -1
        link.interest = 0
        if link.doorway is not None:
            link.doorway.count -= 1
        if link.layer is not None:
            self._layer_gate.left(link)
        link.sock.close()
        link.connection.transport = None
        self._node.closed()

    # --- listeners ---------------------------------------------------------------------------

    def listen(self, doorway: Doorway, places: int) -> None:
        """Accept on this listening socket, as long as all clients have less than `places`."""
        self._listeners.listen(doorway, places)

    def adopt(self, sock: socket) -> None:
        """Serve a client of this very process, at the other end of `sock`."""
        self._listeners.adopt(sock, self._clock())

    def stop_listening(self) -> None:
        """Close every listener: new clients are refused by the kernel."""
        self._listeners.close()

    def _on_other(self, fd: int, now_s: float) -> None:
        if fd == self._wakeup:
            eventfd_read(fd)
        else:
            self._listeners.accept(fd, self.turns.heard_s, now_s)

    def close(self) -> None:
        """Close every socket, without a word."""
        self.stop_listening()
        for link in list(self._links.values()):
            self._close(link)
        self._epoll.close()
        close_fd(self._wakeup)

    @property
    def is_quiet(self) -> bool:
        """Nothing in process: journal empty, nobody runnable, nothing dirty."""
        return self.turns.is_quiet and not self._node.dirty

    def connections(self) -> list[ServerConnection]:
        """Every conversation that is not over."""
        return [link.connection for link in self._links.values() if not link.connection.ended]

    @property
    def is_empty(self) -> bool:
        """Whether every socket of a client is closed."""
        return not self._links
