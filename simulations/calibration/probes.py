"""Probes: one pass over everything that has a cost, on brokers started for it.

The cost of a packet is the CPU time of the process per packet, without RocksDB's own threads. The
threads that prepare the store's batches are part of it: they hold the interpreter, and the loop
waits. Measured under full load, they account for all time that the loop lacks besides its own CPU
time.

| cost | measured as |
|---|---|
| accept_s | sockets opened without a word, and decoding a CONNECT in this process |
| connect_s | clients connected, less accept_s |
| refuse_s | rejected clients, by a broker that serves one at a time, less accept_s |
| close_s | connected clients that hang up |
| ping_s | PINGREQ by all clients, one at a time each |
| read_s, publish_s | bursts of 1 to 20 messages for a durable session that is not connected |
| send_s, delivery_s | the same for connected subscribers, less read_s and publish_s |
| queue_s | additional CPU time of a lone message per stored session |
| subscribe_s | SUBSCRIBE by all clients, less read_s |
| wake_s | the loop's CPU per lone PINGREQ, less ping_s |
| handoff_s | the loop's CPU per lone stored message, less that of one of many, and wake_s |
| latency_s | half a lone PINGREQ's round trip, less the broker's CPU |
| op_s | additional duration of a lone message per stored session, less the broker's CPU |
| commit_s | duration of a lone stored message, less all of the above |
| process_bytes, connection_bytes | resident memory by number of connected clients |
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from socket import create_connection, socket
from statistics import median
from typing import Any, Final, TypeVar, final

from flowguard.codec import Connect, PacketDecoder, encode
from flowguard.flow.load.histogram import LATENCY_BOUNDS_S, Histogram
from flowguard.types import MQTT_5
from loadgen.storm.loop import Wire
from simulations.calibration.crowd import RealCrowd
from simulations.calibration.estimates import Point, Series, fit
from simulations.calibration.load import Load
from simulations.calibration.process import (
    BrokerProcess,
    CalibrationError,
    StoreKind,
    Usage,
    broker_process,
)
from simulations.calibration.traffic import (
    Asker,
    RealPublisher,
    RealSubscriber,
    ask_all,
    publish_all,
    subscribe_all,
    topic_of,
)
from simulations.scenario import PopulationPlan, RetryPlan

T = TypeVar("T")
CALM: Final[dict[str, object]] = {
    "queue_objective_s": 1e9,
    "loop_objective_s": 1e9,
    "store_objective_s": 1e9,
}
"""Objectives that every machine meets, so that the work is measured and not the protection."""
ROOMY: Final[dict[str, object]] = {"queue_messages_max": 10_000_000, "queue_bytes_max": 1 << 34}
"""Limits for a session that is not connected and queues all that is published."""
SETTINGS: Final[dict[str, dict[str, object]]] = {
    "flow": {**CALM, "memory_max_bytes": 1 << 35},
    "session": ROOMY,
    "node": {"queue_bytes_max": 1 << 34},
}
REFUSING: Final[dict[str, dict[str, object]]] = {
    "flow": {**CALM, "connects_in_process_max": 1, "connect_buffer_max": 0}
}
PUBLISHERS: Final = 200
"""Number of publishers; it is high, so that the loop never waits for the store."""
BURSTS: Final = (1, 2, 5, 10, 20)
"""The messages of all of them together are below `flow.unfinished_max`, above which clients take
turns."""
PAYLOAD_BYTES: Final = 64
DECODED: Final = 2_000
STEP_S: Final = 60.0
"""Time limit of a step that takes a second on an idle machine."""
SHARES: Final = (0.25, 0.5, 0.75, 1.0)
NO_RETRY: Final = RetryPlan(kind="none")


@dataclass(frozen=True, slots=True)
class Sizes:
    clients: int = 2_000

    @property
    def messages(self) -> int:
        """Number of messages to all subscribers together."""
        return 60 * self.clients

    @property
    def lone(self) -> int:
        return max(20, self.clients // 5)

    @property
    def widest(self) -> int:
        """Maximum number of stored sessions that get a lone message."""
        return max(len(SHARES), self.clients // 2)

    @property
    def wide(self) -> int:
        return max(5, self.clients // 100)


@final
class _Bench:
    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.load = Load(broker.address)
        self._crowds = 0

    def crowd(self, clients: int) -> RealCrowd:
        """Return new clients, all of them connected."""
        crowd = self.knocking(clients)
        crowd.connected()
        return crowd

    def knocking(self, clients: int) -> RealCrowd:
        """Return new clients that try once."""
        self._crowds += 1
        plan = PopulationPlan(clients=clients, start_over_s=0.01, timeout_s=STEP_S, retry=NO_RETRY)
        crowd = RealCrowd(self.load, f"crowd-{self._crowds}", plan, self._crowds)
        crowd.come(STEP_S)
        return crowd

    def measured(self, work: Callable[..., T], *arguments: Any) -> tuple[T, Usage]:
        """Return the result of `work`, and the broker's usage until it was idle again."""
        before = self.broker.settled()
        result = work(*arguments)
        return result, self.broker.settled().since(before)


def measure(store: StoreKind, sizes: Sizes, on_step: Callable[[str], None]) -> Series:
    """Measure each cost once, and call `on_step` before each step. Raises CalibrationError."""
    raw: Series = {"decoded": [(DECODED, _decoding_s())]}
    with broker_process(store, SETTINGS) as broker:
        bench = _Bench(broker)
        on_step("connections")
        raw |= _connections(bench, sizes)
        on_step("packets")
        raw |= _packets(bench, sizes)
        on_step("messages")
        raw |= _messages(bench, sizes)
        on_step("one at a time")
        raw |= _lone(bench, sizes)
        bench.load.loop.close_all()
    on_step("refusals")
    with broker_process(store, REFUSING) as broker:
        bench = _Bench(broker)
        raw |= _refusals(bench, sizes, fit(raw["connected"]).slope)
        bench.load.loop.close_all()
    return raw


STEPS: Final = 5
"""Number of calls of `on_step` by `measure`."""


def _decoding_s() -> float:
    """Return the CPU time of decoding `DECODED` CONNECTs in this process, which runs the same
    code."""
    frame = encode(Connect("crowd-1-1000"), MQTT_5)
    before_s = time.process_time()
    for _ in range(DECODED):
        decoder = PacketDecoder(1 << 20)
        decoder.feed(frame)
        if decoder.next() is None:
            raise CalibrationError("a whole CONNECT is not decoded")
    return time.process_time() - before_s


def _connections(bench: _Bench, sizes: Sizes) -> Series:
    broker = bench.broker
    bench.crowd(max(1, sizes.clients // 4)).close()  # The first time everything takes longer.
    connects: list[Point] = []
    bares: list[Point] = []
    memory: list[Point] = []
    crowds = []
    connected = 0
    for count in _parts(sizes.clients):
        crowd, used = bench.measured(bench.crowd, count)
        crowds.append(crowd)
        connects.append((count, used.process_s))
        connected += count
        memory.append((connected, float(broker.resident_bytes())))
    closes: list[Point] = [(c.plan.clients, bench.measured(c.close)[1].process_s) for c in crowds]
    for count in _parts(sizes.clients):
        socks, used = bench.measured(_dial, broker.address, count)
        bares.append((count, used.process_s))
        for sock in socks:
            sock.close()
    return {"connected": connects, "closed": closes, "bare": bares, "resident": memory}


def _parts(count: int) -> list[int]:
    return [max(1, round(share * count)) for share in SHARES]


def _dial(address: tuple[str, int], count: int) -> list[socket]:
    return [create_connection(address) for _ in range(count)]


def _packets(bench: _Bench, sizes: Sizes) -> Series:
    load = bench.load
    crowd = bench.crowd(max(1, sizes.clients // 4))
    wires = crowd.connected()
    askers = [Asker(load, wire) for wire in wires]
    asked: list[Point] = []
    for rounds in (2, 4, 6, 8):
        _, used = bench.measured(ask_all, load, askers, rounds, STEP_S, "PINGREQ")
        asked.append((rounds * len(wires), used.process_s))
    subscribed: list[Point] = []
    first = 0
    for count in _parts(len(wires)):
        topics = [topic_of(first + number, "s") for number in range(count)]
        first += count
        _, used = bench.measured(subscribe_all, load, wires[:count], topics, STEP_S)
        subscribed.append((count, used.process_s))
    crowd.close()
    return {"pings": asked, "subscribed": subscribed}


def _messages(bench: _Bench, sizes: Sizes) -> Series:
    load = bench.load
    absent = bench.crowd(1)
    subscribe_all(load, absent.connected(), ["o/#"], STEP_S)
    absent.close()
    stored = _bursts(bench, sizes, "o")
    subscribers = bench.crowd(PUBLISHERS)
    topics = [topic_of(number) for number in range(PUBLISHERS)]
    subscribe_all(load, subscribers.connected(), topics, STEP_S)
    for wire, topic in zip(subscribers.connected(), topics, strict=True):
        RealSubscriber(wire, topic, PAYLOAD_BYTES)
    relayed = _bursts(bench, sizes, "t")
    subscribers.close()
    return {"stored": stored, "relayed": relayed}


def _bursts(bench: _Bench, sizes: Sizes, root: str) -> list[Point]:
    """Return the CPU time of a burst by its messages. Every client sends a burst as soon as it can.

    So the line's slope is the cost of a message, and its intercept that of a burst.
    """
    crowd = bench.crowd(PUBLISHERS)
    points: list[Point] = []
    for burst in BURSTS:
        rounds = max(1, sizes.messages // (len(BURSTS) * PUBLISHERS * burst))
        latencies = Histogram(LATENCY_BOUNDS_S)
        publishers = [
            RealPublisher(wire, latencies, topic_of(number, root), PAYLOAD_BYTES, burst)
            for number, wire in enumerate(crowd.connected())
        ]
        _, used = bench.measured(publish_all, bench.load, publishers, rounds, STEP_S)
        points.append((burst, used.process_s / (rounds * PUBLISHERS)))
    crowd.close()
    return points


def _lone(bench: _Bench, sizes: Sizes) -> Series:
    """One client on an idle broker: median durations, and their CPU time."""
    crowd = bench.crowd(1)
    (wire,) = crowd.connected()
    asker = Asker(bench.load, wire)
    _, used = bench.measured(ask_all, bench.load, [asker], sizes.lone, STEP_S, "PINGREQ")
    ping_loop_s = used.loop_s / sizes.lone
    ping_s = asker.median_s()
    publisher = RealPublisher(wire, Histogram(LATENCY_BOUNDS_S), topic_of(0, "o"), PAYLOAD_BYTES, 1)
    _, used = bench.measured(publish_all, bench.load, [publisher], sizes.lone, STEP_S)
    message_s = publisher.median_s()
    wide, wide_cpu = _wide(bench, wire, sizes)
    crowd.close()
    return {
        "lone_ping": [(1, ping_s)],
        "lone_ping_cpu": [(1, ping_loop_s)],
        "lone_message": [(1, message_s)],
        "lone_message_cpu": [(1, used.loop_s / sizes.lone)],
        "wide": wide,
        "wide_cpu": wide_cpu,
    }


def _wide(bench: _Bench, wire: Wire, sizes: Sizes) -> tuple[list[Point], list[Point]]:
    """Return the duration of a lone message without the broker's CPU, and that CPU, by number of
    stored sessions.

    All of them are in one commit, which is as large as commits are under load. Those of a burst are
    not: its first part is in commit while the rest is read. That part is so small that the
    variation of the disk hides its cost. The CPU of the commit thread is not counted: the loop
    lacks it, and the cost of a packet already includes it.
    """
    absent = bench.crowd(sizes.widest)
    wires = absent.connected()
    counts = _parts(len(wires))
    for count in counts:
        topics = [topic_of(count, "w")] * count
        subscribe_all(bench.load, wires[:count], topics, STEP_S)
    absent.close()
    rests: list[Point] = []
    used: list[Point] = []
    for count in counts:
        rest_s, used_s = _medians_s(bench, wire, topic_of(count, "w"), sizes)
        rests.append((count, rest_s))
        used.append((count, used_s))
    return rests, used


def _medians_s(bench: _Bench, wire: Wire, topic: str, sizes: Sizes) -> tuple[float, float]:
    """Return both medians. Each message's own CPU is subtracted, because the broker also works
    between them, and for its ticks."""
    broker = bench.broker
    publisher = RealPublisher(wire, Histogram(LATENCY_BOUNDS_S), topic, PAYLOAD_BYTES, 1)
    used_s, rests_s, costs_s = broker.settled().process_s, list[float](), list[float]()

    def note(took_s: float) -> None:
        nonlocal used_s
        before_s, used_s = used_s, broker.usage().process_s
        costs_s.append(used_s - before_s)
        rests_s.append(took_s - costs_s[-1])

    publisher.on_round = note
    publish_all(bench.load, [publisher], sizes.wide, STEP_S)
    return median(rests_s), median(costs_s)


def _refusals(bench: _Bench, sizes: Sizes, connected_s: float) -> Series:
    """Return the CPU time by number of rejections, less the cost of the clients that were
    served."""
    points: list[Point] = []
    for share in SHARES:
        count = max(4, round(share * sizes.clients))
        crowd, used = bench.measured(bench.knocking, count)
        served = crowd.first_connected_count
        points.append((count - served, used.process_s - served * connected_s))
        crowd.close()
    if not points[-1][0] > points[0][0]:
        raise CalibrationError("the broker rejected no client: repeat with more clients")
    return {"refused": points}
