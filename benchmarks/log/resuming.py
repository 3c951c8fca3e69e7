"""E11 on the real broker: a crowd resumes at once, each with much behind it, while others publish.

The same live traffic twice, at a share of what the broker can do: alone, and while sessions read
the log as fast as they are sent. What waited for them is in the log once. And the same crowd when
nobody publishes: of what it has then, live traffic leaves it a share of the processor.
"""

from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.checks import Columns, Grid, Report, at_least, at_most
from benchmarks.conditions import Conditions
from benchmarks.overload import flood as floods
from benchmarks.overload.flood import flooding
from benchmarks.runner import BadData

from .sleepers import THRESHOLD, Filled, Phase, sleeping

KEY: Final = "log-overload"
SESSIONS: Final = 1_000
BEHIND: Final = 100_000
SHARE: Final = 0.3
"""Live traffic, of what the broker can do."""
CROWD: Final[dict[str, float]] = {
    "subscribers": 4,
    "topics": 4,
    "flooders": 100,
    "probes": 20,
    "probe_rate": 10,
    "payload": 112,
}
OUTSTANDING: Final = 4
PEAK_S: Final = 5.0
LIVE_S: Final = 100.0
"""Twice as long as it takes to fill the store's write-ahead log, which keeps all waiting for a
moment: half a minute has that or has it not."""
UNDISTURBED_S: Final = 30.0
P99_MAX: Final = 2.0
OF_REST_MIN: Final = 1 / 1.3
"""As in E11 of the simulator: a replay takes 1.3 times as long as it would at best."""
MEMORY_MIB: Final = 256.0
"""For each session a page of 250 messages, and what is on its way: that is 0.1 MiB or so."""


@dataclass(frozen=True)
class Resuming:
    sessions: int
    behind: int
    peak_per_s: float
    alone: floods.Phase
    beside: floods.Phase
    awake: Phase
    undisturbed: Phase
    """The same crowd, when nobody publishes."""
    before_mib: float
    most_mib: float

    @property
    def rest_per_s(self) -> float:
        """Messages per second that what live traffic leaves of a core would replay."""
        left = 1.0 - self.alone.total.broker_cpu_s / self.alone.total.took_s
        return left * _per_s(self.undisturbed)

    def report(self) -> Report:
        alone, beside = self.alone.total, self.beside.total
        return Report(
            KEY,
            "The log: a crowd resumes, E11 on the real broker",
            f"{self.sessions:,} sessions come back at once, {self.behind:,} messages behind each "
            f"of them, stored once; live traffic at {SHARE:.0%} of the {self.peak_per_s:,.0f} "
            "messages per second that the broker takes when it has nothing else to do.",
            (
                at_most(
                    "p99 of live deliveries, of that without the crowd",
                    beside.delivery.p99 / alone.delivery.p99,
                    P99_MAX,
                    "x",
                    2,
                ),
                at_least(
                    f"replay, messages /s (the rest of the core: {self.rest_per_s:,.0f})",
                    _per_s(self.awake),
                    OF_REST_MIN * self.rest_per_s,
                ),
                at_most(
                    "memory that the crowd takes",
                    self.most_mib - self.before_mib,
                    MEMORY_MIB,
                    " MiB",
                ),
                at_least(
                    "live messages delivered, of those published",
                    beside.delivered / beside.sent,
                    0.99,
                    digits=3,
                ),
            ),
            (
                Grid.of(COLUMNS, (("alone", self.alone), ("while they replay", self.beside))),
                Grid(
                    (
                        "replay",
                        "messages /s",
                        "without live traffic",
                        "the rest of the core would",
                        "memory before, MiB",
                        "most, MiB",
                    ),
                    (
                        (
                            f"{self.awake.first_ms.count:,} sessions in, the last "
                            f"after {self.awake.first_ms.max / 1e3:.1f} s, "
                            f"{self.awake.refusals:,} refused before",
                            f"{_per_s(self.awake):,.0f}",
                            f"{_per_s(self.undisturbed):,.0f}",
                            f"{self.rest_per_s:,.0f}",
                            f"{self.before_mib:.0f}",
                            f"{self.most_mib:.0f}",
                        ),
                    ),
                ),
            ),
        )


COLUMNS: Columns[tuple[str, floods.Phase]] = {
    "live traffic": lambda row: row[0],
    "sent /s": lambda row: f"{row[1].total.sent / row[1].total.took_s:,.0f}",
    "delivered /s": lambda row: f"{row[1].total.delivered / row[1].total.took_s:,.0f}",
    "delivery p50 ms": lambda row: f"{row[1].total.delivery.p50:.1f}",
    "p99 ms": lambda row: f"{row[1].total.delivery.p99:.1f}",
    "in the first, the median, the worst second": lambda row: _by_second(row[1]),
    "PUBACK p99 ms": lambda row: f"{row[1].total.acknowledgement.p99:.1f}",
    "background pairs p99 ms": lambda row: f"{row[1].total.probe_delivery.p99:.1f}",
    "CPU of the broker": lambda row: f"{row[1].total.broker_cpu_s / row[1].total.took_s:.2f}",
}


def _per_s(phase: Phase) -> float:
    """Messages of a replay."""
    return phase.received / phase.took_s


def _by_second(phase: floods.Phase) -> str:
    """The p99 of deliveries in three of its seconds."""
    p99_ms = [second.delivery.p99 for second in phase.seconds]
    return " / ".join(f"{each:.1f}" for each in (p99_ms[0], median(p99_ms), max(p99_ms)))


def measure(conditions: Conditions) -> Resuming:
    sessions, behind = conditions.count(SESSIONS), conditions.count(BEHIND)
    subject = Filled(settings={THRESHOLD: "16"}, sessions=sessions, messages=behind)
    core = conditions.generator_core
    with (
        subject.started(conditions.broker_core) as broker,
        flooding(broker.port, broker.pid, core, **CROWD) as flood,
        sleeping(broker, core, sessions=sessions, at_once=sessions) as crowd,
    ):
        active = int(CROWD["flooders"])
        peak = flood.phase("closed", OUTSTANDING, active, conditions.scaled(PEAK_S)).total
        flood.drain(10)
        rate, seconds = SHARE * peak.goodput_per_s, conditions.scaled(LIVE_S)
        alone = flood.phase("open", rate, active, seconds)
        before_mib = broker.rows()[-1]["resident_mib"]
        crowd.begin("wake", behind, seconds)
        beside = flood.phase("open", rate, active, seconds)
        awake = crowd.end()
        most_mib = max(row["resident_mib"] for row in broker.rows())
    with (
        subject.started(conditions.broker_core) as broker,
        sleeping(broker, core, sessions=sessions, at_once=sessions) as crowd,
    ):
        undisturbed = crowd.phase("wake", behind, conditions.scaled(UNDISTURBED_S))
    if not awake.first_ms.count or not undisturbed.received:
        raise BadData("nobody has got anything")
    return Resuming(
        sessions,
        behind,
        peak.goodput_per_s,
        alone,
        beside,
        awake,
        undisturbed,
        before_mib,
        most_mib,
    )
