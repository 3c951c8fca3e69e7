"""An application that is far behind catches up while devices publish; and many that are idle."""

import select
import time
from dataclasses import dataclass
from typing import Final

from benchmarks import machine
from benchmarks.brokers import Broker
from benchmarks.checks import Check, Columns, Grid, Report, at_least, at_most
from benchmarks.kafka.brokers import PAYLOAD_BYTES, SLEEPERS, OnKafka, OnLog
from benchmarks.kafka.measures import DEVICES, kafka_s
from benchmarks.kafka.servers import Kafka
from benchmarks.log.sleepers import Phase, Sleepers, sleeping
from benchmarks.machine import Cores
from benchmarks.overload.flood import Flood, Seen, flooding
from benchmarks.runner import BadData

KEY: Final = "kafka-behind"
RATE_PER_S: Final = 1_000
SUBSCRIBERS: Final = 20
"""Devices that get what the others publish, each a part of it."""
UNMEASURED_S: Final = 2.0
LIMIT_S: Final = 150.0
IDLE: Final = 500
IDLE_S: Final = 10.0
P99_MAX, PER_CPU_S = 1.5, 50_000.0


@dataclass(frozen=True)
class CaughtUp:
    """Devices alone, then while one application catches up."""

    messages: int
    alone: Seen
    beside: Seen
    awake: Phase
    most_mib: float
    kafka_s: float

    @property
    def per_cpu_s(self) -> float:
        """Messages that waited, per second of all that the broker did meanwhile."""
        return self.messages / self.awake.broker_cpu_s

    @property
    def per_added_cpu_s(self) -> float:
        """Messages that waited, per second that catching up added to what devices took before."""
        devices_s = self.awake.took_s * self.alone.broker_cpu_s / self.alone.took_s
        return self.messages / (self.awake.broker_cpu_s - devices_s)


@dataclass(frozen=True)
class Idle:
    """IDLE connected clients that get nothing."""

    connecting_s: float
    """Processor time of the broker until all of them have subscribed and gone."""
    memory_kib: float
    """For each, and so is all that follows."""
    cpu_us_per_s: float
    kafka_us_per_s: float


@dataclass(frozen=True)
class Behind:
    caught_up: CaughtUp
    idle: dict[str, Idle]
    """By the name of the broker."""

    def report(self) -> Report:
        return Report(
            KEY,
            "An application far behind, and 500 that are idle",
            f"{DEVICES:,} devices publish {RATE_PER_S:,} messages of {PAYLOAD_BYTES} bytes per "
            f"second with QoS 1 for {SUBSCRIBERS} others with durable sessions and for one "
            "application, which subscribes to everything: while it is away, then while it reads "
            "all that it has missed. "
            f"Then {IDLE} clients without messages, connected for {IDLE_S:g} s.",
            tuple(self._checks()),
            (
                Grid.of(CAUGHT_UP, [self.caught_up]),
                Grid.of(IDLERS, self.idle.items()),
            ),
        )

    def _checks(self) -> list[Check]:
        found = self.caught_up
        return [
            at_most(
                "p99 of devices while the application catches up, of that while it is away",
                found.beside.delivery.p99 / found.alone.delivery.p99,
                P99_MAX,
                "x",
                2,
            ),
            at_least(
                "messages that waited, per CPU second of the broker", found.per_cpu_s, PER_CPU_S
            ),
        ]


CAUGHT_UP: Columns[CaughtUp] = {
    "messages behind": lambda row: f"{row.messages:,}",
    "caught up after s": lambda row: f"{row.awake.took_s:.1f}",
    "messages /s": lambda row: f"{row.messages / row.awake.took_s:,.0f}",
    "per CPU second of the broker": lambda row: f"{row.per_cpu_s:,.0f}",
    "per CPU second that catching up added": lambda row: f"{row.per_added_cpu_s:,.0f}",
    "Kafka's µs each": lambda row: f"{1e6 * row.kafka_s / row.messages:.1f}",
    "first message ms": lambda row: f"{row.awake.first_ms.p50:.0f}",
    "devices' delivery before: p50 ms": lambda row: f"{row.alone.delivery.p50:.1f}",
    "p99 ms": lambda row: f"{row.alone.delivery.p99:.1f}",
    "meanwhile: p50 ms": lambda row: f"{row.beside.delivery.p50:.1f}",
    "its p99 ms": lambda row: f"{row.beside.delivery.p99:.1f}",
    "the broker's memory MiB, at most": lambda row: f"{row.most_mib:.0f}",
}
IDLERS: Columns[tuple[str, Idle]] = {
    f"{IDLE} idle clients": lambda row: row[0],
    "ms of the broker to connect and subscribe each": lambda row: (
        f"{1e3 * row[1].connecting_s / IDLE:.1f}"
    ),
    "KiB of the broker each": lambda row: f"{row[1].memory_kib:.1f}",
    "its µs per second each": lambda row: f"{row[1].cpu_us_per_s:.1f}",
    "Kafka's µs per second each": lambda row: f"{row[1].kafka_us_per_s:.1f}",
}


def caught_up(
    broker: Broker, server: Kafka, cores: Cores | None, messages: int, seconds: float
) -> CaughtUp:
    """Raises `BadData`, `BrokerFailed`."""
    generator = None if cores is None else cores.generator
    crowd: dict[str, float] = {
        "subscribers": SUBSCRIBERS,
        "topics": SUBSCRIBERS,
        "flooders": DEVICES,
        "probes": 0,
        "payload": PAYLOAD_BYTES,
    }
    with (
        broker.running(None if cores is None else cores.broker, "kafka") as running,
        flooding(running.port, running.pid, generator, **crowd) as flood,
        sleeping(running, generator, sessions=1) as crowd_of_one,
    ):
        publish(flood, UNMEASURED_S)
        alone = publish(flood, seconds)
        before_s = kafka_s(server)
        crowd_of_one.begin("wake", messages, LIMIT_S)
        beside = publish(flood, seconds)
        if has_ended(crowd_of_one):
            raise BadData(f"caught up within {seconds:g} s: more messages, or less time")
        while not has_ended(crowd_of_one):
            publish(flood, UNMEASURED_S)
        awake = crowd_of_one.end()
        spent_s = kafka_s(server) - before_s
        most_mib = machine.peak_resident_kib(running.pid) / 1024
        flood.drain(10)
        if flood.finish().gaps:
            raise BadData("devices have missed messages")
    if not awake.finished:
        raise BadData(f"{awake.received:,} of {messages:,} messages after {LIMIT_S:g} s")
    return CaughtUp(messages, alone, beside, awake, most_mib, spent_s)


def publish(flood: Flood, seconds: float) -> Seen:
    return flood.phase("open", RATE_PER_S, DEVICES, seconds).total


def has_ended(sleepers: Sleepers) -> bool:
    """Whether the phase that was begun has."""
    assert sleepers.process.stdout is not None
    return bool(select.select([sleepers.process.stdout], [], [], 0)[0])


def idle(broker: Broker, server: Kafka | None, cores: Cores | None) -> Idle:
    generator = None if cores is None else cores.generator
    with (
        broker.running(None if cores is None else cores.broker, "kafka") as running,
        sleeping(running, generator, sessions=IDLE) as sleepers,
    ):
        before_kib = machine.resident_kib(running.pid)
        joined = sleepers.phase("sleep", 0, LIMIT_S)
        if joined.finished < IDLE:
            raise BadData(f"{joined.finished} of {IDLE} clients were in")
        sleepers.phase("wake", 1, 1.0)
        time.sleep(UNMEASURED_S)
        memory_kib = machine.resident_kib(running.pid) - before_kib
        before_s = kafka_s(server), machine.cpu_s(running.pid)
        time.sleep(IDLE_S)
        after_s = kafka_s(server), machine.cpu_s(running.pid)
    kafka_us, broker_us = (
        1e6 * (after - before) / IDLE_S / IDLE
        for before, after in zip(before_s, after_s, strict=True)
    )
    return Idle(joined.broker_cpu_s, memory_kib / IDLE, broker_us, kafka_us)


def measure(server: Kafka, cores: Cores | None, messages: int, seconds: float) -> Behind:
    """Raises `BadData`, `BrokerFailed`."""
    # Once before with a part of them, so that Kafka's code is compiled.
    few, fewer_s = messages // 4, seconds / 5
    caught_up(OnKafka(server, SLEEPERS, behind=few), server, cores, few, fewer_s)
    on_kafka = OnKafka(server, SLEEPERS, behind=messages)
    found = caught_up(on_kafka, server, cores, messages, seconds)
    idlers = {
        on_kafka.name: idle(OnKafka(server, SLEEPERS), server, cores),
        OnLog.name: idle(OnLog(SLEEPERS), None, cores),
        "flowguard, devices": idle(OnLog(), None, cores),
    }
    return Behind(found, idlers)
