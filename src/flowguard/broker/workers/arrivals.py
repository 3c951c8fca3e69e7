"""Arrivals: clients that a worker of another node has accepted, and passes on over TCP.

Such a connection begins with a frame as `fd_frames` has it, without a descriptor: what the other
worker knows of its client, and the first bytes of the client. All bytes after it are those of the
client, in both directions. The other worker moves them (`pipes`).
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from select import EPOLLIN
from socket import socket
from typing import Any, Final, final

from flowguard.broker.layers.layer import FLAGS, Layer
from flowguard.broker.layers.proxied import ProxiedStream
from flowguard.broker.sockets.other_sockets import OtherSockets
from flowguard.broker.workers.fd_frames import READ_BYTES, SIZES
from flowguard.broker.workers.worker_ports import WorkerPorts, WorkerStream

ARRIVALS_MAX: Final = 256
"""Maximum number of connections whose frame is incomplete."""
ARRIVAL_S: Final = 5.0
"""Maximum time for a frame, seconds."""

Take = Callable[[socket, Layer, Mapping[str, Any], bytes], None]
"""Takes a socket, the layer above it, what is known of its client, and the bytes that the client
has sent. Raises LookupError, TypeError or ValueError if a value is missing or wrong."""


@final
class IncompleteArrival:
    """A connection whose frame is incomplete."""

    __slots__ = ("known", "received", "since_s", "stream")

    def __init__(self, known: ProxiedStream, stream: WorkerStream, since_s: float) -> None:
        self.known = known
        """The client, below TLS."""
        self.stream = stream
        self.since_s = since_s
        self.received = bytearray()

    def introduce(self, head: Mapping[str, Any]) -> Layer:
        """Return the layer of the client. Raises as `Take`."""
        identity = head.get("identity")
        self.known.introduce(head.get("peer"), identity)
        if self.stream.layer is None:
            return self.known
        self.stream.layer.identity = identity  # Not that of the node.
        return self.stream.layer


@final
class Arrivals:
    def __init__(
        self,
        others: OtherSockets,
        ports: WorkerPorts,
        bytes_max: int,
        take: Take,
        clock: Callable[[], float],
    ) -> None:
        """`bytes_max` is the maximum size of a frame."""
        self._others = others
        self._ports = ports
        self._bytes_max = bytes_max
        self._take = take
        self._clock = clock
        self._incomplete: dict[socket, IncompleteArrival] = {}
        """The connections whose frame is incomplete, oldest first."""

    def accept(self, sock: socket) -> None:
        """Begin to read the frame of a connection. Raises OSError."""
        if len(self._incomplete) >= ARRIVALS_MAX:
            oldest = next(iter(self._incomplete.values()))
            self._reject(oldest, "too many connections without a client")
        known = ProxiedStream.handed_over(sock)
        stream = self._ports.accepted(sock, known)
        arrival = IncompleteArrival(known, stream, self._clock())
        self._others.watch(sock.fileno(), EPOLLIN, partial(self._receive, arrival))
        self._incomplete[sock] = arrival

    def tick(self, now_s: float) -> None:
        """Close the connections whose frame takes too long."""
        for arrival in list(self._incomplete.values()):
            if now_s - arrival.since_s <= ARRIVAL_S:
                break
            self._reject(arrival, "no client of a worker in time")

    def _receive(self, arrival: IncompleteArrival) -> None:
        if arrival.stream.sock not in self._incomplete:
            return
        received = arrival.received
        try:
            data = arrival.stream.stream.recv(READ_BYTES, FLAGS)
        except BlockingIOError:
            self._answer(arrival)
            return
        except OSError:
            self._close(arrival)
            return
        if not data:
            self._close(arrival)
            return
        received += data
        try:
            head_bytes, data_bytes = (
                SIZES.unpack_from(received) if len(received) >= SIZES.size else (0, 0)
            )
            if head_bytes + data_bytes > self._bytes_max:
                raise ValueError("too many bytes")
            start = SIZES.size + head_bytes
            if not head_bytes or len(received) < start + data_bytes:
                return
            head = json.loads(received[SIZES.size : start])
            self._forget(arrival)
            sock = arrival.stream.sock
            self._take(sock, arrival.introduce(head), head, bytes(received[start:]))
        except (LookupError, TypeError, ValueError):  # It lacks what a node sends.
            self._reject(arrival, "its first bytes are no client of a worker", bytes(received[:2]))

    def _answer(self, arrival: IncompleteArrival) -> None:
        """Send the next part of a handshake."""
        try:
            interest = EPOLLIN | arrival.stream.write_interest(has_unsent=False)
        except OSError:
            self._close(arrival)
            return
        self._others.rewatch(arrival.stream.sock.fileno(), interest)

    def _reject(self, arrival: IncompleteArrival, why: str, data: bytes = b"") -> None:
        self._ports.reject(arrival.stream, why, data)
        self._close(arrival)

    def _close(self, arrival: IncompleteArrival) -> None:
        self._forget(arrival)
        arrival.stream.sock.close()

    def _forget(self, arrival: IncompleteArrival) -> None:
        self._incomplete.pop(arrival.stream.sock, None)
        self._others.unwatch(arrival.stream.sock.fileno())
