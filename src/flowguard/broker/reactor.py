"""Reactor: one trio task over one epoll set; connections are objects, not tasks.

A turn polls once, without waiting, serves what is ready in slices, and ends each slice the same
way: work that waited is run, the journal is committed, and every connection with something to say
gets one non-blocking send. Work per slice is bounded (connections, bytes, a window of packets per
client). A backlog of conversations is worked off in rounds (`node.rounds`), a part of it after each
turn. Between all these parts other trio tasks get their chance. Only reading ever pauses: a socket
whose conversation does not want bytes leaves the read set.
"""

import select
from collections import deque
from collections.abc import Callable
from os import close as close_fd
from os import eventfd, eventfd_read, eventfd_write
from socket import MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_WR, socket
from typing import Final, final

import trio

from flowguard.broker.link import Link
from flowguard.broker.listeners import Listeners
from flowguard.flow import Reason
from flowguard.node.node import Node
from flowguard.node.rounds import Rounds
from flowguard.node.sends import Sends
from flowguard.session.connection import READ_BYTES_MAX, ServerConnection
from flowguard.stores import Store

EVENTS_MAX: Final = 128
"""Per turn: more at once only spreads the work over more memory than the caches hold."""
SLICE_CONNECTIONS: Final = 64
SLICE_BYTES: Final = 256 * 1024
SLICE_S: Final = 0.005
"""So long other tasks may wait for their chance, unless one has something to do."""
AWAITED_S: Final = 0.0005
"""So long where the store has answered, or is to be asked: who waits for it waits twice else."""
ROUND_TURN_S: Final = 0.0005
"""So long at least conversations that waited are run in a turn; then sockets are read again."""
ANSWERS: Final = 64
"""Who waited for a commit is told in slices of so many, for `SLICE_S` in a turn."""
LINGER_S: Final = 2.0
"""How long we wait for a peer to close after our last word, so that no reset destroys it."""
LINGERING_MAX: Final = 10_000
SEND_FLAGS: Final = MSG_DONTWAIT | MSG_NOSIGNAL

READ: Final = select.EPOLLIN
WRITE: Final = select.EPOLLOUT


@final
class Reactor:
    """Moves bytes between sockets and the conversations of a node."""

    def __init__(
        self,
        node: Node,
        store: Store,
        clock: Callable[[], float],
        on_work: Callable[[], bool],
    ) -> None:
        """`on_work` is told that the store is to be asked; whether only its turn is missing."""
        self._node = node
        self._store = store
        self._immediate = store.immediate
        self._clock = clock
        self._on_work = on_work
        self.awaited = False
        """The task that asks the store has something to do; its thread says so, too."""
        self._epoll = select.epoll()
        self._wakeup = eventfd(0)
        self._epoll.register(self._wakeup, READ)
        self._links: dict[int, Link] = {}
        self._listeners = Listeners(node, self._epoll, self._links, self._close)
        self._lingering: deque[tuple[float, Link]] = deque()
        self._rounds: Rounds[ServerConnection] = Rounds()
        self._sends: Sends[ServerConnection] = Sends()
        self._served_s = 0.0
        """How long the sockets of this turn took."""
        self._is_idle = False
        self.idle_s = 0.0
        """How long it has waited for events, in all."""
        self._heard_s = self._lap_s = self._lap_before_s = clock()
        self._lap_left = 0
        """Of a lap over all sockets: when it began, and the one before, and what is left of it."""

    # --- the loop ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until cancelled."""
        await trio.lowlevel.checkpoint()
        yielded_s = self._clock()
        yielded = True
        while True:
            started_s = self._clock()
            worked = self._turn(started_s)
            if self._clock() - yielded_s > SLICE_S:
                started_s = yielded_s = await self._let_others_run(started_s)
            worked |= self._run_round()
            if len(self._node.chores):
                chores_s = max(ROUND_TURN_S, self._served_s)
                self._node.chores.run(chores_s, self._clock, self.settle)
                worked = True
            if self.awaited and self._clock() - yielded_s > AWAITED_S:
                # With what the sockets had, and before backlogs have their turn.
                started_s = yielded_s = await self._let_others_run(started_s)
            # Backlogs come after the other tasks, too: a commit may have to be begun, or answered.
            replayed = self._replay(idle=yielded and not worked)
            ended_s = self._clock()
            if not worked and not replayed:
                if self._node.pages.ready:
                    await trio.lowlevel.checkpoint()
                else:
                    self._is_idle = True
                    await trio.lowlevel.wait_readable(self._epoll)
                    self._is_idle = False
                    self.idle_s += self._clock() - ended_s
                yielded_s = self._clock()
                yielded = True
                continue
            yielded = False
            if ended_s - yielded_s > SLICE_S:
                yielded_s = await self._let_others_run(started_s)
            else:
                self._node.guard.observer.drift(ended_s - started_s, ended_s)

    async def _let_others_run(self, since_s: float) -> float:
        """All other tasks that can; returns the time.

        Sockets have waited for them, and for what was done `since_s`.
        """
        drift = self._node.guard.observer.drift
        began_s = self._clock()
        drift(began_s - since_s, began_s)
        # Tasks run in any order: a single checkpoint may end with ours.
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        ended_s = self._clock()
        drift(ended_s - began_s, ended_s)
        return ended_s

    def wake(self) -> None:
        """There is work that no socket announces."""
        eventfd_write(self._wakeup, 1)

    def _turn(self, now_s: float) -> bool:
        """One pass over what is ready; False when there was nothing to do."""
        started_s = now_s
        self._served_s = 0.0
        if self._lap_left <= 0:
            self._lap_s = now_s
            self._lap_left = len(self._links) + self._listeners.count + 1
        events = self._epoll.poll(0, EVENTS_MAX)
        if events:
            self._serve(events, now_s)
            now_s = self._clock()
            self._served_s = now_s - started_s
        self._lap_left -= len(events)
        if self._lap_left <= 0 or len(events) < EVENTS_MAX:
            self._lap_left = 0
            self._heard_s, self._lap_before_s = self._lap_before_s, self._lap_s
        answered = self._node.journal.is_answering
        if answered:
            now_s = self._answer(now_s)
        self.settle(now_s)
        return bool(events or self._sends) or answered or self._node.has_work

    def heard_s(self, now_s: float) -> float:
        """Until when whatever had come has been read: not yet now, where the loop was away.

        Who is ready stands in a line, and whoever was in it when a lap over all sockets began was
        served when it is over. Who was let in meanwhile speaks in the next one: so it takes two.
        """
        if self._is_idle and not self._epoll.poll(0, 1):
            self._heard_s = self._lap_before_s = now_s
        return self._heard_s

    def _replay(self, *, idle: bool) -> bool:
        """Backlogs, if it is their turn."""
        pages = self._node.pages
        if not pages.ready:
            return False
        now_s = self._clock()
        if not pages.begins(now_s, idle=idle):
            return False
        while (piece := pages.next(now_s)) is not None:
            self._node.replay(piece, now_s)
            now_s = self._clock()
        self.settle(now_s)
        return True

    def _serve(self, events: list[tuple[int, int]], now_s: float) -> None:
        """Read every ready socket once, in slices.

        First all bytes of a slice, then all conversations: each kind of work finds its code and
        data where it left them, in the caches.
        """
        links = self._links
        is_tight = self._node.input_holders.is_tight
        chunks: list[tuple[Link, bytes]] = []
        size_bytes = 0
        for fd, event in events:
            link = links.get(fd)
            if link is None:
                self._on_other(fd, now_s)
                continue
            if event != READ:
                if event & WRITE:
                    self._flush(link, now_s)
                if event == WRITE:
                    continue
            read_bytes = READ_BYTES_MAX
            if is_tight or link.interest != READ:
                read_bytes = link.connection.read_bytes_max(blocked=link.interest & WRITE != 0)
            data = link.read(read_bytes)
            if data is None:
                if not read_bytes:
                    self._set_interest(link, link.interest & ~READ)
                continue
            chunks.append((link, data))
            size_bytes += len(data)
            if size_bytes >= SLICE_BYTES or len(chunks) >= SLICE_CONNECTIONS:
                self._receive(chunks, now_s)
                self.settle(now_s)
                chunks = []
                size_bytes = 0
                is_tight = self._node.input_holders.is_tight
                now_s = self._clock()
        self._receive(chunks, now_s)

    def _receive(self, chunks: list[tuple[Link, bytes]], now_s: float) -> None:
        """Hand over what was read; nothing: the peer has ended."""
        for link, data in chunks:
            if not data:
                self._on_end_of_input(link, now_s)
            elif not link.connection.receive_data(data, now_s):
                self._update_interest(link)

    def _answer(self, clock_s: float) -> float:
        """Who waited for the last commit; the next one begins when all have heard of it."""
        journal = self._node.journal
        until_s = clock_s + SLICE_S
        while journal.is_answering and clock_s < until_s:
            journal.answer(ANSWERS, clock_s)
            self.settle(clock_s)
            clock_s = self._clock()
        return clock_s

    def _run_round(self) -> bool:
        """Conversations that had more than their window of packets, or waited for room.

        In slices, for `ROUND_TURN_S` or as long as the sockets took; the round goes on in the next
        turn. Returns False when nobody waited.
        """
        node, rounds = self._node, self._rounds
        if not node.runnable and not rounds:
            return False
        began_s = slice_s = clock_s = self._clock()
        until_s = began_s + max(ROUND_TURN_S, self._served_s)
        self._join_round(began_s, until_s)
        count = 0
        while clock_s < until_s and not rounds.is_over:
            connection = rounds.next()
            connection.queued = False
            if connection.ended:
                continue
            connection.run(slice_s)
            self._update_interest(connection.transport)
            count += 1
            if count % SLICE_CONNECTIONS == 0:
                self.settle(slice_s)
                slice_s = self._clock()
            clock_s = self._clock()
        node.guard.observer.kept_waiting(rounds.wait_s(clock_s))
        self.settle(clock_s)
        return True

    def _join_round(self, now_s: float, until_s: float) -> None:
        """Who has come to wait.

        While clients take turns the pool has decided on the order, and who has no permit waits for
        that, not for the loop: it has only to say so, for which there is time until `until_s`.
        """
        node, rounds = self._node, self._rounds
        runnable, node.runnable = node.runnable, []
        if not node.window.shared:
            rounds.join(runnable, now_s)
            return
        with_room = []
        for connection in runnable:
            inbound = connection.inbound
            has_room = connection.ended or inbound is None or inbound.room()
            if has_room or self._clock() >= until_s:
                with_room.append(connection)
            else:
                connection.queued = False
                connection.run(now_s)
                self._update_interest(connection.transport)
        rounds.follow(with_room, now_s)

    def settle(self, now_s: float) -> None:
        """End a slice: admit, commit, send."""
        node = self._node
        node.turn(now_s)
        if self._immediate:
            if not node.journal.is_empty:
                self._commit(now_s)
        elif node.journal.is_urgent or node.pages.is_hungry:
            self.awaited |= self._on_work()
        acknowledgements = node.router.acknowledgements
        if acknowledgements.at_once_count:
            acknowledgements.leave(self._clock())
        dirty, sends = node.dirty, self._sends
        if dirty or len(sends):
            node.dirty = []
            more = bool(node.runnable or self._rounds or node.journal.is_answering)
            self._send(sends.next(dirty, now_s, more=more), now_s)
            if len(sends):
                self.wake()

    def _send(self, dirty: list[ServerConnection], now_s: float) -> None:
        for connection in dirty:
            link = connection.transport
            if not isinstance(link, Link):
                continue  # Closed meanwhile.
            if not connection.outbound.blocked:
                self._flush(link, now_s)
            elif connection.ended:
                self._linger(link, now_s)

    def _commit(self, now_s: float) -> None:
        node, journal = self._node, self._node.journal
        while not journal.is_answering and (batch := node.next_batch(now_s)) is not None:
            self._store.commit(batch.ops)
            node.durable(batch, now_s, 0.0)
            journal.answer(len(batch.continuations), now_s)

    # --- reading -----------------------------------------------------------------------------

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
        if outbound.has_more:
            outbound.pump(now_s)
        if link.interest != READ:
            self._set_interest(link, link.interest & ~WRITE)
            self._update_interest(link)
        if outbound.ended and not outbound.outbox:
            self._say_last(link, now_s)

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
        while self._lingering and self._lingering[0][0] <= self._heard_s:
            self._close(self._lingering.popleft()[1])
        self._listeners.sweep()

    def _close(self, link: Link) -> None:
        if link.fd < 0:
            return
        del self._links[link.fd]
        self._listeners.newcomers.pop(link, None)
        link.fd = -1
        link.interest = 0
        link.sock.close()
        link.connection.transport = None
        self._node.closed()

    # --- listeners ---------------------------------------------------------------------------

    def listen(self, sock: socket, places: int) -> None:
        """Accept on this listening socket, as long as all clients have less than `places`."""
        self._listeners.listen(sock, places)

    def stop_listening(self) -> None:
        """Close every listener: new clients are refused by the kernel."""
        self._listeners.close()

    def _on_other(self, fd: int, now_s: float) -> None:
        if fd == self._wakeup:
            eventfd_read(fd)
        else:
            self._listeners.accept(fd, self._heard_s, now_s)

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
        node = self._node
        waits = node.runnable or self._rounds or node.dirty or self._sends or len(node.chores)
        return node.journal.is_empty and not waits

    def connections(self) -> list[ServerConnection]:
        """Every conversation that is not over."""
        return [link.connection for link in self._links.values() if not link.connection.ended]

    @property
    def is_empty(self) -> bool:
        """Whether every socket of a client is closed."""
        return not self._links
