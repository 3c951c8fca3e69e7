"""Drives the generator `flood.c`: one process, phases in by stdin, seconds out by stdout."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks import machine
from benchmarks.build import build
from benchmarks.runner import BadData, number, parse_line

Kind = Literal["open", "closed", "idle", "release"]
QUIET_S = 0.25


@dataclass(frozen=True)
class Latency:
    """Percentiles of one kind of latency, ms; `count` 0: there was nothing to measure."""

    count: int
    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Any) -> "Latency":
        return cls(int(values["count"]), values["p50"], values["p99"], values["max"])


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
    broker_cpu_s: float = 0.0
    generator_cpu_s: float = 0.0

    @property
    def goodput_per_s(self) -> float:
        return self.good / self.took_s

    @property
    def generator_cores(self) -> float:
        return self.generator_cpu_s / self.took_s

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Seen":
        def count(key: str) -> int:
            return int(number(values, key))

        return cls(
            at_s=number(values, "at_s"),
            took_s=number(values, "took_s"),
            sent=count("sent"),
            withheld=count("withheld"),
            acknowledged=count("acknowledged"),
            good=count("good"),
            refused=count("refused"),
            delivered=count("delivered"),
            outstanding=count("outstanding"),
            blocked=count("blocked"),
            unanswered_pings=count("unanswered_pings"),
            lost_connections=count("lost_connections"),
            acknowledgement=Latency.of(values["acknowledgement_ms"]),
            delivery=Latency.of(values["delivery_ms"]),
            probe_acknowledgement=Latency.of(values["probe_acknowledgement_ms"]),
            probe_delivery=Latency.of(values["probe_delivery_ms"]),
            pong=Latency.of(values["pong_ms"]),
            broker_cpu_s=values.get("broker_cpu_s") or 0.0,
            generator_cpu_s=values.get("generator_cpu_s") or 0.0,
        )


@dataclass(frozen=True)
class Phase:
    """One phase: its sum, and its seconds."""

    kind: Kind
    value: float
    total: Seen
    seconds: tuple[Seen, ...]


@dataclass(frozen=True)
class Result:
    """The books at the end of a run."""

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
            line = self._read()
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
        """End the generator and close the books."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        line = self._read()
        names = Result.__dataclass_fields__
        self.result = Result(**{name: line[name] for name in names})
        return self.result

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            raise BadData(f"the generator ended: {self.process.stderr.read().strip()}")
        return parse_line(line)


@contextmanager
def flooding(port: int, pid: int, core: int | None, /, **options: float) -> Iterator[Flood]:
    """The generator against a broker; `options` are those of flood.c, `_` for `-`.

    Raises `BadData` when not all clients are in.
    """
    pairs = {"port": port, "broker-pid": pid, **options}
    words = [w for key, n in pairs.items() for w in (f"--{key.replace('_', '-')}", f"{n:.12g}")]
    with machine.pinned(core):
        process = subprocess.Popen(
            [str(build("flood")), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                assert process.stderr is not None
                raise BadData(f"the generator did not start: {process.stderr.read().strip()}")
            ready = json.loads(line)
            if ready["ready"] != ready["clients"]:
                why = ready["first_error"] or "no answer in time"
                raise BadData(f"{ready['ready']} of {ready['clients']} clients are in: {why}")
            least, most = ready["receive_maximum"]
            yield Flood(process, (least, most))
        finally:
            process.kill()
