"""A crowd of clients that all connect at once: raw sockets, one epoll loop, one thread."""

import errno
import random
import select
import socket
import time
from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush

from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connect
from flowguard.types import MQTT_5, Properties, ReasonCode

RETRY_S = (0.05, 0.5)
ANSWER_BYTES_MAX = 1_024


@dataclass
class Outcome:
    """The result of a crowd."""

    connected: int = 0
    refused: Counter[int] = field(default_factory=Counter)
    """CONNACKs with an error, by reason code; each is followed by another attempt."""
    accidents: Counter[str] = field(default_factory=Counter)
    """Events that must never happen: a reset, an end without an answer, a second answer."""
    waiting: int = 0
    """Clients without an answer when time was up."""


@dataclass(eq=False)
class Attempt:
    """One connection of one client of the crowd."""

    number: int
    sock: socket.socket
    data: bytes = b""
    sent: bool = False


class Storm:
    """`run()` connects `count` clients, keeps them, and returns the outcome."""

    def __init__(self, address: tuple[str, int], count: int, *, expiry_s: int, seed: int) -> None:
        self._address = address
        self._count = count
        self._expiry_s = expiry_s
        self._random = random.Random(seed)
        self._epoll = select.epoll()
        self._attempts: dict[int, Attempt] = {}
        self._retries: list[tuple[float, int]] = []
        self._kept: list[socket.socket] = []
        self.outcome = Outcome()

    def run(self, time_limit_s: float) -> Outcome:
        """Run until all clients are connected, or `time_limit_s` has passed."""
        until_s = time.monotonic() + time_limit_s
        for number in range(self._count):
            self._start(number)
        while (self._attempts or self._retries) and time.monotonic() < until_s:
            while self._retries and self._retries[0][0] <= time.monotonic():
                self._start(heappop(self._retries)[1])
            for fd, event in self._epoll.poll(0.05):
                self._on_event(self._attempts[fd], event)
        self.outcome.waiting = len(self._attempts)
        return self.outcome

    def close(self) -> None:
        """Everybody leaves."""
        for attempt in self._attempts.values():
            attempt.sock.close()
        for sock in self._kept:
            sock.close()
        self._epoll.close()

    def _start(self, number: int) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        code = sock.connect_ex(self._address)
        assert code in (0, errno.EINPROGRESS), errno.errorcode[code]
        self._attempts[sock.fileno()] = Attempt(number, sock)
        self._epoll.register(sock.fileno(), select.EPOLLOUT)

    def _on_event(self, attempt: Attempt, event: int) -> None:
        fd = attempt.sock.fileno()
        try:
            if not attempt.sent:
                code = attempt.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    raise OSError(code, errno.errorcode[code])
                properties = Properties(session_expiry_interval=self._expiry_s)
                packet = Connect(f"storm-{attempt.number}", properties=properties)
                attempt.sock.send(encode(packet, MQTT_5))
                attempt.sent = True
                self._epoll.modify(fd, select.EPOLLIN)
                return
            data = attempt.sock.recv(ANSWER_BYTES_MAX)
        except OSError as error:
            self._over(attempt, str(error))
            return
        if data:
            attempt.data += data
            self._on_answer(attempt)
        else:
            self._on_end(attempt)

    def _on_answer(self, attempt: Attempt) -> None:
        """CONNACK: 0x20, length, flags, reason code."""
        if len(attempt.data) >= 4 and attempt.data[3] == ReasonCode.SUCCESS:
            self.outcome.connected += 1
            self._forget(attempt)
            self._kept.append(attempt.sock)

    def _on_end(self, attempt: Attempt) -> None:
        if len(attempt.data) < 4 or attempt.data[0] != 0x20:
            self._over(attempt, "ended without an answer")
            return
        self.outcome.refused[attempt.data[3]] += 1
        self._forget(attempt)
        attempt.sock.close()
        delay_s = self._random.uniform(*RETRY_S)
        heappush(self._retries, (time.monotonic() + delay_s, attempt.number))

    def _over(self, attempt: Attempt, accident: str) -> None:
        self.outcome.accidents[accident] += 1
        self._forget(attempt)
        attempt.sock.close()

    def _forget(self, attempt: Attempt) -> None:
        fd = attempt.sock.fileno()
        self._epoll.unregister(fd)
        del self._attempts[fd]
