"""Wires: the load's sockets and timers, in one thread and without a framework.

The broker is what is measured, so the load must be much faster: bytes are prepared,
answers are counted rather than decoded, and a turn is one `epoll`.
"""

import heapq
import select
import time
from collections.abc import Callable
from itertools import count
from socket import AF_INET, IPPROTO_TCP, SOCK_NONBLOCK, SOCK_STREAM, TCP_NODELAY, socket
from typing import Any, Final, Protocol, final

from simulations.calibration.process import CalibrationError

READ_BYTES: Final = 256 * 1024
EVENTS_MAX: Final = 256
DUE_MAX: Final = 64
"""Timers run in one turn, so that dialling does not delay the handling of answers."""
READ: Final = select.EPOLLIN
WRITE: Final = select.EPOLLOUT


class Owner(Protocol):
    """The owner of a socket."""

    def ready(self, now_s: float) -> None:
        """The socket can be read or written, or has ended."""


@final
class Wires:
    """Every socket of one load; times are monotonic, seconds."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self._epoll = select.epoll()
        self._owners: dict[int, tuple[socket, Owner]] = {}
        self._timers: list[tuple[float, int, Callable[[Any, float], None], Any]] = []
        self._sequence = count()

    @property
    def now_s(self) -> float:
        """The monotonic time."""
        return time.monotonic()

    @property
    def cpu_s(self) -> float:
        """CPU time of this process since its start."""
        return time.process_time()

    def at(self, when_s: float, action: Callable[[Any, float], None], argument: object) -> None:
        """Call `action(argument, now_s)` at `when_s` or soon after."""
        heapq.heappush(self._timers, (when_s, next(self._sequence), action, argument))

    def dial(self) -> tuple[socket, int]:
        """A socket on its way to the broker, and the result of `connect_ex`."""
        sock = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK)
        sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        return sock, sock.connect_ex(self.address)

    def watch(self, sock: socket, owner: Owner, interest: int = READ) -> None:
        """Call `owner.ready` when the socket is ready; call again to change owner or interest."""
        fd = sock.fileno()
        if fd in self._owners:
            self._epoll.modify(fd, interest)
        else:
            self._epoll.register(fd, interest)
        self._owners[fd] = (sock, owner)

    def close(self, sock: socket) -> None:
        """Close it; safe to repeat."""
        if sock.fileno() >= 0:
            self._owners.pop(sock.fileno(), None)
            sock.close()

    def run(self, until: Callable[[], bool], at_most_s: float, what: str) -> None:
        """Work until `until()`; raises CalibrationError with `what` after `at_most_s`."""
        end_s = self.now_s + at_most_s
        while not until():
            now_s = self.now_s
            if now_s > end_s:
                raise CalibrationError(f"{what}: not done after {at_most_s:g} s")
            self._turn(min(end_s - now_s, 0.1))

    def run_for(self, seconds: float) -> None:
        """Work for that long."""
        end_s = self.now_s + seconds
        while (left_s := end_s - self.now_s) > 0:
            self._turn(min(left_s, 0.1))

    def _turn(self, wait_s: float) -> None:
        timers = self._timers
        if timers:
            wait_s = min(wait_s, max(0.0, timers[0][0] - self.now_s))
        owners = self._owners
        for fd, _ in self._epoll.poll(wait_s, EVENTS_MAX):
            watched = owners.get(fd)
            if watched is not None:
                watched[1].ready(self.now_s)
        for _ in range(DUE_MAX):
            now_s = self.now_s
            if not timers or timers[0][0] > now_s:
                break
            _, _, action, argument = heapq.heappop(timers)
            action(argument, now_s)

    def close_all(self) -> None:
        """Close every socket; the load may go on with others."""
        for sock, _ in self._owners.values():
            sock.close()
        self._owners.clear()
        self._timers.clear()
