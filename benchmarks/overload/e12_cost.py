"""E12: what protection costs: processor time per message, a decision, an idle client's state.

The same load with the guard and without it (policy `unlimited`), interleaved, a fresh process for
every sample; the unit is messages per second of the broker's processor time, which survives other
programs on the machine. Decisions and bytes are measured on the objects themselves.
"""

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from benchmarks.checks import Check, Columns, Grid, Report, at_most
from benchmarks.conditions import Conditions
from flowguard.config import FlowSettings
from flowguard.flow import AdmissionWindow, Arrival, ConnectGate, NodeWindow, Verdict

from .flood import flooded, flooding
from .subject import Subject

KEY = "overload-e12"
GUARDED, UNGUARDED = "flowguard", "unlimited"
PAIRS = 100
LOAD = {"flooders": PAIRS, "subscribers": PAIRS, "topics": PAIRS, "probes": 0, "durable": 0}
OUTSTANDING = 10
LOAD_SHARE = 0.7
IDLE_CLIENTS = 1_000
REPEAT = 5
MEASURED_S = 6.0
COST_MAX, DECISION_MAX_NS, CLIENT_BYTES_MAX = 3.0, 5_000.0, 512.0
DECISIONS = 20_000
CLIENTS = 10_000


@dataclass(frozen=True)
class Sample:
    policy: str
    full_per_cpu_s: float
    """Messages in per second of broker processor time, closed loop at full speed."""
    loaded_per_cpu_s: float
    """The same at 70 % of what the unguarded broker can do."""
    loaded_p99_ms: float
    idle_cores: float
    """With 1,000 connected clients that say nothing."""


@dataclass(frozen=True)
class Cost:
    samples: tuple[Sample, ...]
    packet_ns: float
    """A PUBLISH: is there room, admit, settle."""
    connect_ns: float
    """A CONNECT: offer, settle."""
    client_bytes: float

    def median(self, policy: str, key: str) -> float:
        return median(self.values(policy, key))

    def values(self, policy: str, key: str) -> list[float]:
        return [float(getattr(sample, key)) for sample in self.samples if sample.policy == policy]

    def cost(self, key: str) -> float:
        """What the guard takes away, percent: the median of neighbouring samples."""
        both = zip(self.values(GUARDED, key), self.values(UNGUARDED, key), strict=True)
        return 100 * (1 - median(guarded / unguarded for guarded, unguarded in both))

    def spread(self, key: str) -> float:
        """How far samples without the guard lie from each other, percent: what is noise."""
        values = self.values(UNGUARDED, key)
        return 100 * (max(values) / min(values) - 1)

    def report(self) -> Report:
        checks: list[Check] = [
            at_most(
                f"throughput {where} (samples of one kind differ by {self.spread(key):.0f} %)",
                self.cost(key),
                COST_MAX,
                " %",
                1,
            )
            for key, where in (
                ("full_per_cpu_s", "at full load"),
                ("loaded_per_cpu_s", f"at {LOAD_SHARE:.0%} load"),
            )
        ]
        checks += [
            at_most("admission of a packet", self.packet_ns, DECISION_MAX_NS, " ns"),
            at_most("admission of a CONNECT", self.connect_ns, DECISION_MAX_NS, " ns"),
            at_most("flow state of an idle client", self.client_bytes, CLIENT_BYTES_MAX, " bytes"),
        ]
        columns: Columns[str] = {
            "policy": str,
            "messages per CPU second, full load": lambda policy: (
                f"{self.median(policy, 'full_per_cpu_s'):,.0f}"
            ),
            "at 70 % load": lambda policy: f"{self.median(policy, 'loaded_per_cpu_s'):,.0f}",
            "p99 ms there": lambda policy: f"{self.median(policy, 'loaded_p99_ms'):,.2f}",
            f"cores with {IDLE_CLIENTS:,} idle clients": lambda policy: (
                f"{self.median(policy, 'idle_cores'):.4f}"
            ),
        }
        return Report(
            KEY,
            "E12: what protection costs",
            f"Asked for: idle and 70 % load, guard on and off. Done with {PAIRS} pairs, QoS 1, "
            f"{OUTSTANDING} outstanding, n = {REPEAT}, interleaved; a store that never waits.",
            tuple(checks),
            (Grid.of(columns, (GUARDED, UNGUARDED)),),
        )


def measure(conditions: Conditions) -> Cost:
    seconds = conditions.scaled(MEASURED_S, 1.0)
    rate = LOAD_SHARE * full_speed(conditions, UNGUARDED, seconds)[1]
    samples = [
        measure_one(conditions, policy, rate, seconds)
        for _ in range(REPEAT)
        for policy in (GUARDED, UNGUARDED)
    ]
    return Cost(tuple(samples), packet_ns(), connect_ns(), client_bytes())


def measure_one(conditions: Conditions, policy: str, rate: float, seconds: float) -> Sample:
    full, _ = full_speed(conditions, policy, seconds)
    core = conditions.generator_core
    with Subject(policy, commit_s=0.0).started(conditions.broker_core) as broker:
        with flooding(broker.port, broker.pid, core, **LOAD, payload=16) as flood:
            flood.phase("open", rate, PAIRS, 1)
            loaded = flood.phase("open", rate, PAIRS, seconds).total
        idle = {"flooders": IDLE_CLIENTS, "subscribers": 0, "probes": 0}
        with flooding(broker.port, broker.pid, core, **idle) as flood:
            flood.phase("idle", seconds=1)
            resting = flood.phase("idle", seconds=seconds).total
    return Sample(
        policy,
        full,
        loaded.acknowledged / loaded.broker_cpu_s,
        loaded.acknowledgement.p99,
        resting.broker_cpu_s / resting.took_s,
    )


def full_speed(conditions: Conditions, policy: str, seconds: float) -> tuple[float, float]:
    """Messages per second of processor time, and by the clock."""
    with flooded(Subject(policy, commit_s=0.0), conditions, **LOAD, payload=16) as (_, flood):
        flood.phase("closed", OUTSTANDING, PAIRS, 1)
        total = flood.phase("closed", OUTSTANDING, PAIRS, seconds).total
    return total.acknowledged / total.broker_cpu_s, total.acknowledged / total.took_s


# --- the objects themselves ----------------------------------------------------------------------


def packet_ns() -> float:
    """One PUBLISH through a client's window."""
    window = AdmissionWindow(NodeWindow())

    def decide() -> None:
        if window.room() > 0:
            window.admit()
            window.settle()

    return timed_ns(decide)


def connect_ns() -> float:
    """One CONNECT through a gate with room."""
    gate: ConnectGate[str] = ConnectGate(FlowSettings())
    arrival = Arrival("client", 1_000)

    def decide() -> None:
        if gate.offer("client", arrival, 0.0) is Verdict.ADMIT:
            gate.settle("client", 0.0)

    return timed_ns(decide)


def timed_ns(decide: Callable[[], None]) -> float:
    """The best of five rounds, the price of the loop included."""
    best_ns = float("inf")
    for _ in range(5):
        started_ns = time.perf_counter_ns()
        for _ in range(DECISIONS):
            decide()
        best_ns = min(best_ns, (time.perf_counter_ns() - started_ns) / DECISIONS)
    return best_ns


def client_bytes() -> float:
    """Flow state of a client that is connected and says nothing, the list's place included."""
    node = NodeWindow()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        windows = [AdmissionWindow(node) for _ in range(CLIENTS)]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (after - before) / len(windows)
