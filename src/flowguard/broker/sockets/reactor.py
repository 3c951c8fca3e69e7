"""Reactor: one trio task over one epoll set; connections are objects, not tasks.

`flowguard.node.loop.turns` defines the work of a turn and when other trio tasks run. This module
has
the sockets: each turn polls once, without waiting. At the end of a slice, each connection with
output
gets one non-blocking send. Only reading pauses: a socket leaves the read set while its connection
accepts no bytes.
"""

from collections.abc import Callable
from socket import MSG_DONTWAIT, MSG_NOSIGNAL, socket
from time import thread_time
from typing import Final, final

from flowguard.broker.commits.presence import Presence
from flowguard.broker.layers.layer import Layer
from flowguard.broker.sockets.link import Link
from flowguard.broker.sockets.listening import Doorway
from flowguard.broker.sockets.socket_set import READ, WRITE, Event, SocketSet
from flowguard.flow import Reason
from flowguard.node.journal import Batch
from flowguard.node.loop.ports import NodePorts
from flowguard.node.loop.turns import NOTHING
from flowguard.node.node import Node
from flowguard.session.connection import ServerConnection
from flowguard.session.inbound.input import READ_BYTES_MAX
from flowguard.stores import Store
from flowguard.types import ReasonCode

SEND_FLAGS: Final = MSG_DONTWAIT | MSG_NOSIGNAL

ServerLink = Link[ServerConnection]


@final
class Reactor(NodePorts[Event]):
    """Moves bytes between sockets and the conversations of a node."""

    def __init__(
        self,
        node: Node,
        store: Store,
        clock: Callable[[], float],
        on_work: Callable[[], bool],
        presence: Presence | None = None,
        *,
        alone: bool = False,
    ) -> None:
        """`on_work` is called when the store has work; it returns whether the store is free.

        `alone`: it may wait in trio's place (`flowguard.broker.sockets.other_tasks`). `presence`:
        while it is in doubt, nothing is sent until `let_go`.
        """
        super().__init__(node, clock, immediate=store.immediate)
        self._alone = alone
        self._store = store
        self._on_work = on_work
        self._presence = presence or Presence(None, clock)
        self._held: dict[ServerConnection, None] = {}
        """Connections with output that must not be sent yet."""
        self.sockets: SocketSet[ServerConnection] = SocketSet(
            node, node.settings.flow, clock, self._shake_hands
        )
        self._links = self.sockets.links
        self._chunks: list[tuple[ServerLink, bytes]] = []
        """Read in this slice."""
        self._has_strangers = False
        """True if this slice has data from connections that are not accepted yet."""
        self._is_tight = False
        """So little memory is left for input that each is asked for how much it may bring."""
        self.on_slice: Callable[[], None] | None = None
        """Called at the end of each slice, or None without other workers."""

    # --- the loop ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until cancelled."""
        await self.sockets.drive(self.turns, alone=self._alone)

    def wake(self) -> None:
        self.sockets.wake()

    @property
    def idle_s(self) -> float:
        """How long it has waited for events, in all."""
        return self.sockets.idle_s + self.turns.idle_s

    def heard_s(self, now_s: float) -> float:
        """Return the time until which all arrived data are read; earlier than now after a stall."""
        if self.sockets.is_idle and self.sockets.is_silent:
            self.turns.has_heard(now_s)
        return self.turns.heard_s

    @property
    def sockets_count(self) -> int:
        return self.sockets.count

    def spare_s(self, now_s: float) -> float:
        return self.sockets.spare_s(now_s)

    def poll(self, count_max: int, stay_s: float) -> list[Event]:
        return self.sockets.poll(count_max, stay_s)

    def read(self, event: Event, now_s: float) -> int:
        fd, kind = event
        link = self._links.get(fd)
        if link is None:
            self.sockets.serve_other(fd, self.turns.heard_s, now_s)
            return NOTHING
        if kind != READ and not self._write_first(link, kind, now_s):
            return NOTHING
        layer = link.layer
        if layer is not None and self.sockets.is_left_unread(link):
            return NOTHING
        read_bytes = READ_BYTES_MAX
        if not self._chunks:  # A slice begins.
            self._is_tight = self._node.state.input_holders.is_tight
        if self._is_tight or link.interest != READ:
            read_bytes = link.connection.read_bytes_max(blocked=link.interest & WRITE != 0)
        data = self.sockets.read(link, read_bytes, now_s)
        if data is None:
            if not read_bytes:
                self.sockets.set_interest(link, link.interest & ~READ)
            return NOTHING
        if link.connection.inbound is None:
            self._has_strangers = True
        self._chunks.append((link, data))
        return len(data)

    def _write_first(self, link: ServerLink, kind: int, now_s: float) -> bool:
        """Send if the socket takes more; return True if there is also something to read."""
        if kind & WRITE:
            if self._presence.in_doubt:
                self._held[link.connection] = None
                # It stays writable, and the loop would spin.
                self.sockets.set_interest(link, link.interest & ~WRITE)
            else:
                self._flush(link, now_s)
        return kind != WRITE

    def receive(self, now_s: float) -> None:
        chunks, self._chunks = self._chunks, []
        guard = self._node.guard
        has_strangers, self._has_strangers = self._has_strangers, False
        started_s = thread_time() if has_strangers else 0.0  # A system call.
        before, let_in_s = guard.refused_count, guard.observer.connecting_s
        for link, data in chunks:
            if not data:  # The peer has ended.
                self._on_end_of_input(link, now_s)
            elif not link.connection.receive_data(data, now_s):
                self._update_interest(link)
        count = guard.refused_count - before
        if count:  # Each rejection gets its share of the time left by accepted clients.
            took_s = thread_time() - started_s - (guard.observer.connecting_s - let_in_s)
            guard.refused(took_s * count / len(chunks), now_s, count)

    def run_again(self, connection: ServerConnection, now_s: float) -> bool:
        if not super().run_again(connection, now_s):
            return False
        self._update_interest(connection.transport)
        return True

    def leave(self) -> list[ServerConnection]:
        if self.on_slice is not None:
            self.on_slice()
        return super().leave()

    def send(self, connections: list[ServerConnection], now_s: float) -> None:
        if self._presence.look():
            self._held.update(dict.fromkeys(connections))
            self._on_work()
            return
        for connection in connections:
            link = connection.transport
            if not isinstance(link, Link):
                continue  # Closed meanwhile.
            if not connection.outbound.outbox.blocked:
                self._flush(link, now_s)
            elif connection.ended:
                self.sockets.linger(link, now_s)

    def let_go(self, now_s: float, *, is_void: bool = False) -> None:
        """Send what was held back, because no other broker has the store. If `is_void`, end these
        connections instead: another one may have it."""
        held, self._held = self._held, {}
        for connection in held:
            link = connection.transport
            if is_void and isinstance(link, Link):
                connection.end(None, now_s)
                self.sockets.close_link(link)
                continue
            if connection.outbound.outbox.blocked and isinstance(link, Link):
                self.sockets.set_interest(link, link.interest | WRITE)
        if not is_void:
            self.send(list(held), now_s)

    def store(self, batch: Batch) -> None:
        self._store.commit(batch.ops)

    def ask_store(self) -> bool:
        return self._on_work()

    @property
    def has_work(self) -> bool:
        return self._node.has_work or self.sockets.layer_gate.has_work

    # --- reading -----------------------------------------------------------------------------

    def _shake_hands(self, link: ServerLink, now_s: float) -> None:
        """A step of the handshake of a layer, and what has come behind it."""
        started_s = thread_time()
        data = self.sockets.read(link, READ_BYTES_MAX, now_s, flushes=False)
        self._node.guard.observer.shook_hands(thread_time() - started_s)
        if data is not None and not data:
            self._on_end_of_input(link, now_s)
            return
        self.sockets.set_interest(link, link.interest | READ)
        if data is None:
            return
        if not link.connection.receive_data(data, now_s):
            self._update_interest(link)
        # The last of the handshake leaves at the end of this turn, with the answer if there is one.
        self._node.state.dirty.append(link.connection)

    def _on_end_of_input(self, link: ServerLink, now_s: float) -> None:
        link.peer_closed = True
        self.sockets.set_interest(link, link.interest & ~READ)
        connection = link.connection
        if connection.may_close:
            self.sockets.close_link(link)
        elif not connection.ended:
            connection.receive_eof(now_s)

    def _update_interest(self, link: object) -> None:
        assert isinstance(link, Link)
        connection = link.connection
        if connection.ended:
            return
        wanted = READ if connection.wants_read else 0
        self.sockets.set_interest(link, (link.interest & WRITE) | wanted)

    # --- writing -----------------------------------------------------------------------------

    def _flush(self, link: ServerLink, now_s: float) -> None:
        """Send everything there is, once; what the socket does not take waits for it."""
        outbound = link.connection.outbound
        if link.fd < 0:
            return
        if outbound.outbox.frames:
            data = outbound.outbox.take()
            try:
                size_bytes = link.sock.send(data, SEND_FLAGS)
            except BlockingIOError:
                size_bytes = 0
            except Exception as error:
                self.sockets.broke(link, error, now_s)
                return
            if size_bytes < len(data):
                self._wait_until_writable(link, data[size_bytes:], now_s)
                return
        if link.layer is not None and not self.sockets.flush_layer(link, now_s):
            return
        if outbound.has_more:
            outbound.pump(now_s)
        if link.interest != READ:
            self.sockets.set_interest(link, link.interest & ~WRITE)
            self._update_interest(link)
        if outbound.ended and not outbound.outbox.frames and link.connection.may_close:
            self.sockets.say_last(link, now_s)

    def _wait_until_writable(self, link: ServerLink, rest: bytes, now_s: float) -> None:
        outbound = link.connection.outbound
        if not outbound.outbox.put_back(rest):
            # The node's memory for sockets that take nothing is spent: no more of them.
            self._node.counters.drop(Reason.NODE_OUTBOX_BYTES)
            link.connection.end(None, now_s)
            self.sockets.close_link(link)
            return
        self.sockets.set_interest(link, link.interest | WRITE)
        if outbound.ended:
            self.sockets.linger(link, now_s)

    def sweep(self) -> None:
        """Close what has lingered long enough; accept again where listeners rested."""
        self.sockets.sweep(self.turns.heard_s, self._node.guard.grant.pressure)

    # --- listeners ---------------------------------------------------------------------------

    def listen(self, doorway: Doorway, places: int) -> None:
        """Accept on this listening socket, as long as all clients have less than `places`."""
        self.sockets.listen(doorway, places)

    def adopt(self, sock: socket) -> None:
        """Serve a client of this process, at the other end of `sock`."""
        self.sockets.listeners.adopt(sock, self._clock())

    def take_over(
        self,
        sock: socket,
        doorway: Doorway,
        layer: Layer | None,
        waited_s: float,
        version: int,
        data: bytes,
    ) -> None:
        """Serve a client that another worker has accepted; `data`: the bytes that it has sent."""
        now_s = self._clock()
        is_full = doorway.is_full
        link = self.sockets.listeners.take_over(sock, doorway, layer, waited_s, now_s)
        if link is None:
            return
        if is_full:
            link.connection.outbound.version = version
            self._node.counters.turn_away(Reason.CONNECTIONS_MAX)
            why = f"{doorway.settings.address} has {doorway.connections_max:,} clients"
            link.connection.refuse(ReasonCode.QUOTA_EXCEEDED, now_s, why=why)
        elif not link.connection.receive_data(data, now_s):
            self._update_interest(link)

    def stop_listening(self) -> None:
        """Close every listener; the kernel then refuses new connections."""
        self.sockets.listeners.close()

    def close(self) -> None:
        """Close every socket, without any packet."""
        self.sockets.close()

    @property
    def is_quiet(self) -> bool:
        """True if nothing is in process: the journal is empty, no connection runnable or dirty."""
        return self.turns.is_quiet and not self._node.state.dirty

    def connections(self) -> list[ServerConnection]:
        """Return every connection that has not ended."""
        return [link.connection for link in self._links.values() if not link.connection.ended]

    @property
    def is_empty(self) -> bool:
        """True if every socket of a client is closed."""
        return not self._links and not self.sockets.listeners.pipes_count
