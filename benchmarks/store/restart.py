"""From a directory with a hundred thousand queued messages to a broker that listens.

Twice: as a process of its own, from its start to the line that says where it listens (modules were
read before, so that they come from the page cache), and in this process, from opening the store.
And twice again: after a close, and after a kill -9, when records are older than the entries.
"""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

import structlog
import trio

from benchmarks import machine
from benchmarks.brokers import HOST, Broker
from benchmarks.checks import Grid, Report, at_most
from benchmarks.conditions import Conditions
from benchmarks.runner import BadData
from flowguard.broker.memory import bounds_of
from flowguard.broker.server import Running, listen, serve
from flowguard.config import Settings

from .filling import PAYLOAD_BYTES, open_store

KEY: Final = "store-restart"
SESSIONS: Final = 100
EACH: Final = 1_000
BOUND_S: Final = 1.0
STARTS_LIMIT_S: Final = 30.0
CLOSED, KILLED = "closed", "killed"
SIGNALS: Final = {CLOSED: signal.SIGTERM, KILLED: signal.SIGKILL}


@dataclass(frozen=True)
class Restart:
    """Medians of one way to start, after one way to end."""

    before: str
    way: str
    seconds: float


@dataclass(frozen=True)
class Restarts:
    messages: int
    repeat: int
    runs: tuple[Restart, ...]

    def report(self) -> Report:
        rows = [(run.before, run.way, f"{run.seconds:.3f}") for run in self.runs]
        checks = [
            at_most(f"{run.way}, after it was {run.before}", run.seconds, BOUND_S, " s", digits=2)
            for run in self.runs
        ]
        return Report(
            KEY,
            "Store: restart",
            f"{self.messages:,} messages of {PAYLOAD_BYTES} bytes wait for {SESSIONS} clients that "
            f"are away; until the broker listens; median of n = {self.repeat}.",
            tuple(checks),
            (Grid(("before", "from", "s"), tuple(rows)),),
        )


def fill(folder: Path, each: int, ending: signal.Signals) -> None:
    """A process fills a store in `folder` and is ended in the given way."""
    command = [sys.executable, "-m", "benchmarks.store.filling", str(folder)]
    command += ["--sessions", str(SESSIONS), "--each", str(each)]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(ending)
        if line != "filled\n":
            raise BadData("the store could not be filled")


@contextmanager
def copied(folder: Path) -> Iterator[Path]:
    """A folder whose `data` is a copy: each start changes what it starts from."""
    with TemporaryDirectory(prefix="flowguard-bench-") as name:
        shutil.copytree(folder, Path(name) / "data")
        yield Path(name)


def start_process(broker: Broker, folder: Path, core: int | None) -> float:
    """Seconds from the start of a process to its listening line."""
    with copied(folder) as place:
        command = broker.command(0, place, KEY)
        with machine.pinned(core):
            started_s = time.perf_counter()
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        with process:
            assert process.stdout is not None
            line = process.stdout.readline()
            taken_s = time.perf_counter() - started_s
            process.terminate()
            process.wait(STARTS_LIMIT_S)
    if not line.startswith("listening on "):
        raise BadData(f"{broker.name} did not start: {line!r}")
    return taken_s


def start_here(folder: Path, messages: int) -> float:
    """Seconds from opening the store to a listening broker, in this process."""
    with copied(folder) as place:
        return trio.run(_start_here, place / "data", messages)


async def _start_here(data: Path, messages: int) -> float:
    listener = listen(HOST, 0)
    started_s = time.perf_counter()
    store = open_store(data)
    async with trio.open_nursery() as nursery:
        running: Running = await nursery.start(serve, bounds_of(Settings()), store, listener)
        taken_s = time.perf_counter() - started_s
        found = sum(record.unsettled_count for record in store.sessions())
        running.stop.set()
    if found != messages:
        raise BadData(f"{found} of {messages} messages were there after the restart")
    return taken_s


def measure(conditions: Conditions) -> Restarts:
    each = conditions.count(EACH)
    messages = SESSIONS * each
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    runs = []
    with TemporaryDirectory(prefix="flowguard-bench-") as name:
        for before, ending in SIGNALS.items():
            folder = Path(name) / before
            fill(folder, each, ending)
            repeat = range(conditions.repeat)
            here = [start_here(folder, messages) for _ in repeat]
            runs.append(Restart(before, "opening the store", median(here)))
            for broker in conditions.builds():
                start_process(broker, folder, conditions.broker_core)  # Its modules are read.
                times = [start_process(broker, folder, conditions.broker_core) for _ in repeat]
                runs.append(Restart(before, f"start of {broker.name}", median(times)))
    return Restarts(messages, conditions.repeat, tuple(runs))
