"""Two workers under the law: three times the capacity, and the store of one of them slowed.

Each worker has a store of known capacity (`slowed_store`). First, 1,000 publishers of any worker
offer three times the peak. Then durable pairs publish in a closed loop. Pairs *apart* are on the
first worker. The publisher of a *touching* pair is on the first worker, and its subscriber on the
second. The second run of both is that with a slow store on the second worker.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

from benchmarks.brokers import HOST, Broker, Running, free_port
from benchmarks.build import build, options
from benchmarks.checks import Check, Grid, Report, at_least, at_most
from benchmarks.conditions import Conditions
from benchmarks.machine import pinned
from benchmarks.peers import COMPILED
from benchmarks.placement import owned
from benchmarks.runner import last_result, number, refuse_errors

from .flood import flooding
from .plot import Panel, Series, svg
from .side_by_side import CROWD, OVERLOAD, P99_MAX_MS, PEAK_S, PUBLISHERS, STEP_S, search_peak
from .slowed_store import COMMIT_S, FACTOR, MESSAGE_S, SITE, TRIGGER

KEY = "overload-workers"
ROOT = Path(__file__).resolve().parents[2]
WORKERS, PAIRS, OUTSTANDING = 2, 50, 10
SUBSCRIBERS = 32
"""Client ids of the crowd differ from run to run. Each worker owns about half of 32 in any run."""
FULL_S, LOOK_S, DOWN_S, WARMUP_S = 20.0, 0.1, 1.0, 1.0
APART_SHARE, GOODPUT_SHARE, DOWN_SHARE = 90.0, 95.0, 0.5


class SlowableWorkers(Broker):
    name = "flowguard with 2 workers"
    reports_port = True

    def __init__(self, trigger: Path) -> None:
        self._trigger = trigger
        self.http_port = 0

    def prepare(self) -> str:
        return ""

    def command(self, port: int, folder: Path, scenario: str) -> list[str]:
        self.http_port = free_port()
        source = COMPILED if (COMPILED / "flowguard").is_dir() else ROOT / "src"
        variables = {"PYTHONPATH": f"{source}:{SITE}:{ROOT}", TRIGGER: str(self._trigger)}
        words = [f"{name}={text}" for name, text in variables.items()]
        words += [sys.executable, "-m", "flowguard", "serve", "--listen", f"mqtt://{HOST}:{port}"]
        words += ["--workers", str(WORKERS), "--store", "memory", "--data", str(folder / "data")]
        return ["env", *words, "--http", f"{HOST}:{self.http_port}"]


@dataclass(frozen=True)
class Look:
    """Both workers at one instant."""

    at_s: float
    windows: tuple[float, ...]
    causes: tuple[str, ...]
    """Cause and value of their pressure."""


@dataclass(frozen=True)
class Law:
    peak_per_s: float
    goodput_per_s: float
    polite_p99_ms: tuple[float, float]
    """In the first and in the second half of the overload."""
    apart_calm_per_s: float
    apart_slowed_per_s: float
    touching_calm_per_s: float
    touching_slowed_per_s: float
    looks: tuple[Look, ...]
    """Second 0 is when the store becomes slower."""

    @property
    def down_s(self) -> float:
        """Time until the window of the slowed worker is at half of what it was."""
        before = max(look.windows[1] for look in self.looks if look.at_s <= 0)
        down = [
            look.at_s
            for look in self.looks
            if look.at_s > 0 and look.windows[1] <= DOWN_SHARE * before
        ]
        return min(down, default=float("inf"))

    def report(self) -> Report:
        first_ms, second_ms = self.polite_p99_ms
        goodput = 100 * self.goodput_per_s / self.peak_per_s
        apart = 100 * self.apart_slowed_per_s / self.apart_calm_per_s
        checks: list[Check] = [
            at_least(
                "three times the capacity: goodput, of its peak", goodput, GOODPUT_SHARE, " %"
            ),
            at_most("the same: polite clients' p99, first half", first_ms, P99_MAX_MS, " ms"),
            at_most("the same: polite clients' p99, second half", second_ms, P99_MAX_MS, " ms"),
            at_least("one store slowed: throughput of clients apart", apart, APART_SHARE, " %"),
            at_most("the same: window of its worker halved after", self.down_s, DOWN_S, " s", 1),
        ]
        rows = (
            ("apart", f"{self.apart_calm_per_s:,.0f}", f"{self.apart_slowed_per_s:,.0f}"),
            ("touching", f"{self.touching_calm_per_s:,.0f}", f"{self.touching_slowed_per_s:,.0f}"),
        )
        first_s = self.looks[0].at_s
        series = tuple(
            Series(
                f"worker {n}",
                tuple((look.at_s - first_s, look.windows[n]) for look in self.looks),
            )
            for n in range(WORKERS)
        )
        title = "Two workers, one store ten times slower"
        return Report(
            KEY,
            title,
            f"Both workers share one core, and the generators have another. Each store takes "
            f"{COMMIT_S * 1e3:g} ms for a commit and {MESSAGE_S * 1e6:g} µs for a message, the "
            f"slowed one {FACTOR:g} times as long. {PAIRS} pairs of each kind, {OUTSTANDING} "
            "outstanding.",
            tuple(checks),
            (Grid(("pairs", "messages in and out per second", "one store slowed"), rows),),
            (
                f"Peak of the overload: {self.peak_per_s:,.0f} messages per second. Windows begin "
                "at 100 packets and shrink in the first half.",
            ),
            svg([Panel("window, packets", series, True)], title, -first_s),
        )


def measure(conditions: Conditions) -> Law:
    seconds = conditions.scaled(FULL_S, 4.0)
    with TemporaryDirectory() as name, pinned(conditions.generator_core):
        folder = Path(name)
        broker = SlowableWorkers(folder / "trigger")
        with broker.running(conditions.broker_core, KEY) as running:
            overload = three_times(running, conditions)
        with broker.running(conditions.broker_core, KEY) as running:
            with looking(broker.http_port, folder / "trigger", inf):
                calm = throughput(running, folder, seconds, WARMUP_S)
            slowed_s = seconds / 4
            with looking(broker.http_port, folder / "trigger", slowed_s) as looks:
                slowed = throughput(running, folder, seconds, slowed_s + WARMUP_S)
    return Law(*overload, calm[0], slowed[0], calm[1], slowed[1], tuple(looks))


def three_times(
    running: Running, conditions: Conditions
) -> tuple[float, float, tuple[float, float]]:
    """Peak and goodput per second, and the p99 of polite clients in each half of the time, ms."""
    core, seconds = conditions.generator_core, conditions.scaled(FULL_S, 2.0) / 2
    crowd = {**CROWD, "subscribers": SUBSCRIBERS, "topics": SUBSCRIBERS}
    with flooding(running.port, running.pid, core, **crowd) as flood:
        peak = search_peak(flood, conditions.scaled(STEP_S, 0.5), conditions.scaled(PEAK_S, 1.0))
        rate = OVERLOAD * peak.goodput_per_s
        first, second = [flood.phase("open", rate, PUBLISHERS, seconds).total for _ in range(2)]
    goodput_per_s = (first.good + second.good) / (first.took_s + second.took_s)
    p99_ms = first.probe_acknowledgement.p99, second.probe_acknowledgement.p99
    return peak.goodput_per_s, goodput_per_s, p99_ms


def throughput(running: Running, folder: Path, seconds: float, warmup_s: float) -> list[float]:
    """Messages in and out per second of pairs apart and of those that touch the second worker.

    They are counted after `warmup_s`.
    """
    processes = [load(running, folder, seconds, warmup_s, owner) for owner in range(WORKERS)]
    found = []
    for process in processes:
        output, errors = process.communicate()
        result = last_result(output, errors)
        refuse_errors(result)
        done = number(result, "accepted") + number(result, "delivered")
        found.append(done / number(result, "window_s"))
    return found


def load(
    running: Running, folder: Path, seconds: float, warmup_s: float, owner: int
) -> "subprocess.Popen[str]":
    """Durable pairs whose publishers are at the first worker, and their subscribers at `owner`."""
    path = folder / f"numbers-{owner}"
    # Clients of both generators have their own numbers.
    subscribers, publishers = owned("s", WORKERS, owner), owned("p", WORKERS, 0)
    skipped = owner * PAIRS
    numbers = [next(subscribers) for _ in range(skipped + PAIRS)][skipped:]
    numbers += [next(publishers) for _ in range(skipped + PAIRS)][skipped:]
    path.write_text("".join(f"{each}\n" for each in numbers))
    values = {
        "port": running.port,
        "broker-pid": running.pid,
        "count": PAIRS,
        "qos": 1,
        "w": OUTSTANDING,
        "durable": 1,
        "first-topic": owner * PAIRS,
        "warmup": warmup_s,
        "seconds": seconds,
    }
    return pairs_program(values, path)


def pairs_program(values: dict[str, float], path: Path) -> "subprocess.Popen[str]":
    """Start the generator of pairs; `path` has the numbers of its clients."""
    command = [str(build("loadgen")), "pairs", *options(values), "--numbers", str(path)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


@contextmanager
def looking(port: int, trigger: Path, after_s: float) -> Iterator[list[Look]]:
    """Read the windows of the workers all the time; the store becomes slower after `after_s`."""
    found: list[tuple[float, list[tuple[float, str]]]] = []
    looks: list[Look] = []
    is_over = threading.Event()
    slowed_s = time.monotonic() + after_s

    def look() -> None:
        while not is_over.wait(LOOK_S):
            found.append((time.monotonic(), list(windows(port))))
            if time.monotonic() >= slowed_s:
                trigger.touch()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield looks
    finally:
        is_over.set()
        thread.join()
        for at_s, workers in found:
            each, causes = zip(*workers, strict=True)
            looks.append(Look(round(at_s - slowed_s, 2), each, causes))


def windows(port: int) -> Iterator[tuple[float, str]]:
    """The window of each worker, in packets, and the cause of its pressure."""
    for worker in range(WORKERS):
        with urlopen(f"http://{HOST}:{port}/workers/{worker}/status", timeout=10) as answer:
            status: dict[str, Any] = json.load(answer)
        pressure = status["pressure"]
        yield status["window"]["granted"], f"{pressure['cause']} {pressure['value']:.1f}"
