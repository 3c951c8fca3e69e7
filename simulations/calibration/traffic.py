"""Traffic: publishers and subscribers on sockets that are connected, with prepared bytes.

Packet identifiers go round in a ring as long as the window: acknowledgements come in the order of
what they acknowledge [MQTT-4.6.0-2], so counting their bytes is enough.
"""

from collections import deque
from heapq import merge
from socket import socket
from statistics import median
from typing import Final, final

from flowguard.codec import encode
from flowguard.types import MQTT_5, Publish
from simulations.calibration.process import CalibrationError
from simulations.calibration.wires import READ_BYTES, Wires
from simulations.draws import Draws
from simulations.latencies import Latencies

PUBACK_BYTE: Final = 0x40
PUBLISH_BYTE: Final = 0x32
ACK_BYTES: Final = 4
"""Size of a PUBACK with reason code 0."""
ONE_BYTE_LENGTH_MAX: Final = 127
DUE_TOGETHER_MAX: Final = 512
"""Messages that become due in one turn, so that acknowledgements do not wait for all of them."""


def topic_of(number: int, root: str = "t") -> str:
    """A topic; all are equally long, so that all frames are."""
    return f"{root}/{number:06d}"


def _frame(topic: str, payload_bytes: int, packet_id: int) -> bytes:
    return encode(Publish(topic, bytes(payload_bytes), 1, packet_id=packet_id), MQTT_5)


@final
class Tally:
    """Counts and latencies of all publishers of a load."""

    __slots__ = ("acknowledged_count", "latencies")

    def __init__(self) -> None:
        self.acknowledged_count = 0
        self.latencies = Latencies()
        """Times from the instant a message was due to its PUBACK."""


@final
class RealPublisher:
    """At most `outstanding` messages without PUBACK; sends what is due, in order."""

    __slots__ = (
        "_frame_bytes",
        "_is_closed_loop",
        "_is_in_bursts",
        "_left",
        "_outstanding",
        "_position",
        "_rest_bytes",
        "_ring",
        "_rounds_s",
        "_sent",
        "_sock",
        "_tally",
        "_waiting",
        "_window",
    )

    def __init__(
        self,
        wires: Wires,
        sock: socket,
        tally: Tally,
        topic: str,
        payload_bytes: int,
        outstanding: int,
    ) -> None:
        frames = [_frame(topic, payload_bytes, number) for number in range(1, outstanding + 1)]
        self._frame_bytes = len(frames[0])
        self._ring = memoryview(b"".join(frames) * 2)
        self._sock = sock
        self._tally = tally
        self._window = outstanding
        self._outstanding = 0
        self._position = 0
        self._rest_bytes = 0
        self._is_closed_loop = False
        self._is_in_bursts = False
        self._rounds_s: list[float] = []
        self._left = 0
        """Closed loop: messages that are still to become due."""
        self._sent: deque[tuple[float, int]] = deque()
        """Instant at which messages in a row were due that are on their way, and their number."""
        self._waiting: deque[float] = deque()
        """Instants at which messages were due that may not be sent yet."""
        wires.watch(sock, self)

    def flood(self, count: int, now_s: float) -> None:
        """Closed loop: publish so many messages, each due when there is room for it."""
        self._is_closed_loop = True
        self._left += count
        self._refill(now_s)

    def burst(self, rounds: int, now_s: float) -> None:
        """Publish so many full windows, each sent at once when the one before is acknowledged."""
        self._is_in_bursts = True
        self.flood(rounds * self._window, now_s)

    def median_s(self) -> float:
        """Median time from sending a burst to its last acknowledgement."""
        return median(self._rounds_s)

    def due(self, due_s: float) -> None:
        """Open loop: one more message is due."""
        self._waiting.append(due_s)
        if self._outstanding < self._window:
            self._send_waiting()

    @property
    def is_idle(self) -> bool:
        """Whether all its messages are acknowledged."""
        return not (self._outstanding or self._left or self._waiting)

    def _refill(self, now_s: float) -> None:
        if self._is_in_bursts and self._outstanding:
            return
        count = min(self._left, self._window - self._outstanding)
        if count:
            self._left -= count
            self._sent.append((now_s, count))
            self._send(count)

    def _send_waiting(self) -> None:
        waiting = self._waiting
        count = min(len(waiting), self._window - self._outstanding)
        if count:
            self._sent.extend((waiting.popleft(), 1) for _ in range(count))
            self._send(count)

    def _send(self, count: int) -> None:
        size = self._frame_bytes
        begin = self._position * size
        # The ring is there twice, so what wraps round is one piece.
        sent_bytes = self._sock.send(self._ring[begin : begin + count * size])
        if sent_bytes < count * size:
            raise CalibrationError("the broker does not read: a window does not fit the socket")
        self._position = (self._position + count) % self._window
        self._outstanding += count

    def ready(self, now_s: float) -> None:
        """Take acknowledgements."""
        data = self._sock.recv(READ_BYTES)
        if not data or (not self._rest_bytes and data[0] != PUBACK_BYTE):
            raise CalibrationError(f"a publisher heard {data[:32]!r} instead of PUBACK")
        count, self._rest_bytes = divmod(self._rest_bytes + len(data), ACK_BYTES)
        self._outstanding -= count
        tally = self._tally
        tally.acknowledged_count += count
        sent = self._sent
        while count:
            due_s, of_them = sent.popleft()
            if of_them > count:
                sent.appendleft((due_s, of_them - count))
                of_them = count
            tally.latencies.observe(now_s - due_s, of_them)
            count -= of_them
        if self._is_in_bursts and not self._outstanding:
            self._rounds_s.append(now_s - due_s)
        if self._is_closed_loop:
            self._refill(now_s)
        else:
            self._send_waiting()


@final
class RealSubscriber:
    """Acknowledges what comes; all messages must be equally long, and short."""

    __slots__ = ("_frame_bytes", "_id_at", "_rest", "_sock")

    def __init__(self, wires: Wires, sock: socket, topic: str, payload_bytes: int) -> None:
        frame = _frame(topic, payload_bytes, 1)
        if frame[1] > ONE_BYTE_LENGTH_MAX:
            raise CalibrationError(f"payloads of {payload_bytes} bytes are too large for the load")
        self._frame_bytes = len(frame)
        self._id_at = 4 + len(topic)
        self._sock = sock
        self._rest = b""
        wires.watch(sock, self)

    def ready(self, now_s: float) -> None:
        """Take PUBLISH packets."""
        data = self._rest + self._sock.recv(READ_BYTES)
        if not data or data[0] != PUBLISH_BYTE:
            raise CalibrationError(f"a subscriber heard {data[:32]!r} instead of PUBLISH")
        size, id_at = self._frame_bytes, self._id_at
        count = len(data) // size
        if not count:
            self._rest = data
            return
        whole = count * size
        acks = bytearray(b"\x40\x02\x00\x00" * count)
        acks[2::4] = data[id_at:whole:size]
        acks[3::4] = data[id_at + 1 : whole : size]
        self._rest = data[whole:]
        if self._sock.send(acks) < len(acks):
            raise CalibrationError("the broker does not read acknowledgements")


@final
class PoissonLoad:
    """Open loop: messages are due as in `simulations.publishers`, client by client."""

    def __init__(
        self,
        wires: Wires,
        publishers: list[RealPublisher],
        *,
        name: str,
        seed: int,
        rate_per_s: float,
        duration_s: float,
    ) -> None:
        """`rate_per_s` of each publisher; begins as soon as everything is drawn."""
        gaps = Draws(seed, f"{name}: publish")
        streams = [
            _instants(gaps, client, rate_per_s, duration_s) for client in range(len(publishers))
        ]
        self._due = deque(merge(*streams))
        self._publishers = publishers
        self._wires = wires
        self._start_s = wires.now_s
        if self._due:
            wires.at(self._start_s + self._due[0][0], self._go, None)

    def _go(self, _: None, now_s: float) -> None:
        due, start_s = self._due, self._start_s
        for _count in range(DUE_TOGETHER_MAX):
            if not due or start_s + due[0][0] > now_s:
                break
            due_s, client = due.popleft()
            self._publishers[client].due(start_s + due_s)
        if due:
            self._wires.at(start_s + due[0][0], self._go, None)


def _instants(
    gaps: Draws, client: int, rate_per_s: float, duration_s: float
) -> list[tuple[float, int]]:
    """(instant, client) of each message, from 0 on."""
    instants: list[tuple[float, int]] = []
    at_s = gaps.exponential(client, 0) / rate_per_s
    while at_s < duration_s:
        instants.append((at_s, client))
        at_s += gaps.exponential(client, len(instants)) / rate_per_s
    return instants
