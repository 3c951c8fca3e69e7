"""Ports between workers: how a worker reaches the others for one purpose, and is reached.

On this machine the connections are Unix sockets. Between nodes they are TCP, with TLS if the nodes
have certificates.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from select import EPOLLOUT
from socket import socket
from typing import Final, final

import structlog

from flowguard.broker.layers.layer import ByteStream
from flowguard.broker.layers.tls import TlsStream
from flowguard.broker.workers.node_tls import NodeTls
from flowguard.broker.workers.worker_addresses import (
    NodeAddress,
    WorkerAddress,
    connect,
    lose_silent,
)
from flowguard.node.connect.accept_state import LayerFault

QUIET_S: Final = 10.0
"""Minimum time between two lines of the log about one kind of failure, seconds."""
REST_S: Final = 1.0
"""Time until a node whose TLS or hello has failed is dialled again, seconds."""
TLS_STARTS: Final = (b"\x16\x03", b"\x15\x03")
"""First bytes of a ClientHello, and of an alert."""
ONE_HAS_TLS: Final = (
    "one end speaks TLS and the other one does not: set cluster.cert, cluster.key and cluster.ca "
    "on all nodes, or on none"
)

log = structlog.get_logger()


@final
class WorkerStream:
    """A connection with another worker: a socket, with TLS on it or without."""

    __slots__ = ("layer", "sock", "stream")

    def __init__(self, sock: socket, layer: TlsStream | None = None) -> None:
        self.sock = sock
        self.layer = layer
        self.stream: ByteStream = sock if layer is None else layer

    def flushed(self) -> bool:
        """Send what TLS has left; return False if some is left. Raises OSError."""
        return self.layer is None or self.layer.flush()

    def write_interest(self, *, has_unsent: bool) -> int:
        """Return EPOLLOUT if bytes can be sent as soon as the socket takes more, otherwise 0.

        Raises OSError.
        """
        if self.layer is not None:
            has_unsent = not self.layer.flush() or (has_unsent and self.layer.established)
        return EPOLLOUT if has_unsent else 0


@final
class Failures:
    """Failures of one kind that are not in the log yet."""

    __slots__ = ("address", "count", "quiet_until_s", "why")

    def __init__(self) -> None:
        self.count = 0
        self.quiet_until_s = 0.0
        self.address = self.why = ""
        """The other end, and the reason, of the last one."""

    def note(self, address: object, why: str) -> None:
        self.count += 1
        self.address = ":".join(map(str, address[:2])) if isinstance(address, tuple) else ""
        self.why = why

    def due(self, now_s: float) -> int:
        """Return their number if a line may be written now, and begin again; otherwise 0."""
        if not self.count or now_s < self.quiet_until_s:
            return 0
        count, self.count = self.count, 0
        self.quiet_until_s = now_s + QUIET_S
        return count


@final
class WorkerPorts:
    def __init__(
        self,
        addresses: Mapping[str, WorkerAddress],
        listeners: Sequence[socket],
        tls: NodeTls | None = None,
    ) -> None:
        """`addresses` has the address of each other worker, which may change. The first of
        `listeners` is a Unix socket; one for workers of other nodes may follow."""
        self.addresses = addresses
        self.listeners = listeners
        self._tls = tls
        self.failed: set[WorkerAddress] = set()
        """Addresses of nodes that have just failed, not to be dialled for some time."""
        self._retry_s = 0.0
        """Time until which they rest."""
        self._rejections = Failures()
        self._failures = Failures()

    def dial(self, address: WorkerAddress) -> WorkerStream | None:
        """Return a connection that is open or will be, or None if there is no listener now.

        Until it is open, it takes and gives no bytes (BlockingIOError).
        """
        sock = connect(address)
        if sock is None or self._tls is None or not isinstance(address, NodeAddress):
            return None if sock is None else WorkerStream(sock)
        try:
            on_fault = partial(self._dial_failed, address)
            return WorkerStream(sock, self._tls.connect(sock, address.name, on_fault))
        except OSError:
            sock.close()
            return None

    def accepted(self, sock: socket, stream: ByteStream | None = None) -> WorkerStream:
        """Return an accepted connection from another node; TLS is on `stream`. Raises OSError."""
        lose_silent(sock)
        if self._tls is None:
            return WorkerStream(sock)
        return WorkerStream(sock, self._tls.accept(stream or sock, self._accept_failed))

    def reject(self, stream: WorkerStream, why: str, data: bytes = b"") -> None:
        """Note that an accepted connection is closed; `data` are its first bytes."""
        self._accept_failed(LayerFault.BROKEN, stream.sock, _reason(data, why))

    def fail(self, address: NodeAddress, why: str, data: bytes = b"") -> None:
        """Note that a connection to another node has failed; `data` are its first bytes."""
        self.failed.add(address)
        self._failures.note((address.name, address.port), _reason(data, why))

    def tick(self, now_s: float) -> None:
        """Log what has failed, and let it be tried again."""
        if now_s >= self._retry_s:
            self.failed.clear()
            self._retry_s = now_s + REST_S
        rejected, failed = self._rejections, self._failures
        if count := rejected.due(now_s):
            log.warning(
                "connections to a cluster port closed",
                count=count,
                address=rejected.address,
                why=rejected.why,
            )
        if count := failed.due(now_s):
            log.warning(
                "connections to another node failed",
                count=count,
                address=failed.address,
                why=failed.why,
            )

    def _accept_failed(self, fault: LayerFault, stream: object, why: str) -> None:
        assert isinstance(stream, (socket, TlsStream))
        try:
            address = stream.getpeername()
        except OSError:  # It has left.
            address = None
        self._rejections.note(address, ONE_HAS_TLS if fault is LayerFault.NOT_TLS else why)

    def _dial_failed(self, address: NodeAddress, fault: LayerFault, _: object, why: str) -> None:
        if fault is LayerFault.ALERT:
            why = f"{why.partition(',')[0]}: it does not accept cluster.cert of this node"
        elif fault is LayerFault.CERTIFICATE:
            why = f"{why}; its certificate must name {address.name}, and cluster.ca must sign it"
        elif fault in (LayerFault.LEFT, LayerFault.NOT_TLS):
            why = ONE_HAS_TLS
        self.fail(address, why)


def _reason(data: bytes, why: str) -> str:
    return ONE_HAS_TLS if data[:2] in TLS_STARTS else why
