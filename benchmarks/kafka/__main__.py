"""`python -m benchmarks.kafka`: one run, one Kafka, one generator."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated, Final

import typer
from rich.console import Console

from benchmarks import machine, pages
from benchmarks.brokers import Broker, BrokerFailed
from benchmarks.checks import Check, Columns, Grid, Report, at_least
from benchmarks.kafka import behind
from benchmarks.kafka.brokers import FLOOD, PAYLOAD_BYTES, Literal, OnKafka, OnLog, kafka_server
from benchmarks.kafka.measures import DEVICES, OUTSTANDING, RATE_PER_S, Cost, cost_of
from benchmarks.kafka.servers import Kafka
from benchmarks.machine import Cores
from benchmarks.runner import BadData
from flowguard.cli.descriptors import use_all_descriptors

KEY: Final = "kafka"
APPLICATIONS: Final = (1, 4)
ACKS: Final = ("1", "all")


@dataclass
class Found:
    """Samples by the number of applications and the name of the broker."""

    nodes: int
    seconds: float
    samples: dict[int, dict[str, list[Cost]]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def report(self) -> Report:
        rows = [
            (count, name, costs)
            for count, named in self.samples.items()
            for name, costs in named.items()
        ]
        nodes = "A Kafka of one node" if self.nodes == 1 else f"A Kafka of {self.nodes} nodes"
        return Report(
            KEY,
            "Applications in Kafka, beside TBMQ's way and the log",
            f"{DEVICES:,} devices publish messages of {PAYLOAD_BYTES} bytes with QoS 1, with "
            f"{OUTSTANDING} outstanding each, for {self.seconds:g} s; all applications get all of "
            "them, and time counts until they have. "
            f"Then {RATE_PER_S:,} messages per second, for latencies: from the PUBLISH to its "
            f"PUBACK, and to the application. {nodes}; medians.",
            tuple(self._checks()),
            (Grid.of(COLUMNS, rows),),
            tuple(self.missing),
        )

    def _checks(self) -> list[Check]:
        checks = []
        for count, named in self.samples.items():
            ours = named.get(OnKafka.name)
            for acks in ACKS:
                literal = named.get(Literal.title(acks))
                if ours and literal:
                    ratio = middle(ours, per_cpu_s) / middle(literal, per_cpu_s)
                    what = f"messages per CPU second of broker and Kafka, {applications(count)}, "
                    checks.append(at_least(f"{what}by {Literal.title(acks)}", ratio, 1, "x", 2))
        return checks


def per_cpu_s(cost: Cost) -> float:
    return cost.per_cpu_s


def middle(costs: list[Cost], figure: Callable[[Cost], float]) -> float:
    return median(map(figure, costs))


def applications(count: int) -> str:
    return f"{count} application{'s' if count > 1 else ''}"


def shown(figure: Callable[[Cost], float], digits: int = 1) -> Callable[["Row"], str]:
    return lambda row: f"{middle(row[2], figure):,.{digits}f}"


def spread(row: "Row") -> str:
    values = [cost.per_cpu_s / 1e3 for cost in row[2]]
    return f"{median(values):,.1f} ({min(values):,.1f}-{max(values):,.1f})"


Row = tuple[int, str, list[Cost]]
COLUMNS: Columns[Row] = {
    "": lambda row: applications(row[0]),
    "broker": lambda row: row[1],
    "n": lambda row: str(len(row[2])),
    "µs of the broker per message in or out": shown(lambda cost: cost.broker_us),
    "of Kafka": shown(lambda cost: cost.kafka_us),
    "1,000 messages in and out per CPU second of the broker": shown(
        lambda cost: 1e-3 / (cost.broker_us * 1e-6)
    ),
    "of both (range)": spread,
    "by the clock, 1,000/s": shown(lambda cost: 1e-3 * cost.messages / cost.took_s),
    "PUBACK p50 ms": shown(lambda cost: cost.acknowledgement.p50),
    "p99 ms": shown(lambda cost: cost.acknowledgement.p99),
    "delivery p50 ms": shown(lambda cost: cost.delivery.p50),
    "its p99 ms": shown(lambda cost: cost.delivery.p99),
}


def measure(found: Found, server: Kafka, cores: Cores | None, repeat: int, screen: Console) -> None:
    """All brokers in turn; the first one once before, so that Kafka's code is compiled."""
    on_kafka: list[Broker] = [OnKafka(server, FLOOD), *(Literal(server, acks) for acks in ACKS)]
    brokers = [*((broker, server) for broker in on_kafka), (OnLog(FLOOD), None)]
    cost_of(on_kafka[0], server, cores, APPLICATIONS[-1], found.seconds)
    with pages.progress(screen) as progress:
        task = progress.add_task("brokers", total=len(APPLICATIONS) * repeat * len(brokers))
        for count in APPLICATIONS:
            for _ in range(repeat):
                for broker, needed in brokers:
                    try:
                        cost = cost_of(broker, needed, cores, count, found.seconds)
                    except (BadData, BrokerFailed) as error:
                        found.missing.append(f"{broker.name}, {applications(count)}: {error}")
                    else:
                        named = found.samples.setdefault(count, {})
                        named.setdefault(broker.name, []).append(cost)
                    progress.advance(task)


def main(
    only: Annotated[str, typer.Option(help=f"{KEY} or {behind.KEY}; else both.")] = "",
    nodes: Annotated[int, typer.Option(min=1, max=3, help="Of Kafka.")] = 1,
    seconds: Annotated[float, typer.Option(min=1, help="Of each measurement of a cost.")] = 2.0,
    repeat: Annotated[int, typer.Option(min=1, help="Samples of each broker.")] = 2,
    messages: Annotated[int, typer.Option(min=1_000, help="Behind.")] = 1_000_000,
    calm_s: Annotated[float, typer.Option(min=1, help="Of devices alone, then not.")] = 25.0,
    write: Annotated[bool, typer.Option("--write", help="Write benchmarks/results.")] = False,
) -> None:
    """Measure applications in Kafka beside TBMQ's way to them, and beside the log; then one that
    is far behind, and many that are idle."""
    use_all_descriptors()
    screen, cores = pages.console(), machine.choose_cores()
    where = f"{machine.describe()}, a disk that syncs 4 KiB in {machine.sync_ms():.2f} ms"
    folder = pages.RESULTS if write else None
    with kafka_server(nodes, None if cores is None else cores.generator) as server:
        if only != behind.KEY:
            found = Found(nodes, seconds)
            measure(found, server, cores, repeat, screen)
            pages.tell(found, where, screen, folder)
        if only != KEY:
            with screen.status("an application that is far behind, and many that are idle ..."):
                result = behind.measure(server, cores, messages, calm_s)
            pages.tell(result, where, screen, folder)


if __name__ == "__main__":
    typer.run(main)
