"""Pipes: clients of TLS and WebSocket that another worker serves, and all clients of other nodes.

The layer of such a client stays here, because its state is in this process. The bytes pass through
a pair of sockets to the worker that owns the session, or over TCP to another node. Each direction
keeps what one read brought; until that is sent, nothing more is read.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from select import EPOLLIN, EPOLLOUT, EPOLLRDHUP
from socket import SHUT_WR
from typing import Final, final

from flowguard.broker.layers.layer import FLAGS, Layer
from flowguard.broker.layers.layer_gate import has_left
from flowguard.broker.sockets.reactor import Reactor
from flowguard.broker.sockets.socket_set import LINGER_S
from flowguard.broker.workers.worker_ports import WorkerStream
from flowguard.node.connect.accept_state import Door

READ_BYTES: Final = 32 * 1024


@final
class Pipe:
    """The stream of a client, and the socket of the pair whose other end a worker has."""

    __slots__ = ("client", "from_client", "from_worker", "has_left", "is_over", "lingers", "worker")

    def __init__(self, client: Layer, worker: WorkerStream) -> None:
        self.client = client
        self.worker = worker
        self.from_client = b""
        """Bytes that the worker has not taken."""
        self.from_worker = b""
        """Bytes that the client has not taken."""
        self.has_left = False
        """True once the client has ended its stream."""
        self.is_over = False
        """True once the stream of the worker was read to its end."""
        self.lingers = False
        """True once the worker has ended its stream: the client gets the rest, for some time."""


@final
class Pipes:
    def __init__(self, reactor: Reactor, clock: Callable[[], float], counts: Door) -> None:
        """`counts` gets the number of pipes and of their bytes."""
        self._sockets = reactor.sockets
        self._counts = counts
        self._clock = clock
        self._open: set[Pipe] = set()
        self._lingering: deque[tuple[float, Pipe]] = deque()

    def add(self, client: Layer, worker: WorkerStream, first: bytes = b"") -> None:
        """Pass on the bytes of a client after its link was released; `first` come before them."""
        worker.sock.setblocking(False)
        pipe = Pipe(client, worker)
        pipe.from_client = first
        self._open.add(pipe)
        self._sockets.listeners.pipes_count += 1
        self._counts.relayed_count += 1
        try:
            self._sockets.others.watch(client.fileno(), EPOLLIN, partial(self._move, pipe, True))
            self._sockets.others.watch(
                worker.sock.fileno(), EPOLLIN, partial(self._move, pipe, False)
            )
        except OSError:  # The kernel has no memory for another watch.
            self._close(pipe)
            return
        self._move(pipe, False)  # The layer may have an answer to send, and `first` goes.

    def part(self, count: int) -> None:
        """Close `count` pipes, because this worker ends before those at the other ends do."""
        for pipe in list(islice(self._open, count)):
            self._close(pipe)

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
            if reads and not pipe.from_client and not pipe.has_left and pipe.worker.flushed():
                pipe.from_client = pipe.client.recv(READ_BYTES, FLAGS)
                self._counts.relayed_bytes += len(pipe.from_client)
                if not pipe.from_client:
                    pipe.has_left = True
                    pipe.worker.sock.shutdown(SHUT_WR)
            if pipe.from_client:
                sent_bytes = pipe.worker.stream.send(pipe.from_client, FLAGS)
                pipe.from_client = pipe.from_client[sent_bytes:]
        except BlockingIOError:
            pass

    def _to_client(self, pipe: Pipe, *, reads: bool) -> None:
        try:
            if reads and not pipe.from_worker and not pipe.is_over and pipe.client.flush():
                pipe.from_worker = pipe.worker.stream.recv(READ_BYTES, FLAGS)
                self._counts.relayed_bytes += len(pipe.from_worker)
                if not pipe.from_worker:
                    pipe.is_over = True
                    self._linger(pipe, self._clock())
                    pipe.client.shutdown(SHUT_WR)
            if pipe.from_worker:
                sent_bytes = pipe.client.send(pipe.from_worker, FLAGS)
                pipe.from_worker = pipe.from_worker[sent_bytes:]
        except BlockingIOError:
            pass

    def _linger(self, pipe: Pipe, now_s: float) -> None:
        if not pipe.lingers:
            pipe.lingers = True
            self._lingering.append((now_s + LINGER_S, pipe))

    def _watch(self, pipe: Pipe, *, is_flushed: bool) -> None:
        if pipe.has_left and pipe.is_over:
            self._close(pipe)
            return
        is_taken = not pipe.from_client and pipe.worker.flushed()
        of_client = EPOLLIN if is_taken and not pipe.has_left else 0
        of_worker = 0 if pipe.is_over else EPOLLIN
        fd = pipe.worker.sock.fileno()
        if pipe.from_worker or not is_flushed:
            if not pipe.lingers and has_left(fd):
                self._linger(pipe, self._clock())
            of_client |= EPOLLOUT
            of_worker = 0 if pipe.lingers else EPOLLRDHUP
        of_worker |= pipe.worker.write_interest(has_unsent=bool(pipe.from_client))
        self._sockets.others.rewatch(pipe.client.fileno(), of_client)
        self._sockets.others.rewatch(fd, of_worker)

    def _close(self, pipe: Pipe) -> None:
        if pipe not in self._open:
            return
        self._open.remove(pipe)
        self._sockets.listeners.pipes_count -= 1
        self._counts.relayed_count -= 1
        for stream in (pipe.client, pipe.worker.sock):
            self._sockets.others.unwatch(stream.fileno())
            stream.close()
