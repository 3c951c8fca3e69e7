"""Traffic: connected clients of a measurement publish, subscribe and send requests.

Bytes are prepared, and answers are counted instead of decoded, because the broker is measured: a
load that decodes would add its own time to a burst. Packet identifiers go round in a ring as long
as the window: acknowledgements come in the order of the acknowledged packets [MQTT-4.6.0-2], so
counting their bytes is enough.
"""

from collections import deque
from collections.abc import Callable, Iterable
from statistics import median
from typing import Final, final

from flowguard.codec import PINGREQ_FRAME, Subscribe, encode
from flowguard.flow.load.histogram import Histogram
from flowguard.types import MQTT_5, Publish, SubscriptionOptions
from loadgen.storm.loop import ClientLoop, Wire
from simulations.calibration.load import Load
from simulations.calibration.process import CalibrationError
from simulations.draws import Draws
from simulations.scenario import PublishPlan

PUBACK_BYTE: Final = 0x40
PUBLISH_BYTE: Final = 0x32
ACK_BYTES: Final = 4
"""Size of a PUBACK with reason code 0."""
PINGRESP_BYTES: Final = 2
SUBACK_BYTES: Final = 6
ONE_BYTE_LENGTH_MAX: Final = 127


def topic_of(number: int, root: str = "t") -> str:
    """Return a topic. All topics are equally long, so that all frames are."""
    return f"{root}/{number:06d}"


def _frame(topic: str, payload_bytes: int, packet_id: int) -> bytes:
    return encode(Publish(topic, bytes(payload_bytes), 1, packet_id=packet_id), MQTT_5)


@final
class RealPublisher:
    """Keeps at most `outstanding` messages without PUBACK, and sends due messages in order."""

    def __init__(
        self, wire: Wire, latencies: Histogram, topic: str, payload_bytes: int, outstanding: int
    ) -> None:
        """`latencies` collects the times from the instant at which a message was due to its
        PUBACK."""
        self._wire = wire
        wire.on_bytes = self._hear
        frames = [_frame(topic, payload_bytes, number) for number in range(1, outstanding + 1)]
        self._frame_bytes = len(frames[0])
        self._ring = b"".join(frames) * 2
        self._latencies = latencies
        self._window = outstanding
        self._outstanding = 0
        self._position = 0
        self._rest_bytes = 0
        self._is_closed_loop = False
        self._is_in_bursts = False
        self._rounds_s: list[float] = []
        self.on_round: Callable[[float], None] | None = None
        """Called after each acknowledged burst with its duration in seconds, before the next
        burst."""
        self._left = 0
        """Closed loop: number of messages that are still to become due."""
        self._sent: deque[tuple[float, int]] = deque()
        """Messages in flight: the instant at which messages in a row were due, and their number."""
        self._due: deque[float] = deque()
        """Open loop: due instants of the messages that were not sent yet."""
        self._loop: ClientLoop | None = None
        """Calls when the next message is due, if it may be sent then."""
        self._is_called = False

    def flood(self, count: int, now_s: float) -> None:
        """Closed loop: publish `count` messages, each due as soon as the window has capacity for
        it."""
        self._is_closed_loop = True
        self._left += count
        self._refill(now_s)

    def burst(self, rounds: int, now_s: float) -> None:
        """Publish `rounds` full windows, each sent at once when the previous one is
        acknowledged."""
        self._is_in_bursts = True
        self.flood(rounds * self._window, now_s)

    def median_s(self) -> float:
        """Median time from sending a burst to its last acknowledgement."""
        return median(self._rounds_s)

    def follow(self, instants: Iterable[float], loop: ClientLoop) -> None:
        """Open loop: a message is due at each of these instants, which are in order."""
        self._due.extend(instants)
        self._loop = loop
        self._send_due(loop.clock())

    @property
    def is_idle(self) -> bool:
        return not (self._outstanding or self._left or self._due)

    def _refill(self, now_s: float) -> None:
        if self._is_in_bursts and self._outstanding:
            return
        count = min(self._left, self._window - self._outstanding)
        if count:
            self._left -= count
            self._sent.append((now_s, count))
            self._send(count)

    def _send_due(self, now_s: float) -> None:
        """Send the due messages that fit. No timer is set while the window is full."""
        due, room = self._due, self._window - self._outstanding
        count = 0
        while due and count < room and due[0] <= now_s:
            self._sent.append((due.popleft(), 1))
            count += 1
        if count:
            self._send(count)
        if due and count < room and not self._is_called:
            assert self._loop is not None
            self._is_called = True
            self._loop.call_at(due[0], self._called)

    def _called(self, now_s: float) -> None:
        self._is_called = False
        self._send_due(now_s)

    def _send(self, count: int) -> None:
        begin, size = self._position * self._frame_bytes, count * self._frame_bytes
        # The ring holds all frames twice, so that a range that wraps round is one piece.
        self._wire.write(self._ring[begin : begin + size])
        self._position = (self._position + count) % self._window
        self._outstanding += count

    def _hear(self, data: bytes, now_s: float) -> None:
        """Take acknowledgements."""
        if not self._rest_bytes and data[0] != PUBACK_BYTE:
            raise CalibrationError(f"a publisher heard {data[:32]!r} instead of PUBACK")
        count, self._rest_bytes = divmod(self._rest_bytes + len(data), ACK_BYTES)
        self._outstanding -= count
        due_s = now_s
        while count:
            due_s, of_them = self._sent.popleft()
            if of_them > count:
                self._sent.appendleft((due_s, of_them - count))
                of_them = count
            self._latencies.observe(now_s - due_s, of_them)
            count -= of_them
        if self._is_in_bursts and not self._outstanding:
            self._rounds_s.append(now_s - due_s)
            if self.on_round is not None:
                self.on_round(now_s - due_s)
        if self._is_closed_loop:
            self._refill(now_s)
        elif self._due:
            self._send_due(now_s)


@final
class RealSubscriber:
    """Acknowledges all messages, which must be equally long, and short."""

    def __init__(self, wire: Wire, topic: str, payload_bytes: int) -> None:
        frame = _frame(topic, payload_bytes, 1)
        if frame[1] > ONE_BYTE_LENGTH_MAX:
            raise CalibrationError(f"payloads of {payload_bytes} bytes are too large for the load")
        self._frame_bytes = len(frame)
        self._id_at = 4 + len(topic)
        self._wire = wire
        self._rest = b""
        wire.on_bytes = self._hear

    def _hear(self, data: bytes, now_s: float) -> None:
        """Take PUBLISH packets."""
        data = self._rest + data
        if data[0] != PUBLISH_BYTE:
            raise CalibrationError(f"a subscriber heard {data[:32]!r} instead of PUBLISH")
        size, id_at = self._frame_bytes, self._id_at
        count = len(data) // size
        whole = count * size
        acks = bytearray(b"\x40\x02\x00\x00" * count)
        acks[2::4] = data[id_at:whole:size]
        acks[3::4] = data[id_at + 1 : whole : size]
        self._rest = data[whole:]
        self._wire.write(acks)


def instants(plan: PublishPlan, name: str, seed: int, client: int, until_s: float) -> list[float]:
    """Return the due instants of a client's messages since it connected, as in
    `crowd.publishers`."""
    assert plan.rate_per_s is not None
    gaps = Draws(seed, f"{name}: publish")
    due_s = [0.0] * plan.collected
    at_s, count = gaps.exponential(client, 0) / plan.rate_per_s, 1
    while at_s < until_s:
        due_s.append(at_s)
        at_s += gaps.exponential(client, count) / plan.rate_per_s
        count += 1
    return due_s


# --- asking ------------------------------------------------------------------------------------


@final
class Asker:
    """Sends a request and waits for its answer of fixed size, `count` times."""

    def __init__(
        self,
        load: Load,
        wire: Wire,
        request: bytes = PINGREQ_FRAME,
        answer_bytes: int = PINGRESP_BYTES,
    ) -> None:
        self._load = load
        self._wire = wire
        self._request = request
        self._answer_bytes = answer_bytes
        self._rest_bytes = 0
        wire.on_bytes = self._hear
        self._left = 0
        self._asked_s = 0.0
        self._times_s: list[float] = []

    def ask(self, count: int) -> None:
        self._left = count
        self._ask()

    def _ask(self) -> None:
        self._asked_s = self._load.now_s
        self._wire.write(self._request)

    def median_s(self) -> float:
        """Median time from a request to its answer."""
        return median(self._times_s)

    def _hear(self, data: bytes, now_s: float) -> None:
        self._rest_bytes += len(data)
        if self._rest_bytes < self._answer_bytes:
            return
        self._rest_bytes = 0
        self._times_s.append(now_s - self._asked_s)
        self._left -= 1
        if self._left:
            self._ask()

    @property
    def is_idle(self) -> bool:
        return not self._left


def ask_all(load: Load, askers: list[Asker], count: int, at_most_s: float, what: str) -> None:
    """Let all askers send `count` requests each at the same time, and wait for the answers."""
    for asker in askers:
        asker.ask(count)
    load.run(lambda: all(asker.is_idle for asker in askers), at_most_s, what)


def subscribe_all(load: Load, wires: list[Wire], topics: list[str], at_most_s: float) -> None:
    """Subscribe each client to its topic, at QoS 1."""
    askers = []
    for wire, topic in zip(wires, topics, strict=True):
        packet = Subscribe(1, ((topic, SubscriptionOptions(1)),))
        askers.append(Asker(load, wire, encode(packet, MQTT_5), SUBACK_BYTES))
    ask_all(load, askers, 1, at_most_s, "SUBSCRIBE")


def publish_all(load: Load, publishers: list[RealPublisher], rounds: int, at_most_s: float) -> None:
    """Let all publishers send `rounds` bursts each, and wait for the last acknowledgement."""
    now_s = load.now_s
    for publisher in publishers:
        publisher.burst(rounds, now_s)
    load.run(lambda: all(publisher.is_idle for publisher in publishers), at_most_s, "PUBLISH")
