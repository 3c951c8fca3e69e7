"""Drives the generator `flood.c`: one process, phases in by stdin, seconds out by stdout."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from benchmarks import machine
from benchmarks.build import build, options
from benchmarks.conditions import Conditions
from benchmarks.runner import BadData, number, parse_line

from .subject import Instance, Subject

Kind = Literal["open", "closed", "idle", "release"]
QUIET_S = 0.25


@dataclass(frozen=True)
class Latency:
    """Percentiles of one kind of latency, ms; `count` 0: there was nothing to measure."""

    count: int
    p50: float
    p99: float
    max: float

    @property
    def known(self) -> float | None:
        """The p99, where there was anything to measure."""
        return self.p99 if self.count else None


@dataclass(frozen=True)
class Seen:
    """What the clients saw of one second, or of one phase."""

    at_s: float
    """When it was over, `time.monotonic()`."""
    took_s: float
    sent: int
    withheld: int
    """Not written: Receive Maximum or socket said no."""
    acknowledged: int
    good: int
    """Acknowledged within the deadline."""
    refused: int
    delivered: int
    delivered_all: int
    """Since the start."""
    outstanding: int
    """Written and not acknowledged, at the end."""
    blocked: int
    """Publishers whose socket takes no more, at the end."""
    unanswered_pings: int
    lost_connections: int
    """Since the start."""
    acknowledgement: Latency
    delivery: Latency
    probe_acknowledgement: Latency
    probe_delivery: Latency
    pong: Latency
    broker_cpu_s: float
    generator_cpu_s: float

    @property
    def began_s(self) -> float:
        return self.at_s - self.took_s

    @property
    def goodput_per_s(self) -> float:
        return self.good / self.took_s

    @property
    def generator_cores(self) -> float:
        return self.generator_cpu_s / self.took_s

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Seen":
        """A line of the generator, whose names are those of the fields; a second has no CPU times.

        Raises `BadData`.
        """
        found: dict[str, Any] = {}
        for each in fields(cls):
            if each.type is Latency:
                known = values[f"{each.name}_ms"]
                found[each.name] = Latency(**{key.name: known[key.name] for key in fields(Latency)})
            elif each.name.endswith("_cpu_s"):
                found[each.name] = values.get(each.name) or 0.0
            else:
                value = number(values, each.name)
                found[each.name] = value if each.name.endswith("_s") else int(value)
        return cls(**found)


@dataclass(frozen=True)
class Phase:
    """One phase: its sum, and its seconds."""

    kind: Kind
    value: float
    total: Seen
    seconds: tuple[Seen, ...]


@dataclass(frozen=True)
class Result:
    sent: int
    acknowledged: int
    refused: int
    delivered: int
    gaps: int
    disordered: int
    lost_connections: int
    first_error: str
    refusals: Mapping[str, int]
    """PUBACK codes of 0x80 and above."""
    disconnects: Mapping[str, int]
    """DISCONNECT codes that the broker sent."""


@dataclass
class Flood:
    """A running generator, all of its clients connected."""

    process: subprocess.Popen[str]
    receive_maximum: tuple[int, int]
    """The least and the largest that a publisher was granted."""
    result: Result | None = None
    phases: list[Phase] = field(default_factory=list)

    def phase(self, kind: Kind, value: float = 0, active: int = 0, seconds: float = 1) -> Phase:
        """Run one phase to its end; see flood.c."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{kind} {value:.12g} {active} {seconds:.12g}\n")
        self.process.stdin.flush()
        rows: list[Seen] = []
        while True:
            line = next_line(self.process)
            seen = Seen.of(line)
            if line["event"] == "phase":
                done = Phase(kind, value, seen, tuple(rows))
                self.phases.append(done)
                return done
            rows.append(seen)

    def drain(self, limit_s: float) -> bool:
        """Idle until everything is acknowledged and delivered; False: not within `limit_s`."""
        for _ in range(max(1, round(limit_s / QUIET_S))):
            total = self.phase("idle", seconds=QUIET_S).total
            if not total.outstanding and not total.delivered:
                return True
        return False

    def finish(self) -> Result:
        assert self.process.stdin is not None
        self.process.stdin.close()
        line = next_line(self.process)
        names = Result.__dataclass_fields__
        self.result = Result(**{name: line[name] for name in names})
        return self.result


def next_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        assert process.stderr is not None
        raise BadData(f"the generator ended: {process.stderr.read().strip()}")
    return parse_line(line)


@contextmanager
def flooding(port: int, pid: int, core: int | None, /, **crowd: float) -> Iterator[Flood]:
    """The generator against a broker; `crowd` are options of flood.c, `_` for `-`.

    Raises `BadData` when not all clients are in.
    """
    values = {"port": port, "broker-pid": pid, **crowd}
    with machine.pinned(core):
        process = subprocess.Popen(
            [str(build("flood")), *options(values)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    with process:
        try:
            ready = next_line(process)
            if ready["ready"] != ready["clients"]:
                why = ready["first_error"] or "no answer in time"
                raise BadData(f"{ready['ready']} of {ready['clients']} clients are in: {why}")
            least, most = ready["receive_maximum"]
            yield Flood(process, (least, most))
        finally:
            process.kill()


@contextmanager
def flooded(
    subject: Subject, conditions: Conditions, **crowd: float
) -> Iterator[tuple[Instance, Flood]]:
    """A fresh broker on its core, and the generator on the other."""
    with (
        subject.started(conditions.broker_core) as broker,
        flooding(broker.port, broker.pid, conditions.generator_core, **crowd) as flood,
    ):
        yield broker, flood
