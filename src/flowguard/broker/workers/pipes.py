"""Pipes: clients of TLS and WebSocket that another worker serves.

The layer of such a client stays here, because its state is in this process. The bytes pass through
a pair of sockets to the worker that owns the session. Each direction keeps what one read brought;
until that is sent, nothing more is read.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from select import EPOLLIN, EPOLLOUT
from socket import SHUT_WR, socket
from typing import Final, final

from flowguard.broker.layers.layer import FLAGS, Layer
from flowguard.broker.sockets.reactor import Reactor
from flowguard.broker.sockets.socket_set import LINGER_S

READ_BYTES: Final = 32 * 1024
SOCKETS: Final = 2
"""Sockets of a pipe in this process."""


@final
class Pipe:
    """The stream of a client, and the socket of the pair whose other end a worker has."""

    __slots__ = ("client", "from_client", "from_worker", "has_left", "is_over", "worker")

    def __init__(self, client: Layer, worker: socket) -> None:
        self.client = client
        self.worker = worker
        self.from_client = b""
        """Bytes that the worker has not taken."""
        self.from_worker = b""
        """Bytes that the client has not taken."""
        self.has_left = False
        """True once the client has ended its stream."""
        self.is_over = False
        """True once the worker has ended its stream."""


@final
class Pipes:
    def __init__(self, reactor: Reactor, clock: Callable[[], float]) -> None:
        self._sockets = reactor.sockets
        self._clock = clock
        self._open: set[Pipe] = set()
        self._lingering: deque[tuple[float, Pipe]] = deque()

    def add(self, client: Layer, worker: socket) -> None:
        """Pass on the bytes of a client after its link was released."""
        worker.setblocking(False)
        pipe = Pipe(client, worker)
        self._open.add(pipe)
        self._sockets.listeners.piped += SOCKETS
        try:
            self._sockets.others.watch(client.fileno(), EPOLLIN, partial(self._move, pipe, True))
            self._sockets.others.watch(worker.fileno(), EPOLLIN, partial(self._move, pipe, False))
        except OSError:  # The kernel has no memory for another watch.
            self._close(pipe)
            return
        self._move(pipe, False)  # The layer may have an answer to send.

    def tick(self, now_s: float) -> None:
        """Close the pipes whose client has not taken the last bytes in time."""
        while self._lingering and self._lingering[0][0] <= now_s:
            self._close(self._lingering.popleft()[1])

    def _move(self, pipe: Pipe, is_client: bool) -> None:
        """The client's socket is ready, or the worker's: move what can be moved."""
        if pipe not in self._open:
            return
        try:
            self._to_worker(pipe, reads=is_client)
            self._to_client(pipe, reads=not is_client)
            self._watch(pipe, is_flushed=pipe.client.flush())
        except Exception:  # A socket has failed, or the layer, which has logged it.
            self._close(pipe)

    def _to_worker(self, pipe: Pipe, *, reads: bool) -> None:
        try:
            if reads and not pipe.from_client and not pipe.has_left:
                pipe.from_client = pipe.client.recv(READ_BYTES, FLAGS)
                if not pipe.from_client:
                    pipe.has_left = True
                    pipe.worker.shutdown(SHUT_WR)
            if pipe.from_client:
                sent_bytes = pipe.worker.send(pipe.from_client, FLAGS)
                pipe.from_client = pipe.from_client[sent_bytes:]
        except BlockingIOError:
            pass

    def _to_client(self, pipe: Pipe, *, reads: bool) -> None:
        try:
            if reads and not pipe.from_worker and not pipe.is_over and pipe.client.flush():
                pipe.from_worker = pipe.worker.recv(READ_BYTES, FLAGS)
                if not pipe.from_worker:
                    pipe.is_over = True
                    self._lingering.append((self._clock() + LINGER_S, pipe))
                    pipe.client.shutdown(SHUT_WR)
            if pipe.from_worker:
                sent_bytes = pipe.client.send(pipe.from_worker, FLAGS)
                pipe.from_worker = pipe.from_worker[sent_bytes:]
        except BlockingIOError:
            pass

    def _watch(self, pipe: Pipe, *, is_flushed: bool) -> None:
        if pipe.has_left and pipe.is_over:
            self._close(pipe)
            return
        of_client = 0 if pipe.from_client or pipe.has_left else EPOLLIN
        of_worker = 0 if pipe.from_worker or pipe.is_over or not is_flushed else EPOLLIN
        if pipe.from_worker or not is_flushed:
            of_client |= EPOLLOUT
        if pipe.from_client:
            of_worker |= EPOLLOUT
        self._sockets.others.rewatch(pipe.client.fileno(), of_client)
        self._sockets.others.rewatch(pipe.worker.fileno(), of_worker)

    def _close(self, pipe: Pipe) -> None:
        if pipe not in self._open:
            return
        self._open.remove(pipe)
        self._sockets.listeners.piped -= SOCKETS
        for stream in (pipe.client, pipe.worker):
            self._sockets.others.unwatch(stream.fileno())
            stream.close()
