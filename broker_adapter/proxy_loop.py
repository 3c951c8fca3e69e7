"""ProxyLoop: the sockets of a proxy, one trio task over one epoll set, as in `broker/reactor`.

A turn polls once without waiting, reads what is ready once, then sends what has gathered, one
non-blocking send per socket. Only reading ever pauses. A pair that is over says its last word on
both sides, and its sockets are closed when the others have, or after `LINGER_S`: a reset would
destroy what is still on its way.
"""

import errno
import select
import socket
from collections import deque
from collections.abc import Callable
from socket import MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_WR
from typing import Final, final

import structlog
import trio

from broker_adapter.proxy_core import ProxyCore
from broker_adapter.proxy_pair import PairState, ProxyPair
from flowguard.flow.signals import TICK_S

READ: Final = select.EPOLLIN
WRITE: Final = select.EPOLLOUT
READ_BYTES: Final = 64 * 1024
EVENTS_MAX: Final = 256
ACCEPTS_MAX: Final = 64
"""So many newcomers per turn: those who are here come first."""
LINGER_S: Final = 2.0
SEND_FLAGS: Final = MSG_DONTWAIT | MSG_NOSIGNAL

log = structlog.get_logger()


@final
class ProxySide:
    """One of the two sockets of a pair."""

    __slots__ = ("fd", "interest", "is_upstream", "pair", "shut", "sock")

    def __init__(self, sock: socket.socket, pair: ProxyPair, *, is_upstream: bool) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.pair = pair
        self.is_upstream = is_upstream
        self.interest = 0
        self.shut = False
        """Our last word is said."""

    @property
    def outgoing(self) -> bytearray:
        return self.pair.to_upstream if self.is_upstream else self.pair.to_client

    @property
    def wants_read(self) -> bool:
        """Whether it is to be read: also what is thrown away while it lingers."""
        pair = self.pair
        if pair.ended:
            return self.shut
        return pair.wants_upstream if self.is_upstream else pair.wants_client


@final
class ProxySockets:
    """The two of a pair; a pair's `transport`."""

    __slots__ = ("client", "lingers", "upstream")

    def __init__(self, client: ProxySide) -> None:
        self.client: ProxySide | None = client
        self.upstream: ProxySide | None = None
        self.lingers = False


@final
class ProxyLoop:
    """Moves bytes between the sockets and a `ProxyCore`."""

    def __init__(
        self,
        core: ProxyCore,
        listener: socket.socket,
        upstream: tuple[int, tuple[str, int]],
        clock: Callable[[], float],
        places: int,
    ) -> None:
        """`upstream`: address family and address; `places`: clients at once."""
        self._core = core
        self._clock = clock
        self._family, self._address = upstream
        self._places = places
        self._epoll = select.epoll()
        self._sides: dict[int, ProxySide] = {}
        self._listener = listener
        listener.setblocking(False)
        self._accepts = True
        self._epoll.register(listener.fileno(), READ)
        self._lingering: deque[tuple[float, ProxyPair]] = deque()
        self._was_up = True

    # --- the loop ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tick)
            try:
                while True:
                    await trio.lowlevel.wait_readable(self._epoll)
                    self._turn()
                    await trio.lowlevel.checkpoint()
            finally:
                self.close()

    def _turn(self) -> None:
        now_s = self._clock()
        for fd, kind in self._epoll.poll(0, EVENTS_MAX):
            side = self._sides.get(fd)
            if side is not None:
                self._serve(side, kind, now_s)
            elif fd == self._listener.fileno():
                self._accept(now_s)
        self._core.guard.observer.drift(self._clock() - now_s, now_s)
        self._end_slice(now_s)

    async def _tick(self) -> None:
        core, due_s = self._core, self._clock()
        while True:
            now_s = self._clock()
            core.guard.observer.drift(max(0.0, now_s - due_s), now_s)
            for pair in core.tick(now_s):
                self._give_up_dial(pair, now_s)
            while self._lingering and self._lingering[0][0] <= now_s:
                self._close_both(self._lingering.popleft()[1])
            if not self._accepts and self._may_accept(now_s):
                self._accepts = True
                self._epoll.register(self._listener.fileno(), READ)
            self._end_slice(now_s)
            self._tell()
            due_s = now_s + TICK_S
            await trio.sleep(TICK_S)

    def _tell(self) -> None:
        if self._core.is_up is not self._was_up:
            self._was_up = self._core.is_up
            host, port = self._address[:2]
            log.warning("upstream is back" if self._was_up else "upstream is gone", at=(host, port))

    def _end_slice(self, now_s: float) -> None:
        """Let go on whoever may; dial, send, close."""
        core = self._core
        core.turn(now_s)
        while core.to_dial or core.dirty:
            dialing, core.to_dial = core.to_dial, {}
            for pair in dialing:
                self._dial(pair, now_s)
            dirty, core.dirty = core.dirty, {}
            for pair in dirty:
                self._flush(pair, now_s)
            core.turn(now_s)

    # --- newcomers, and the upstream ---------------------------------------------------------

    def _may_accept(self, now_s: float) -> bool:
        return len(self._core.pairs) < self._places and self._core.guard.gate.may_accept(now_s)

    def _accept(self, now_s: float) -> None:
        for _ in range(ACCEPTS_MAX):
            if not self._may_accept(now_s):
                self._rest()
                return
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._rest()
                    return
                continue  # It has left already.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = self._core.opened(now_s)
            side = ProxySide(sock, pair, is_upstream=False)
            pair.transport = ProxySockets(side)
            self._sides[side.fd] = side
            self._set_interest(side, READ)

    def _rest(self) -> None:
        """Nobody else until the next tick: the kernel's backlog holds them."""
        self._accepts = False
        self._epoll.unregister(self._listener.fileno())

    def _dial(self, pair: ProxyPair, now_s: float) -> None:
        if pair.ended:
            return
        sockets = _sockets(pair)
        try:
            sock = socket.socket(self._family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError:
            self._core.not_dialed(pair, now_s)
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if sock.connect_ex(self._address) not in (0, errno.EINPROGRESS):
            sock.close()
            self._core.not_dialed(pair, now_s)
            return
        side = sockets.upstream = ProxySide(sock, pair, is_upstream=True)
        self._sides[side.fd] = side
        self._set_interest(side, WRITE)

    def _give_up_dial(self, pair: ProxyPair, now_s: float) -> None:
        side = _sockets(pair).upstream
        if side is not None:
            self._close(side)
        self._core.not_dialed(pair, now_s)

    def _on_dialed(self, side: ProxySide, now_s: float) -> None:
        if side.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._give_up_dial(side.pair, now_s)
        else:
            self._core.dialed(side.pair, now_s)

    # --- reading and writing -----------------------------------------------------------------

    def _serve(self, side: ProxySide, kind: int, now_s: float) -> None:
        pair = side.pair
        if pair.state is PairState.DIALING and side.is_upstream:
            self._on_dialed(side, now_s)
        elif kind & ~WRITE and side.wants_read:
            self._read(side, now_s)
        elif kind & (select.EPOLLERR | select.EPOLLHUP) and not side.outgoing:
            self._on_end(side, now_s)
        self._core.dirty[pair] = None

    def _read(self, side: ProxySide, now_s: float) -> None:
        try:
            data = side.sock.recv(READ_BYTES, MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        pair = side.pair
        if not data:
            self._on_end(side, now_s)
        elif pair.ended:
            pass  # It lingers: nobody wants it any more.
        elif side.is_upstream:
            pair.upstream_data(data, now_s)
        else:
            pair.client_data(data, now_s)

    def _on_end(self, side: ProxySide, now_s: float) -> None:
        """This side sends no more."""
        pair = side.pair
        if pair.ended:
            self._close(side)
        elif side.is_upstream:
            pair.end(now_s)
            self._close(side)
        else:
            pair.client_ended(now_s)

    def _flush(self, pair: ProxyPair, now_s: float) -> None:
        """Send what there is, read on what may be read, and close what is over."""
        if not isinstance(pair.transport, ProxySockets):
            return
        sockets = pair.transport
        upstream, client = sockets.upstream, sockets.client
        if pair.to_upstream and upstream is not None:
            self._send(upstream, now_s)
        if pair.to_client and client is not None:
            self._send(client, now_s)
        if (
            upstream is not None
            and client is not None
            and upstream.interest == client.interest == READ
            and pair.flows
        ):
            return
        if pair.ended:
            self._say_last(pair, now_s)
        for side in (sockets.upstream, sockets.client):
            if side is not None and not (side.is_upstream and pair.state is PairState.DIALING):
                wanted = (READ if side.wants_read else 0) | (WRITE if side.outgoing else 0)
                if wanted != side.interest:
                    self._set_interest(side, wanted)
        pair.weigh()

    def _send(self, side: ProxySide, now_s: float) -> None:
        pair = side.pair
        if side.shut:
            return
        try:
            sent_bytes = side.sock.send(side.outgoing, SEND_FLAGS)
        except BlockingIOError:
            return
        except OSError:
            pair.end(now_s)
            self._close(side)
            return
        if side.is_upstream:
            pair.sent_upstream(sent_bytes, now_s)
        else:
            pair.sent_client(sent_bytes)

    def _say_last(self, pair: ProxyPair, now_s: float) -> None:
        sockets = _sockets(pair)
        for side in (sockets.upstream, sockets.client):
            if side is not None and not side.outgoing and not side.shut:
                side.shut = True
                try:
                    side.sock.shutdown(SHUT_WR)
                except OSError:
                    self._close(side)
        if sockets.client is None and sockets.upstream is None:
            pair.transport = None
        elif not sockets.lingers:
            sockets.lingers = True
            self._lingering.append((now_s + LINGER_S, pair))

    def _set_interest(self, side: ProxySide, interest: int) -> None:
        if interest == side.interest or side.fd < 0:
            return
        # A socket without interest leaves the set: epoll would report its hang-up for ever.
        if not interest:
            self._epoll.unregister(side.fd)
        elif not side.interest:
            self._epoll.register(side.fd, interest)
        else:
            self._epoll.modify(side.fd, interest)
        side.interest = interest

    # --- the end -----------------------------------------------------------------------------

    def _close(self, side: ProxySide) -> None:
        if side.fd < 0:
            return
        self._set_interest(side, 0)
        del self._sides[side.fd]
        side.fd = -1
        side.sock.close()
        side.pair.discard(to_upstream=side.is_upstream)
        sockets = side.pair.transport
        if isinstance(sockets, ProxySockets):
            if side.is_upstream:
                sockets.upstream = None
            else:
                sockets.client = None

    def _close_both(self, pair: ProxyPair) -> None:
        if isinstance(pair.transport, ProxySockets):
            for side in (pair.transport.upstream, pair.transport.client):
                if side is not None:
                    self._close(side)
            pair.transport = None

    async def drain(self) -> None:
        """End all pairs, and give their last bytes time to leave."""
        now_s = self._clock()
        if self._accepts:
            self._rest()
        self._places = 0
        for pair in list(self._core.pairs):
            pair.end(now_s)
        self._end_slice(now_s)
        with trio.move_on_after(LINGER_S + TICK_S):
            while self._sides:  # noqa: ASYNC110
                await trio.sleep(TICK_S / 10)

    def close(self) -> None:
        """Close every socket."""
        for side in list(self._sides.values()):
            self._close(side)
        self._listener.close()
        self._epoll.close()


def _sockets(pair: ProxyPair) -> ProxySockets:
    assert isinstance(pair.transport, ProxySockets)
    return pair.transport
