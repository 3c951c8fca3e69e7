"""E1: one publisher as fast as possible to very many subscribers, and everybody else.

Design: 10,000 subscribers over three nodes, after the fan-out test HiveMQ published. Here: one node
on one core. The best static window is found by search among the static policies, in the same run.
"""

from dataclasses import dataclass
from typing import Any

from benchmarks import machine
from benchmarks.checks import Check, Columns, Grid, Report, at_least, at_most
from benchmarks.conditions import Conditions

from .flood import flooded
from .subject import Subject

KEY = "overload-e1"
SUBSCRIBERS = 1_000
PAIRS = 100
PAYLOAD_BYTES = 16
INFLIGHT = 100
"""Of the publisher, in both versions: the design's Receive Maximum."""
GUARDED = "flowguard"
STATIC = ("static-1", "static-10", "static-100")
VERSIONS = {4: "3.1.1", 5: "5.0"}
RATE_SHARE, DRIFT_MAX_MS, BACKGROUND_MAX_MS = 95.0, 50.0, 100.0
WARM_UP_S, MEASURED_S, DRAIN_S = 5.0, 30.0, 30.0


@dataclass(frozen=True)
class Run:
    policy: str
    version: int
    published_per_s: float
    background_p99_ms: float
    background_count: int
    drift_p99_ms: float
    """The worst second's."""
    peak_mib: float
    waiting_mib: float
    """Most bytes in queues and outboxes together."""
    lost: int | None
    """QoS 1 deliveries that never came; None: it did not drain in time."""
    windows: tuple[float, float]


@dataclass(frozen=True)
class FanOut:
    runs: tuple[Run, ...]
    seconds: float

    def of(self, policy: str, version: int) -> Run:
        return next(r for r in self.runs if (r.policy, r.version) == (policy, version))

    def report(self) -> Report:
        checks: list[Check] = []
        for version, name in VERSIONS.items():
            ours = self.of(GUARDED, version)
            best = max((self.of(p, version) for p in STATIC), key=lambda r: r.published_per_s)
            share = 100 * ours.published_per_s / best.published_per_s
            checks += [
                at_least(f"{name}: rate, of the best static window's", share, RATE_SHARE, " %", 1),
                at_most(f"{name}: loop drift, p99", ours.drift_p99_ms, DRIFT_MAX_MS, " ms"),
                at_most(
                    f"{name}: background p99", ours.background_p99_ms, BACKGROUND_MAX_MS, " ms"
                ),
                Check(f"{name}: messages lost", books(ours.lost), "0", ours.lost == 0),
            ]
        return Report(
            KEY,
            f"E1: 1 publisher → {SUBSCRIBERS:,} subscribers",
            f"Asked for: 10,000 subscribers over 3 nodes, 120 s. Scaled to {SUBSCRIBERS:,} "
            f"subscribers on one node, {self.seconds:g} s; QoS 1, {PAYLOAD_BYTES}-byte payload, as "
            f"fast as {INFLIGHT} unacknowledged messages allow; {PAIRS} background "
            "pairs at 1 message/s.",
            tuple(checks),
            (Grid.of(COLUMNS, self.runs),),
        )


COLUMNS: Columns[Run] = {
    "policy": lambda run: run.policy,
    "MQTT": lambda run: VERSIONS[run.version],
    "published /s": lambda run: f"{run.published_per_s:,.1f}",
    "delivered /s": lambda run: f"{run.published_per_s * SUBSCRIBERS:,.0f}",
    "background p99 ms": lambda run: (
        f"{run.background_p99_ms:,.1f}" if run.background_count else "none"
    ),
    "drift p99 ms": lambda run: f"{run.drift_p99_ms:,.1f}",
    "waiting MiB": lambda run: f"{run.waiting_mib:,.1f}",
    "peak MiB": lambda run: f"{run.peak_mib:,.0f}",
    "window": lambda run: f"{run.windows[0]:g}-{run.windows[1]:g}",
    "lost": lambda run: books(run.lost),
}


def books(lost: int | None) -> str:
    return "not drained" if lost is None else f"{lost:,}"


def measure(conditions: Conditions) -> FanOut:
    seconds = conditions.scaled(MEASURED_S)
    runs = [
        measure_one(conditions, policy, version, seconds)
        for version in VERSIONS
        for policy in (GUARDED, *STATIC)
    ]
    return FanOut(tuple(runs), seconds)


def measure_one(conditions: Conditions, policy: str, version: int, seconds: float) -> Run:
    crowd = {
        "subscribers": SUBSCRIBERS,
        "topics": 1,
        "flooders": 1,
        "probes": PAIRS,
        "probe_rate": 1,
        "durable": 0,
        "version": version,
        "payload": PAYLOAD_BYTES,
        "limit": INFLIGHT,
    }
    with flooded(Subject(policy, commit_s=0.0), conditions, **crowd) as (broker, flood):
        flood.phase("closed", 65_535, 1, conditions.scaled(WARM_UP_S, 1.0))
        total = flood.phase("closed", 65_535, 1, seconds).total
        rows = broker.rows(since_s=total.began_s)
        drained = flood.drain(DRAIN_S)
        peak_mib = machine.peak_resident_kib(broker.pid) / 1024
        result = flood.finish()
        return Run(
            policy,
            version,
            total.acknowledged / total.took_s,
            total.probe_delivery.p99,
            total.probe_delivery.count,
            worst(rows, "drift_p99_ms"),
            peak_mib,
            max((r["outbox_mib"] + r["queues_mib"] for r in rows), default=0.0),
            result.acknowledged * SUBSCRIBERS - result.delivered if drained else None,
            (min((r["window"] for r in rows), default=0.0), worst(rows, "window")),
        )


def worst(rows: list[dict[str, Any]], key: str) -> float:
    return max((row[key] for row in rows), default=0.0)
