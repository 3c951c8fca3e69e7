"""Real time through the log: who is here and keeps up gets a logged message by its queue."""

from dataclasses import dataclass
from typing import Final

from benchmarks.checks import Columns, Grid, Report
from benchmarks.conditions import Conditions
from benchmarks.overload.flood import Seen, flooded
from benchmarks.overload.subject import Subject
from benchmarks.runner import BadData

from .sleepers import PAYLOAD_BYTES, THRESHOLD

KEY: Final = "log-fan-out"
SUBSCRIBERS: Final = 100
PUBLISHERS: Final = 4
OUTSTANDING: Final = 10
WHERE: Final = {
    "log": Subject(on_disk=True, settings={THRESHOLD: "16"}),
    "client queues": Subject(on_disk=True, settings={THRESHOLD: "0"}),
    "memory": Subject(commit_s=0.0),
}


@dataclass(frozen=True)
class FanOut:
    where: str
    seen: Seen

    @property
    def per_cpu_s(self) -> float:
        """Deliveries."""
        return self.seen.delivered / self.seen.broker_cpu_s


COLUMNS: Columns[FanOut] = {
    "where": lambda run: run.where,
    "deliveries /s": lambda run: f"{run.seen.delivered / run.seen.took_s:,.0f}",
    "per CPU second": lambda run: f"{run.per_cpu_s:,.0f}",
    "delivery p50 ms": lambda run: f"{run.seen.delivery.p50:.1f}",
    "p99 ms": lambda run: f"{run.seen.delivery.p99:.1f}",
}


@dataclass(frozen=True)
class FanOuts:
    runs: tuple[FanOut, ...]

    def report(self) -> Report:
        return Report(
            KEY,
            "The log: fan-out in real time",
            f"{PUBLISHERS} publishers, {OUTSTANDING} messages of {PAYLOAD_BYTES} bytes on the way "
            f"of each, {SUBSCRIBERS} durable subscribers to each message, all of them here, QoS 1.",
            (),
            (Grid.of(COLUMNS, self.runs),),
        )


def measure(conditions: Conditions) -> FanOuts:
    runs = []
    for where, subject in WHERE.items():
        with flooded(
            subject,
            conditions,
            subscribers=SUBSCRIBERS,
            topics=1,
            flooders=PUBLISHERS,
            probes=0,
            payload=PAYLOAD_BYTES,
        ) as (_, flood):
            flood.phase("closed", OUTSTANDING, PUBLISHERS, 1)
            seconds = conditions.scaled(10)
            total = flood.phase("closed", OUTSTANDING, PUBLISHERS, seconds).total
            flood.drain(10)
            books = flood.finish()
        if books.gaps or books.disordered or books.lost_connections:
            raise BadData(f"{where}: {books}")
        runs.append(FanOut(where, total))
    return FanOuts(tuple(runs))
