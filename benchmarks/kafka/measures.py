"""What is asked of each broker: what a message costs, and how late it is."""

from dataclasses import dataclass
from typing import Final

from benchmarks.brokers import Broker
from benchmarks.kafka.brokers import PAYLOAD_BYTES
from benchmarks.kafka.servers import Kafka
from benchmarks.machine import Cores
from benchmarks.overload.flood import Flood, Latency, flooding
from benchmarks.runner import BadData

DEVICES: Final = 1_000
OUTSTANDING: Final = 4
"""Messages of each device that are not acknowledged, where all publish as fast as they can."""
RATE_PER_S: Final = 2_000
WARM_UP_S: Final = 0.5
DRAIN_S: Final = 60.0
QUIET_S: Final = 0.7


@dataclass(frozen=True)
class Cost:
    """What devices published as fast as they could, until the applications had all of it."""

    messages: int
    """In and out."""
    took_s: float
    broker_s: float
    """Processor time; the same for Kafka."""
    kafka_s: float
    acknowledgement: Latency
    """At RATE_PER_S, ms, and so is the time until an application has a message."""
    delivery: Latency

    @property
    def broker_us(self) -> float:
        return 1e6 * self.broker_s / self.messages

    @property
    def kafka_us(self) -> float:
        return 1e6 * self.kafka_s / self.messages

    @property
    def per_cpu_s(self) -> float:
        """Messages in and out per second of both."""
        return self.messages / (self.broker_s + self.kafka_s)


def kafka_s(server: Kafka | None) -> float:
    """Processor time of all nodes."""
    return 0.0 if server is None else sum(node.cpu_s() for node in server.nodes)


def cost_of(
    broker: Broker, server: Kafka | None, cores: Cores | None, applications: int, seconds: float
) -> Cost:
    """Each message is for all applications; `server`: the Kafka it needs.

    Raises `BadData`, `BrokerFailed`."""
    generator = None if cores is None else cores.generator
    crowd: dict[str, float] = {
        "subscribers": applications,
        "topics": 1,
        "flooders": DEVICES,
        "probes": 0,
        "payload": PAYLOAD_BYTES,
    }
    with (
        broker.running(None if cores is None else cores.broker, "kafka") as running,
        flooding(running.port, running.pid, generator, **crowd) as flood,
    ):
        flood.phase("closed", OUTSTANDING, DEVICES, WARM_UP_S)
        drain(flood)
        first, before_s = len(flood.phases), kafka_s(server)
        flood.phase("closed", OUTSTANDING, DEVICES, seconds)
        drain(flood)
        spent_s = kafka_s(server) - before_s
        totals = [phase.total for phase in flood.phases[first:]]
        calm = flood.phase("open", RATE_PER_S, DEVICES, seconds).total
        drain(flood)
        result = flood.finish()
    if result.gaps or result.disordered or result.lost_connections:
        raise BadData(f"{result.gaps} gaps, {result.disordered} disordered: {result.first_error}")
    if result.delivered != result.acknowledged * applications:
        raise BadData(f"{result.acknowledged} acknowledged, {result.delivered} delivered")
    busy = [total for total in totals if total.acknowledged or total.delivered]
    return Cost(
        sum(total.acknowledged + total.delivered for total in totals),
        sum(total.took_s for total in busy),
        sum(total.broker_cpu_s for total in totals),
        spent_s,
        calm.acknowledgement,
        calm.delivery,
    )


def drain(flood: Flood) -> None:
    """Until nothing has come for QUIET_S."""
    for _ in range(round(DRAIN_S / QUIET_S)):
        total = flood.phase("idle", seconds=QUIET_S).total
        if not total.outstanding and not total.delivered:
            return
    raise BadData(f"messages are still under way after {DRAIN_S:.0f} s")
