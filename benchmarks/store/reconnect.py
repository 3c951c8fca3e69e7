"""Ten thousand messages for a client that comes back, over TCP."""

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from benchmarks.brokers import HOST, Broker
from benchmarks.checks import Columns, Grid, Report, at_most
from benchmarks.conditions import Conditions
from benchmarks.runner import BadData
from flowguard.codec import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Suback,
    Subscribe,
    encode,
    puback_frame,
)
from flowguard.codec.decoder import PacketDecoder
from flowguard.types import MQTT_5, Properties, Publish, SubscriptionOptions

KEY: Final = "store-reconnect"
MESSAGES: Final = 10_000
"""As many as a queue may hold by default."""
WINDOW: Final = 100
AT_ONCE: Final = 500
"""Of the publisher: less than the broker's Receive Maximum."""
TOPIC: Final = "b/000000"
PAYLOADS_BYTES: Final = (16, 1024)
BOUND_S: Final = 1.0
READ_BYTES: Final = 64 * 1024
PACKET_BYTES_MAX: Final = 1 << 20
TIMEOUT_S: Final = 30.0
EXPIRY_S: Final = 3_600


@dataclass(frozen=True)
class Delivered:
    broker: str
    payload_bytes: int
    messages: int
    first_s: float
    all_s: float


@dataclass(frozen=True)
class Reconnections:
    runs: tuple[Delivered, ...]

    def report(self) -> Report:
        checks = [
            at_most(
                f"{run.broker}: {run.messages:,} messages of {run.payload_bytes:,} bytes",
                run.all_s,
                BOUND_S,
                " s",
                digits=2,
            )
            for run in self.runs
        ]
        return Report(
            KEY,
            "Store: a client comes back",
            f"Messages waiting on disk, read over TCP with Receive Maximum {WINDOW}, each "
            "acknowledged; from connect() to the last one, by the clock.",
            tuple(checks),
            (Grid.of(COLUMNS, self.runs),),
        )


COLUMNS: Columns[Delivered] = {
    "broker": lambda run: run.broker,
    "payload B": lambda run: f"{run.payload_bytes:,}",
    "messages": lambda run: f"{run.messages:,}",
    "first after ms": lambda run: f"{run.first_s * 1e3:.1f}",
    "all after s": lambda run: f"{run.all_s:.2f}",
    "messages /s": lambda run: f"{run.messages / run.all_s:,.0f}",
}


class Client:
    """MQTT 5.0, a durable session; raises `OSError` where the broker says no or nothing."""

    def __init__(self, port: int, client_id: str, receive_maximum: int | None = None) -> None:
        self._decoder = PacketDecoder(PACKET_BYTES_MAX, MQTT_5, role="client")
        self._socket = socket.create_connection((HOST, port), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        properties = Properties(session_expiry_interval=EXPIRY_S, receive_maximum=receive_maximum)
        self.send(Connect(client_id, clean_start=False, properties=properties))
        connack = next(self.packets())
        if not isinstance(connack, Connack) or connack.reason_code:
            raise ConnectionRefusedError(f"{client_id} was told {connack}")

    def send(self, *packets: Packet) -> None:
        self._socket.sendall(b"".join(encode(packet, MQTT_5) for packet in packets))

    def packets(self) -> Iterator[Packet]:
        """What comes, for ever; what was read together is acknowledged together."""
        while True:
            pubacks = []
            while (packet := self._decoder.next()) is not None:
                if isinstance(packet, Publish) and packet.qos:
                    pubacks.append(puback_frame(packet.packet_id))
                yield packet
            self._socket.sendall(b"".join(pubacks))
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise ConnectionResetError("the broker closed the connection")
            self._decoder.feed(data)

    def subscribe(self, filter: str) -> None:
        self.send(Subscribe(1, ((filter, SubscriptionOptions(qos=1)),)))
        assert isinstance(next(self.packets()), Suback)

    def leave(self) -> None:
        """The session stays."""
        self.send(Disconnect())
        self._socket.close()


def queue_messages(port: int, messages: int, payload_bytes: int) -> None:
    """A durable subscriber leaves, then so many are published; each begins with its number."""
    subscriber = Client(port, "subscriber")
    subscriber.subscribe(TOPIC)
    subscriber.leave()
    publisher = Client(port, "publisher")
    rest = bytes(payload_bytes - 4)
    for start in range(0, messages, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, messages))
        publisher.send(
            *(
                Publish(TOPIC, n.to_bytes(4, "big") + rest, 1, packet_id=1 + n % AT_ONCE)
                for n in numbers
            )
        )
        for packet in islice(publisher.packets(), len(numbers)):
            if not isinstance(packet, Puback) or packet.reason_code:
                raise BadData(f"a message was answered by {packet}")
    publisher.leave()


def come_back(port: int, messages: int) -> tuple[float, float]:
    """Seconds from connect() to the first message and to the last."""
    started_s = time.perf_counter()
    subscriber = Client(port, "subscriber", receive_maximum=WINDOW)
    first_s = 0.0
    for number, packet in enumerate(islice(subscriber.packets(), messages)):
        if not number:
            first_s = time.perf_counter() - started_s
        if not isinstance(packet, Publish) or packet.payload[:4] != number.to_bytes(4, "big"):
            raise BadData(f"instead of message {number} came {packet}")
    all_s = time.perf_counter() - started_s
    subscriber.leave()
    return first_s, all_s


def measure_one(
    broker: Broker, conditions: Conditions, messages: int, payload_bytes: int
) -> Delivered:
    with broker.running(conditions.broker_core, KEY) as running:
        queue_messages(running.port, messages, payload_bytes)
        first_s, all_s = come_back(running.port, messages)
    return Delivered(broker.name, payload_bytes, messages, first_s, all_s)


def measure(conditions: Conditions) -> Reconnections:
    messages = conditions.count(MESSAGES)
    return Reconnections(
        tuple(
            measure_one(broker, conditions, messages, payload_bytes)
            for broker in conditions.builds()
            for payload_bytes in PAYLOADS_BYTES
        )
    )
