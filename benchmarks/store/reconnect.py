"""Ten thousand messages for a client that comes back, over TCP."""

import time
from dataclasses import dataclass
from itertools import islice
from typing import Final

from benchmarks.brokers import Broker
from benchmarks.checks import Grid, Report, at_most
from benchmarks.conditions import Conditions
from benchmarks.runner import BadData
from flowguard.codec import Puback
from flowguard.types import Publish

from .client import Client

KEY: Final = "store-reconnect"
MESSAGES: Final = 10_000
"""As many as a queue may hold by default."""
WINDOW: Final = 100
AT_ONCE: Final = 500
"""Of the publisher: less than the broker's Receive Maximum."""
TOPIC: Final = "b/000000"
PAYLOADS_BYTES: Final = (16, 1024)
BOUND_S: Final = 1.0


@dataclass(frozen=True)
class Delivered:
    """One reconnection."""

    broker: str
    payload_bytes: int
    messages: int
    first_s: float
    all_s: float


@dataclass(frozen=True)
class Reconnections:
    """Of every build and payload."""

    runs: tuple[Delivered, ...]

    def report(self) -> Report:
        header = ("broker", "payload B", "messages", "first after ms", "all after s", "messages /s")
        rows = [
            (
                run.broker,
                f"{run.payload_bytes:,}",
                f"{run.messages:,}",
                f"{run.first_s * 1e3:.1f}",
                f"{run.all_s:.2f}",
                f"{run.messages / run.all_s:,.0f}",
            )
            for run in self.runs
        ]
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
            (Grid(header, tuple(rows)),),
        )


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
