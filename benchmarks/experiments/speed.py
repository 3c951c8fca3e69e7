"""The simulator itself: events, CPU time and memory against the number of clients.

The crowd of E2 in four sizes, each in a process of its own, nodes as much faster as the crowd is
larger, so that it is the same crowd; in pure Python, and with the compiled rooms where they are.
"""

import json
import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Final

from rich.console import Console

from benchmarks import pages
from benchmarks.checks import Check, Columns, Grid, Report, at_most
from simulations.results.run import run
from simulations.scenario_files.loading import load

from .e02_flash_crowd import CLIENTS, size_of

SIZES: Final = (1_000, 10_000, 100_000, 1_000_000)
LINEAR_MAX = 1.5
"""CPU seconds per event of the largest crowd, of those of a crowd a tenth of its size."""
ROOT: Final = Path(__file__).resolve().parents[2]
COMPILED: Final = ROOT / ".compiled"
PURE: Final = "pure Python"
BUILDS: Final = (PURE, "compiled rooms")


@dataclass(frozen=True)
class Measured:
    build: str
    clients: int
    events: int
    cpu_s: float
    peak_bytes: int
    """Resident memory of the process, most of it."""
    bare_bytes: int
    """The same before the crowd."""
    ended_s: float
    """Virtual."""

    @property
    def events_per_s(self) -> float:
        return self.events / self.cpu_s

    @property
    def bytes_per_client(self) -> float:
        return (self.peak_bytes - self.bare_bytes) / self.clients


def measure(clients: int) -> dict[str, float]:
    """Here, in this process, which does nothing else."""
    scenario = load("flash_crowd", size_of(clients / CLIENTS)).scenario
    bare_bytes = peak_bytes()
    began_s = process_time()
    summary = run(scenario, "flowguard")
    return {
        "clients": clients,
        "events": summary.events_count,
        "cpu_s": process_time() - began_s,
        "peak_bytes": peak_bytes(),
        "bare_bytes": bare_bytes,
        "ended_s": summary.ended_s,
    }


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024


def builds() -> list[str]:
    return [build for build in BUILDS if build == PURE or (COMPILED / "ready").exists()]


def measure_apart(build: str, clients: int) -> Measured:
    """In a fresh process, the next of which knows nothing of this one's heap."""
    environment = dict(os.environ)
    environment.pop("PYTHONPATH", None)
    if build != PURE:
        environment["PYTHONPATH"] = str(COMPILED)
    command = [sys.executable, "-m", "benchmarks.experiments.speed", str(clients)]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return Measured(build=build, **json.loads(done.stdout))


def measure_all(scale: float, console: Console) -> Report:
    """All sizes up to that share of the largest."""
    plan = [(b, n) for n in SIZES if n <= scale * SIZES[-1] for b in builds()]
    measured = []
    with pages.progress(console) as progress:
        task = progress.add_task("", total=len(plan))
        for build, clients in plan:
            progress.update(task, description=f"{clients:,} clients, {build}")
            measured.append(measure_apart(build, clients))
            progress.advance(task)
    return judge(measured)


def judge(measured: list[Measured]) -> Report:
    checks: list[Check] = []
    for build in dict.fromkeys(one.build for one in measured):
        of_build = sorted((m for m in measured if m.build == build), key=lambda m: m.clients)
        if len(of_build) > 1:
            smaller, larger = of_build[-2:]
            growth = smaller.events_per_s / larger.events_per_s
            what = (
                f"{build}: CPU time per event, {larger.clients:,} clients over {smaller.clients:,}"
            )
            checks.append(at_most(what, growth, LINEAR_MAX, "x", 2))
    return Report(
        "sim-scale",
        "The simulator: time and memory against clients",
        "The crowd of E2 under flowguard, nodes as much faster as it is larger; a fresh process "
        "each, real time. Bytes per client: growth of resident memory to its peak.",
        tuple(checks),
        (Grid.of(COLUMNS, measured),),
    )


COLUMNS: Columns[Measured] = {
    "clients": lambda one: f"{one.clients:,}",
    "build": lambda one: one.build,
    "events": lambda one: f"{one.events:,}",
    "CPU s": lambda one: f"{one.cpu_s:,.1f}",
    "events/s": lambda one: f"{one.events_per_s:,.0f}",
    "peak MiB": lambda one: f"{one.peak_bytes / 2**20:,.0f}",
    "bytes/client": lambda one: (
        f"{one.bytes_per_client:,.0f}" if one.peak_bytes > one.bare_bytes else "-"
    ),
    "virtual s": lambda one: f"{one.ended_s:,.0f}",
}

if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
