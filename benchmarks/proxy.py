"""`flowguard proxy` in front of Mosquitto: what it costs beside Mosquitto alone, in the same run.

The unit is messages per second of processor time, of the proxy and of Mosquitto when it has the
same load directly: other work on the machine changes little of it. Both have the broker's core to
themselves; behind the proxy Mosquitto shares the generator's.
"""

import os
import subprocess
import sys
import timeit
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time
from unittest.mock import patch

from broker_adapter import Guard

from .brokers import HOST, Broker, Running
from .build import Unavailable, build
from .checks import Check, Columns, Grid, Report, at_least, at_most
from .conditions import Conditions
from .peers import COMPILED, Mosquitto
from .runner import Bench
from .scenarios import Scenario, find

KEY = "proxy"
W_1, W_10, IDLE = find(["qos1-100-w1"])[0], find(["qos1-100-w10"])[0], find(["idle"])[0]
LOW = replace(W_1, key="proxy-low", title="one pair, one at a time", arguments={})
CONNECTIONS = 4_000
"""A proxy has two descriptors for each."""
CALM = ("STORE_OBJECTIVE_S", "LOOP_OBJECTIVE_S", "CONNECT_OBJECTIVE_S")
"""What it costs is asked, not what it does about a machine that is busy with other things."""
MEASURED_S, REPEAT = 4.0, 3
RATIO_1, RATIO_10, ADDED_MS, CONNECTION_KIB, PACKET_US = 0.4, 0.5, 0.2, 4.0, 1.0
PACKETS = 20_000
BUILD = "compiled" if COMPILED.is_dir() else "pure Python"


class Proxied(Broker):
    """Mosquitto, and the proxy in front of it, which is what is measured."""

    name = "flowguard proxy"
    reports_port = True

    def __init__(self, upstream_core: int | None) -> None:
        self._upstream_core = upstream_core
        self._upstream = 0

    def prepare(self) -> str:
        return Mosquitto().prepare()

    def command(self, port: int, folder: Path, scenario: str) -> list[str]:
        upstream, listen = f"{HOST}:{self._upstream}", f"{HOST}:{port}"
        words = ["--upstream", upstream, "--listen", listen]
        return [sys.executable, "-m", "flowguard", "proxy", *words]

    @contextmanager
    def running(self, core: int | None, scenario: str) -> Iterator[Running]:
        """A fresh proxy on its core, before a fresh Mosquitto."""
        environment = {f"FLOWGUARD_FLOW__{name}": "1e9" for name in CALM}
        if COMPILED.is_dir():
            environment["PYTHONPATH"] = str(COMPILED)
        with Mosquitto().running(self._upstream_core, scenario) as upstream:
            self._upstream = upstream.port
            with patch.dict(os.environ, environment), super().running(core, scenario) as proxy:
                yield proxy


@dataclass(frozen=True)
class Row:
    """Medians of one load, direct and through the proxy."""

    title: str
    direct: dict[str, float]
    through: dict[str, float]

    @property
    def ratio(self) -> float:
        return self.through["value"] / self.direct["value"]

    def added_ms(self, quantile: str) -> float:
        return self.through[f"{quantile}_ms"] - self.direct[f"{quantile}_ms"]


@dataclass(frozen=True)
class Cost:
    w_1: Row
    w_10: Row
    low: Row
    connection_kib: float
    packet_us: float

    def report(self) -> Report:
        checks: list[Check] = [
            at_least(f"{row.title}: of Mosquitto's per CPU second", row.ratio, bound, "x", 2)
            for row, bound in ((self.w_1, RATIO_1), (self.w_10, RATIO_10))
        ]
        checks += [
            at_most("added to the median, low load", self.low.added_ms("p50"), ADDED_MS, " ms", 2),
            at_most("memory of a connection", self.connection_kib, CONNECTION_KIB, " KiB", 1),
            at_most("a packet in `broker_adapter.Guard`", self.packet_us, PACKET_US, " µs", 2),
        ]
        columns: Columns[Row] = {
            "load": lambda row: row.title,
            "Mosquitto, messages in and out per CPU second": lambda row: (
                f"{row.direct['value']:,.0f}"
            ),
            "the proxy": lambda row: f"{row.through['value']:,.0f}",
            "ratio": lambda row: f"{row.ratio:.2f}",
            "p50 ms, direct": lambda row: f"{row.direct['p50_ms']:.2f}",
            "added": lambda row: f"{row.added_ms('p50'):.2f}",
            "p99 ms, direct": lambda row: f"{row.direct['p99_ms']:.2f}",
            "added ": lambda row: f"{row.added_ms('p99'):.2f}",
        }
        return Report(
            KEY,
            "The proxy: what it costs",
            f"Mosquitto directly and behind `flowguard proxy` ({BUILD}), interleaved, "
            f"n = {REPEAT}; processor time is of Mosquitto, and of the proxy alone.",
            tuple(checks),
            (Grid.of(columns, (self.w_1, self.w_10, self.low)),),
        )


def measure(conditions: Conditions) -> Cost:
    bench = Bench(build("loadgen"), conditions.cores, conditions.scaled(MEASURED_S, 1.0))
    low = replace(LOW, arguments={**W_1.arguments, "count": 1})
    idle = replace(IDLE, arguments={**IDLE.arguments, "count": CONNECTIONS})
    connection_kib = sampled(bench, Proxied(conditions.generator_core), idle)["value"]
    w_1, w_10, alone = (compared(bench, scenario) for scenario in (W_1, W_10, low))
    return Cost(w_1, w_10, alone, connection_kib, compiled_packet_us())


def compared(bench: Bench, scenario: Scenario) -> Row:
    core = bench.cores.generator if bench.cores else None
    direct: list[dict[str, float]] = []
    through: list[dict[str, float]] = []
    for _ in range(REPEAT):
        direct.append(sampled(bench, Mosquitto(), scenario))
        through.append(sampled(bench, Proxied(core), scenario))
    return Row(scenario.title, medians(direct), medians(through))


def sampled(bench: Bench, broker: Broker, scenario: Scenario) -> dict[str, float]:
    sample = bench.sample(broker, scenario)
    if sample.failure:
        raise Unavailable(f"{broker.name}, {scenario.key}: {sample.failure}")
    return sample.figures


def medians(figures: list[dict[str, float]]) -> dict[str, float]:
    return {key: median(one[key] for one in figures) for key in ("value", "p50_ms", "p99_ms")}


def packet_us() -> float:
    """A packet that finds room: started and done; the least of many rounds."""
    guard = Guard()
    client = guard.client("a")
    start, done = guard.start, guard.done

    def packet() -> None:
        done(start(client, 1.0), 1.0)

    rounds = timeit.repeat(packet, number=PACKETS, repeat=15, timer=process_time)
    return 1e6 * min(rounds) / PACKETS


def compiled_packet_us() -> float:
    """`packet_us` as it is for those who use the guard: with the compiled rooms, where they are."""
    words = "from benchmarks.proxy import packet_us; print(packet_us())"
    places = [str(COMPILED)] * COMPILED.is_dir() + [str(COMPILED.parent)]
    with TemporaryDirectory() as elsewhere:  # What lies where Python starts goes before them.
        done = subprocess.run(
            [sys.executable, "-c", words],
            cwd=elsewhere,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
            capture_output=True,
            text=True,
            check=True,
        )
    return float(done.stdout)
