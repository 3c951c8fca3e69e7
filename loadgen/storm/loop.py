"""Loop: thousands of client sockets in one trio task; clients are objects, not tasks.

A turn serves what is ready, then what is due, and ends by sending what both have written: one send
per socket. New sockets are made in the second part only, so an event never meets another socket's
descriptor.
"""

import errno
import heapq
import select
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import count, cycle
from socket import MSG_DONTWAIT, MSG_NOSIGNAL, SO_ERROR, SOCK_STREAM, SOL_SOCKET, socket
from typing import Final, Protocol, final

import trio

from flowguard.address import Address, Scheme
from flowguard.codec import Packet, PacketDecoder
from flowguard.errors import PeerError
from loadgen.storm.layers import LayerError, Stack, make_stack
from loadgen.storm.plan import Target

READ_BYTES: Final = 64 * 1024
EVENTS_MAX: Final = 512
DUE_MAX: Final = 128
"""Timers run in one turn, so that a crowd's dials do not delay its first answers."""
PACKET_BYTES_MAX: Final = 16 * 1024 * 1024
SLICE_S: Final = 0.005
IDLE_S: Final = 0.05
FLAGS: Final = MSG_DONTWAIT | MSG_NOSIGNAL
LOCAL: Final = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM)

READ: Final = select.EPOLLIN
WRITE: Final = select.EPOLLOUT


class Fate(Enum):
    """How a connection ended that this side did not end."""

    RESET = "resets"
    CLOSED = "closed"
    """Closed without an answer, but not by a reset."""
    UNREACHABLE = "unreachable"
    """There was no TCP connection."""
    BROKEN = "broken"
    """The broker sent bytes that are not MQTT."""
    TLS = "tls"
    """The TLS handshake failed, or the broker ended TLS with an alert."""
    WEBSOCKET = "websocket"
    """The WebSocket handshake failed, or the broker sent bytes that are not WebSocket."""
    LOCAL = "local"
    """This machine had no descriptor or port left."""


class WireOwner(Protocol):
    def opened(self, now_s: float) -> None:
        """The connection is established, with all its layers."""

    def receive(self, packet: Packet, now_s: float) -> None:
        """A packet from the broker."""

    def closed(self, fate: Fate, now_s: float) -> None:
        """The connection has ended, but its owner did not close it."""


@final
class Wire:
    __slots__ = (
        "_loop",
        "decoder",
        "dialing",
        "interest",
        "on_bytes",
        "out",
        "owner",
        "reads",
        "sealed",
        "sock",
        "stack",
    )

    def __init__(
        self,
        loop: "ClientLoop",
        owner: WireOwner,
        sock: socket,
        version: int,
        stack: Stack | None = None,
    ) -> None:
        self._loop = loop
        self.reads = True
        """False if received bytes stay in the socket; see `hold` and `read`."""
        self.owner = owner
        self.sock = sock
        self.decoder = PacketDecoder(PACKET_BYTES_MAX, version, "client")
        self.on_bytes: Callable[[bytes, float], None] | None = None
        """Takes the bytes as read, instead of the owner's packets."""
        self.dialing = True
        self.interest = WRITE
        self.out = bytearray()
        self.stack = stack
        """The layers below MQTT, or None for plain TCP."""
        self.sealed = bytearray()
        """Bytes for the socket that the layers have made of `out`."""

    def write(self, data: bytes | bytearray) -> None:
        """Send at the end of the turn."""
        if not self.out:
            self._loop.dirty.append(self)
        self.out += data

    def hold(self) -> None:
        """Read no more unless `read` is called."""
        self.reads = False
        self._loop.watch(self)

    def release(self) -> None:
        self.reads = True
        self._loop.watch(self)

    def read(self, size_bytes: int) -> None:
        """Read at most `size_bytes` from the socket, whether or not reading is on hold."""
        if self.sock.fileno() >= 0 and not self.dialing:
            self._loop.read(self, size_bytes)

    def close(self) -> None:
        """Close the connection; try once to send the bytes that were written and not sent."""
        self._loop.close(self)


@final
class ClientLoop:
    def __init__(
        self,
        target: Target,
        clock: Callable[[], float],
        places: Sequence[tuple[str | int | bytes, ...]] = (),
    ) -> None:
        """Connections go to `places` in turn, if any are given, else to the target's address."""
        self.target = target
        self._places = cycle(places or [target.address])
        self.clock = clock
        self.layer_fault = ""
        """Why the last connection failed below MQTT."""
        self._context = target.access.context()
        self._place = Address(Scheme.MQTT, target.host, target.port).place
        self._is_plain = target.access.scheme is Scheme.MQTT
        self.dirty: list[Wire] = []
        self._epoll = select.epoll()
        self._wires: dict[int, Wire] = {}
        self._timers: list[tuple[float, int, Callable[[float], None]]] = []
        self._sequence = count()
        self.turn_max_s = 0.0
        """Duration of the longest turn; this loop may have seen a packet late by as much."""

    def call_at(self, at_s: float, callback: Callable[[float], None]) -> None:
        """Call `callback(now_s)` once it is `at_s`; in order of instants, then of calling this."""
        heapq.heappush(self._timers, (at_s, next(self._sequence), callback))

    def dial(self, owner: WireOwner, now_s: float) -> Wire | None:
        """Start to connect; `owner.opened` or `owner.closed` follows. Return None if that failed at
        once."""
        try:
            sock = socket(self.target.family, SOCK_STREAM)
        except OSError:
            self.call_at(now_s, lambda now_s: owner.closed(Fate.LOCAL, now_s))
            return None
        sock.setblocking(False)
        error = sock.connect_ex(next(self._places))
        if error not in (0, errno.EINPROGRESS):
            sock.close()
            fate = _fate(error)
            self.call_at(now_s, lambda now_s: owner.closed(fate, now_s))
            return None
        target, stack = self.target, None
        if not self._is_plain:
            stack = make_stack(target.access, self._context, target.host, self._place)
        wire = Wire(self, owner, sock, target.version, stack)
        self._wires[sock.fileno()] = wire
        self._epoll.register(sock.fileno(), WRITE)
        return wire

    # --- the loop ----------------------------------------------------------------------------

    async def run(self, finished: Callable[[float], bool]) -> None:
        """Work until `finished(now_s)`, which is called at least every 50 ms. Do one turn at least,
        however late it begins."""
        await trio.lowlevel.checkpoint()
        now_s = yielded_s = self.clock()
        while True:
            worked = self._turn(now_s)
            began_s, now_s = now_s, self.clock()
            self.turn_max_s = max(self.turn_max_s, now_s - began_s)
            if finished(now_s):
                return
            if not worked:
                with trio.move_on_after(self._idle_s(now_s)):
                    await trio.lowlevel.wait_readable(self._epoll)
                now_s = yielded_s = self.clock()
            elif now_s - yielded_s > SLICE_S:
                await trio.lowlevel.checkpoint()
                now_s = yielded_s = self.clock()

    def _idle_s(self, now_s: float) -> float:
        if not self._timers:
            return IDLE_S
        return min(IDLE_S, max(0.0, self._timers[0][0] - now_s))

    def _turn(self, now_s: float) -> bool:
        events = self._epoll.poll(0, EVENTS_MAX)
        for fd, event in events:
            wire = self._wires.get(fd)
            if wire is None:
                continue
            if wire.dialing:
                self._opened(wire, now_s)
            elif event & WRITE:
                self._flush(wire)
            if event & ~WRITE and wire.sock.fileno() >= 0 and not wire.dialing:
                self.read(wire, READ_BYTES)
        due = 0
        while self._timers and self._timers[0][0] <= now_s and due < DUE_MAX:
            heapq.heappop(self._timers)[2](now_s)
            due += 1
        while self.dirty:
            dirty, self.dirty = self.dirty, []
            for wire in dirty:
                if wire.interest & WRITE == 0:
                    self._flush(wire)
        return bool(events or due)

    def _opened(self, wire: Wire, now_s: float) -> None:
        error = wire.sock.getsockopt(SOL_SOCKET, SO_ERROR)
        if error:
            self._lost(wire, _fate(error))
            return
        wire.dialing = False
        self.watch(wire)
        if wire.stack is None:
            wire.owner.opened(now_s)
        else:
            wire.stack.begin()
            self.dirty.append(wire)

    def read(self, wire: Wire, size_bytes: int) -> None:
        """Read once, at most `size_bytes`, and process the packets that are complete then."""
        try:
            data = wire.sock.recv(size_bytes, MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            self._lost(wire, Fate.RESET)
            return
        if not data:
            self._lost(wire, Fate.CLOSED)
            return
        now_s = self.clock()
        if wire.stack is not None:
            self._unseal(wire, wire.stack, data, now_s)
        else:
            self._take(wire, data, now_s)

    def _take(self, wire: Wire, data: bytes, now_s: float) -> None:
        """Process the packets in these bytes of MQTT."""
        if wire.on_bytes is not None:
            wire.on_bytes(data, now_s)
            return
        try:
            wire.decoder.feed(data)
            while (packet := wire.decoder.next()) is not None:
                wire.owner.receive(packet, now_s)
                if wire.sock.fileno() < 0:
                    return
        except PeerError:
            self._lost(wire, Fate.BROKEN)

    def _unseal(self, wire: Wire, stack: Stack, data: bytes, now_s: float) -> None:
        was_open = stack.is_open
        try:
            data = stack.feed(data)
        except LayerError as error:
            self.layer_fault = str(error)
            self._lost(wire, Fate.TLS if error.is_tls else Fate.WEBSOCKET)
            return
        if stack.is_open and not was_open:
            wire.owner.opened(now_s)
        self.dirty.append(wire)  # A layer may have to answer.
        if data:
            self._take(wire, data, now_s)

    def _flush(self, wire: Wire) -> None:
        if wire.sock.fileno() < 0:
            return
        if out := _sendable(wire):
            try:
                size = wire.sock.send(out, FLAGS)
            except BlockingIOError:
                size = 0
            except OSError:
                return  # The broker's last bytes come first; its reset is read after them.
            del out[:size]
        self.watch(wire)

    def watch(self, wire: Wire) -> None:
        """Watch the events that the connection needs now: readable or writable."""
        if wire.dialing or wire.sock.fileno() < 0:
            return
        interest = (READ if wire.reads else 0) | (WRITE if wire.out or wire.sealed else 0)
        if interest != wire.interest:
            self._epoll.modify(wire.sock.fileno(), interest)
            wire.interest = interest

    # --- ends --------------------------------------------------------------------------------

    def _lost(self, wire: Wire, fate: Fate) -> None:
        wire.out.clear()
        wire.sealed.clear()
        self.close(wire)
        wire.owner.closed(fate, self.clock())

    def close(self, wire: Wire) -> None:
        fd = wire.sock.fileno()
        if fd < 0:
            return
        if wire.out and not wire.dialing:
            try:
                wire.sock.send(_sendable(wire), FLAGS)
            except OSError:
                pass
        del self._wires[fd]
        wire.sock.close()  # which also takes it out of the epoll set

    def close_all(self) -> None:
        for wire in list(self._wires.values()):
            self.close(wire)
        self._timers.clear()
        self._epoll.close()


def _sendable(wire: Wire) -> bytearray:
    """Return the bytes that the socket has to send next."""
    if wire.stack is None:
        return wire.out
    if not wire.sealed:
        wire.sealed += wire.stack.seal(bytes(wire.out))
        wire.out.clear()
    return wire.sealed


def _fate(error: int) -> Fate:
    if error in LOCAL:
        return Fate.LOCAL
    return Fate.RESET if error == errno.ECONNRESET else Fate.UNREACHABLE
