"""How long the event loop is away under load, while RocksDB flushes and compacts.

Pairs with durable sessions, as many messages as they can. Whoever asks the loop to be woken in
2 ms notes how late that was: work of the loop itself, the interpreter's lock in the hands of the
commit thread, or the core in the hands of RocksDB's threads. The same load without a disk shows
how much of it is the load's.

Broker and generator share all cores, as programs do; and once the broker has a single one, where
the loop waits for the time slices that the kernel gives to RocksDB's threads.
"""

import subprocess
import time
from dataclasses import dataclass
from typing import Any, Final

from benchmarks import machine
from benchmarks.brokers import Running
from benchmarks.build import build, options
from benchmarks.checks import Check, Grid, Report, at_most, none_of
from benchmarks.conditions import Conditions
from benchmarks.overload.subject import Subject, rows_of
from benchmarks.runner import BadData, number, parse_line, refuse_errors
from benchmarks.scenarios import PIPELINED, UNDELIVERED

KEY: Final = "store-drift"
SECONDS: Final = 10.0
WARMUP_S: Final = 1.5
ROW_S: Final = 0.1
"""How exactly the measured time is cut out."""
LOADS: Final = ((100, 1024), (1_000, 1024), (100, 65_536))
"""Pairs, and bytes of a payload."""
STORES: Final = ("memory", "rocks")
ONE_CORE: Final = (1_000, 1024)
"""The load that runs on a single core as well."""
WRITE_BUFFER_BYTES: Final = 4 * 1024 * 1024
"""Less than by default: tables are written, and compacted, all the time."""
BOUND_MS: Final = 20.0
EVENTS: Final = {"flushes": '"flush_finished"', "compactions": '"compaction_finished"'}
"""What RocksDB writes into its log."""


@dataclass(frozen=True)
class Drift:
    """One run; `late_ms` ascending."""

    store: str
    pairs: int
    payload_bytes: int
    one_core: bool
    late_ms: tuple[float, ...]
    denied_ms: float
    """Of the latest: how long the kernel gave the loop's core to others."""
    messages_per_s: float
    events: dict[str, int]

    def share_ms(self, share: float) -> float:
        return self.late_ms[min(int(share * len(self.late_ms)), len(self.late_ms) - 1)]


@dataclass(frozen=True)
class Drifts:
    seconds: float
    runs: tuple[Drift, ...]

    def report(self) -> Report:
        header = (
            *("pairs", "payload B", "store", "cores", "in + out /s", *EVENTS),
            *("away p50 ms", "p99 ms", "max ms", "core denied meanwhile ms"),
        )
        rows = []
        for run in self.runs:
            late = (f"{run.share_ms(share):.1f}" for share in (0.5, 0.99, 1.0))
            events = (str(run.events[event]) for event in EVENTS)
            load = f"{run.pairs:,}", f"{run.payload_bytes:,}"
            cores = "one" if run.one_core else "all"
            head = *load, run.store, cores, f"{run.messages_per_s:,.0f}"
            rows.append((*head, *events, *late, f"{run.denied_ms:.1f}"))
        return Report(
            KEY,
            "Store: how long the event loop is away",
            f"Pairs with durable sessions, QoS 1, {PIPELINED} outstanding, as fast as they can "
            f"for {self.seconds:g} s; broker and generator share all cores, or have one each; "
            f"tables of {WRITE_BUFFER_BYTES // 1024**2} MiB, so that RocksDB compacts all the "
            "time.",
            tuple(self._checks()),
            (Grid(header, tuple(rows)),),
        )

    def _checks(self) -> list[Check]:
        checks = []
        for run in self.runs:
            if run.store != "memory":
                where = ", one core" if run.one_core else ""
                what = f"loop away, {run.pairs:,} pairs, {run.payload_bytes:,} bytes{where}, max"
                checks.append(at_most(what, run.share_ms(1), BOUND_MS, " ms"))
                idle = sum(not count for count in run.events.values())
                what = f"the test bites: kinds of {' and '.join(EVENTS)} that never happened"
                checks.append(none_of(what, idle))
        return checks


def generate(
    running: Running, pairs: int, payload_bytes: int, seconds: float, core: int | None
) -> dict[str, Any]:
    """Runs the generator; its result, and when its measured window began and ended."""
    values = {
        "port": running.port,
        "broker-pid": running.pid,
        "count": pairs,
        "qos": 1,
        "w": PIPELINED,
        "e": UNDELIVERED,
        "payload": payload_bytes,
        "durable": 1,
        "warmup": WARMUP_S,
        "seconds": seconds,
    }
    found: dict[str, Any] = {}
    with (
        machine.pinned(core),
        subprocess.Popen(
            [str(build("loadgen")), "pairs", *options(values)], stdout=subprocess.PIPE, text=True
        ) as generator,
    ):
        assert generator.stdout is not None
        for line in generator.stdout:
            event = parse_line(line)
            found |= event | {f"{event['event']}_at_s": time.monotonic()}
    if found.get("event") != "result":
        raise BadData("the generator gave no result")
    refuse_errors(found)
    return found


def measure_one(
    conditions: Conditions, store: str, load: tuple[int, int], seconds: float, *, one_core: bool
) -> Drift:
    pairs, payload_bytes = load
    cores = conditions.cores if one_core else None
    settings = {"FLOWGUARD_STORE__WRITE_BUFFER_BYTES": str(WRITE_BUFFER_BYTES)}
    on_disk = store != "memory"
    broker = Subject(settings=settings, commit_s=0.0, on_disk=on_disk, row_s=ROW_S)
    with broker.running(cores.broker if cores else None, KEY) as running:
        core = cores.generator if cores else None
        found = generate(running, pairs, payload_bytes, seconds, core)
        log = running.log.parent / "data" / "LOG"
        text = log.read_text(errors="replace") if on_disk else ""
        rows = rows_of(running.log)
    looks = [
        look
        for row in rows
        if found["start_at_s"] <= row["at_s"] <= found["end_at_s"]
        for look in zip(row["late_ms"], row["denied_ms"], strict=True)
    ]
    if not looks:
        raise BadData("the broker did not say how late it was")
    return Drift(
        store,
        pairs,
        payload_bytes,
        one_core,
        tuple(sorted(late_ms for late_ms, _ in looks)),
        max(looks)[1],
        (number(found, "accepted") + number(found, "delivered")) / number(found, "window_s"),
        {event: text.count(sign) for event, sign in EVENTS.items()},
    )


def measure(conditions: Conditions) -> Drifts:
    seconds = conditions.scaled(SECONDS, SECONDS / 4)
    cases = [(store, load, False) for load in LOADS for store in STORES]
    if conditions.cores is not None:
        cases.append(("rocks", ONE_CORE, True))
    return Drifts(
        seconds,
        tuple(
            measure_one(conditions, store, load, seconds, one_core=one_core)
            for store, load, one_core in cases
        ),
    )
