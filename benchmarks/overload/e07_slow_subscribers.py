"""E7: one subscriber in a hundred reads a kilobyte per second. What do the others notice?

The same load twice, in fresh processes: everybody reads, and then one in a hundred reads slowly.
"""

from dataclasses import dataclass

from benchmarks import machine
from benchmarks.checks import Check, Columns, Grid, Report, at_most, none_of
from benchmarks.conditions import Conditions

from .flood import flooded
from .subject import Subject

KEY = "overload-e7"
SUBSCRIBERS = 1_000
SLOW = SUBSCRIBERS // 100
SLOW_BYTES_PER_S = 1_024
RATE_PER_S = 50.0
PAYLOAD_BYTES = 1_024
QUEUE_MESSAGES = 300
"""Of each subscriber: small, so that slow ones meet their bound within the run."""
OUTBOX_BYTES = 64 * 1024
P99_RATIO_MAX = 1.2
MEASURED_S = 30.0
OBJECTS = 3.0
"""Python objects around a kilobyte: what a queued message costs over what it counts."""


@dataclass(frozen=True)
class Run:
    slow: int
    p50_ms: float
    p99_ms: float
    """Publish to delivery, subscribers that read."""
    resident_mib: float
    grown_mib: float
    dropped: int
    lost_connections: int


@dataclass(frozen=True)
class SlowSubscribers:
    alone: Run
    beside: Run
    seconds: float

    @property
    def cap_mib(self) -> float:
        """What the slow ones may hold: queue and outbox of each at its bound."""
        queued = QUEUE_MESSAGES * (PAYLOAD_BYTES + 250) * OBJECTS
        return SLOW * (queued + OUTBOX_BYTES + PAYLOAD_BYTES * OBJECTS) / 2**20

    def report(self) -> Report:
        ratio = self.beside.p99_ms / self.alone.p99_ms if self.alone.p99_ms else 0.0
        return Report(
            KEY,
            f"E7: {SLOW} of {SUBSCRIBERS:,} subscribers read 1 KB/s",
            f"Asked for: 1 % of 10,000. Scaled to 1 % of {SUBSCRIBERS:,}, {self.seconds:g} s; "
            f"{RATE_PER_S:g} messages/s of {PAYLOAD_BYTES} bytes to all, QoS 1; queues of "
            f"{QUEUE_MESSAGES} messages, so that their bound is met.",
            (
                at_most("others' p99, of the run without slow ones", ratio, P99_RATIO_MAX, "x", 2),
                at_most(
                    "memory that the slow ones add",
                    self.beside.resident_mib - self.alone.resident_mib,
                    self.cap_mib,
                    " MiB",
                    1,
                ),
                none_of("connections lost", self.beside.lost_connections),
                Check(
                    "the test bites: queues of slow ones overflowed",
                    f"{self.beside.dropped:,} dropped",
                    "> 0",
                    self.beside.dropped > 0,
                ),
                Check("named by `flowguard explain`", "not part of this run", "named", None),
            ),
            (Grid.of(COLUMNS, (self.alone, self.beside)),),
        )


COLUMNS: Columns[Run] = {
    "slow ones": lambda run: f"{run.slow}",
    "p50 ms": lambda run: f"{run.p50_ms:,.1f}",
    "p99 ms": lambda run: f"{run.p99_ms:,.1f}",
    "memory MiB": lambda run: f"{run.resident_mib:,.1f}",
    "grown MiB": lambda run: f"{run.grown_mib:,.1f}",
    "dropped": lambda run: f"{run.dropped:,}",
    "lost connections": lambda run: f"{run.lost_connections}",
}


def measure(conditions: Conditions) -> SlowSubscribers:
    seconds = conditions.scaled(MEASURED_S, 5.0)
    runs = [measure_one(conditions, slow, seconds) for slow in (0, SLOW)]
    return SlowSubscribers(runs[0], runs[1], seconds)


def measure_one(conditions: Conditions, slow: int, seconds: float) -> Run:
    crowd = {
        "subscribers": SUBSCRIBERS,
        "topics": 1,
        "flooders": 1,
        "probes": 0,
        "durable": 0,
        "payload": PAYLOAD_BYTES,
        "slow": slow,
        "slow_bytes": SLOW_BYTES_PER_S,
    }
    settings = {"FLOWGUARD_SESSION__QUEUE_MESSAGES_MAX": str(QUEUE_MESSAGES)}
    subject = Subject("flowguard", commit_s=0.0, settings=settings)
    with flooded(subject, conditions, **crowd) as (broker, flood):
        flood.phase("open", RATE_PER_S, 1, 1)
        before_kib = machine.resident_kib(broker.pid)
        total = flood.phase("open", RATE_PER_S, 1, seconds).total
        flood.phase("idle", seconds=2)
        rows = broker.rows()
        resident_kib = machine.resident_kib(broker.pid)
        return Run(
            slow,
            total.delivery.p50,
            total.delivery.p99,
            resident_kib / 1024,
            (resident_kib - before_kib) / 1024,
            rows[-1]["dropped"] if rows else 0,
            flood.finish().lost_connections,
        )
