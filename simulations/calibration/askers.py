"""Askers: clients that send something and wait for its answer: PINGREQ, SUBSCRIBE."""

from socket import socket
from statistics import median
from typing import Final, final

from flowguard.codec import PINGREQ_FRAME, Subscribe, encode
from flowguard.types import MQTT_5, SubscriptionOptions
from simulations.calibration.process import CalibrationError
from simulations.calibration.wires import READ_BYTES, Wires

PINGRESP_BYTES: Final = 2
SUBACK_BYTES: Final = 6


@final
class Asker:
    """Sends something and waits for an answer of fixed size, so many times."""

    __slots__ = (
        "_answer_bytes",
        "_asked_s",
        "_left",
        "_request",
        "_rest_bytes",
        "_sock",
        "_times_s",
        "_wires",
    )

    def __init__(self, wires: Wires, sock: socket, request: bytes, answer_bytes: int) -> None:
        self._wires = wires
        self._sock = sock
        self._request = request
        self._answer_bytes = answer_bytes
        self._rest_bytes = 0
        self._left = 0
        self._asked_s = 0.0
        self._times_s: list[float] = []
        wires.watch(sock, self)

    def ask(self, count: int) -> None:
        """Ask so many times, one after the other."""
        self._left = count
        self._ask()

    def _ask(self) -> None:
        self._asked_s = self._wires.now_s
        self._sock.send(self._request)

    def median_s(self) -> float:
        """Median time from a request to its answer."""
        return median(self._times_s)

    @property
    def is_idle(self) -> bool:
        """Whether all requests are answered."""
        return not self._left

    def ready(self, now_s: float) -> None:
        """Read the answer, or a part of it."""
        data = self._sock.recv(READ_BYTES)
        if not data:
            raise CalibrationError("the broker hung up instead of answering")
        self._rest_bytes += len(data)
        if self._rest_bytes < self._answer_bytes:
            return
        self._rest_bytes = 0
        self._times_s.append(now_s - self._asked_s)
        self._left -= 1
        if self._left:
            self._ask()


def pings(wires: Wires, socks: list[socket]) -> list[Asker]:
    """One per socket, to ask for PINGRESP."""
    return [Asker(wires, sock, PINGREQ_FRAME, PINGRESP_BYTES) for sock in socks]


def subscribe_all(wires: Wires, socks: list[socket], topics: list[str], at_most_s: float) -> None:
    """Subscribe each socket to its topic, at QoS 1."""
    askers = [
        Asker(wires, sock, _subscribe_frame(topic), SUBACK_BYTES)
        for sock, topic in zip(socks, topics, strict=True)
    ]
    for asker in askers:
        asker.ask(1)
    wires.run(lambda: all(asker.is_idle for asker in askers), at_most_s, "SUBSCRIBE")


def _subscribe_frame(topic: str) -> bytes:
    return encode(Subscribe(1, ((topic, SubscriptionOptions(1)),)), MQTT_5)
