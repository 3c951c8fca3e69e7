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

import structlog

from flowguard.broker.layers.layer import FLAGS
from flowguard.broker.sockets.other_sockets import OtherSockets
from flowguard.broker.workers.fd_frames import READ_BYTES, SIZES
from flowguard.broker.workers.worker_addresses import lose_silent

ARRIVALS_MAX: Final = 4_096
"""Maximum number of connections whose frame is incomplete."""
ARRIVAL_S: Final = 5.0
"""Maximum time for a frame, seconds."""

log = structlog.get_logger()

Take = Callable[[socket, Mapping[str, Any], bytes], None]
"""Takes a socket, what is known of its client, and the bytes that the client has sent. Raises
LookupError, TypeError or ValueError if a value is missing or wrong."""


@final
class Arrivals:
    def __init__(
        self, others: OtherSockets, bytes_max: int, take: Take, clock: Callable[[], float]
    ) -> None:
        """`bytes_max` is the maximum size of a frame."""
        self._others = others
        self._bytes_max = bytes_max
        self._take = take
        self._clock = clock
        self._rejected_count = 0
        """Number of connections since the last tick that were not a node's."""
        self._incomplete: dict[socket, tuple[float, bytearray]] = {}
        """The time of arrival and the first bytes of each, oldest first."""

    def accept(self, sock: socket) -> None:
        """Begin to read the frame of a connection. Raises OSError."""
        if len(self._incomplete) >= ARRIVALS_MAX:
            self._close(next(iter(self._incomplete)))
        lose_silent(sock)
        self._others.watch(sock.fileno(), EPOLLIN, partial(self._receive, sock))
        self._incomplete[sock] = (self._clock(), bytearray())

    def tick(self, now_s: float) -> None:
        """Close the connections whose frame takes too long; log what was rejected."""
        late = [sock for sock, (at_s, _) in self._incomplete.items() if now_s - at_s > ARRIVAL_S]
        for sock in late:
            self._close(sock)
        if self._rejected_count:
            log.warning("connections to a cluster port closed", count=self._rejected_count)
            self._rejected_count = 0

    def _receive(self, sock: socket) -> None:
        if sock not in self._incomplete:
            return
        received = self._incomplete[sock][1]
        try:
            data = sock.recv(READ_BYTES, FLAGS)
            received += data
            head_bytes, data_bytes = (
                SIZES.unpack_from(received) if len(received) >= SIZES.size else (0, 0)
            )
            if not data or head_bytes + data_bytes > self._bytes_max:
                raise ValueError("no frame of a node")
            start = SIZES.size + head_bytes
            if not head_bytes or len(received) < start + data_bytes:
                return
            head = json.loads(received[SIZES.size : start])
        except BlockingIOError:
            return
        except (OSError, ValueError):
            self._close(sock)
            return
        del self._incomplete[sock]
        self._others.unwatch(sock.fileno())
        try:
            self._take(sock, head, bytes(received[start:]))
        except (LookupError, TypeError, ValueError):  # It lacks what a node sends.
            self._rejected_count += 1
            sock.close()

    def _close(self, sock: socket) -> None:
        self._rejected_count += 1
        del self._incomplete[sock]
        self._others.unwatch(sock.fileno())
        sock.close()
