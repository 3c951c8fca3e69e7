"""What a message costs the engine: appended, sent and settled, in either layout.

The engine's own time is that inside its write calls; RocksDB does the rest in threads of its own,
where flushing and compacting count. CPU time throughout, and nothing is synced: neither another
program nor a disk's latency is a layout's merit.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.checks import Check, Grid, Report
from benchmarks.conditions import Conditions
from flowguard.stores.rocks.database.engine import RocksEngine
from flowguard.stores.rocks.store import LAYOUTS

from .filling import BATCH, PAYLOAD_BYTES, add_sessions, conversation, open_store

KEY: Final = "store-layouts"
SESSIONS: Final = 1_000
MESSAGES: Final = 300_000
ON_TRIAL, REFERENCE = "window", "status"
BOUND: Final = 0.5


@dataclass(frozen=True)
class Spent:
    """Microseconds per message of one run."""

    engine_us: float
    python_us: float
    background_us: float


@dataclass(frozen=True)
class Layouts:
    """Every run of each layout that there is."""

    messages: int
    runs: dict[str, list[Spent]] = field(default_factory=dict)

    def median_us(self, layout: str, part: str) -> float:
        return float(median(getattr(run, part) for run in self.runs[layout]))

    def report(self) -> Report:
        rows = []
        for layout in self.runs:
            parts = ("engine_us", "python_us", "background_us")
            rows.append((layout, *(f"{self.median_us(layout, part):.2f}" for part in parts)))
        return Report(
            KEY,
            "Store: engine time of the two layouts",
            f"{SESSIONS:,} queues, {self.messages:,} messages of {PAYLOAD_BYTES} bytes in batches "
            f"of {BATCH}, each appended, sent and settled; not synced; median of "
            f"n = {len(self.runs[ON_TRIAL])}.",
            (self._check(),),
            (
                Grid(
                    ("layout", "in the engine's write, µs", "around it, µs", "its threads, µs"),
                    tuple(rows),
                ),
            ),
        )

    def _check(self) -> Check:
        what = f"engine time per message, `{ON_TRIAL}` of `{REFERENCE}`"
        bound = f"≤ {BOUND:g}x"
        if REFERENCE not in self.runs:
            return Check(what, f"there is no layout `{REFERENCE}` here", bound, None)
        ratio = self.median_us(ON_TRIAL, "engine_us") / self.median_us(REFERENCE, "engine_us")
        return Check(what, f"{ratio:.2f}x", bound, ratio <= BOUND)


@contextmanager
def timed(cls: type[Any], method: str) -> Iterator[list[float]]:
    """CPU seconds of each call of a method while the block runs."""
    times_s: list[float] = []
    original: Callable[..., object] = getattr(cls, method)

    def measured(*arguments: object, **options: object) -> object:
        started_s = time.thread_time()
        try:
            return original(*arguments, **options)
        finally:
            times_s.append(time.thread_time() - started_s)

    setattr(cls, method, measured)
    try:
        yield times_s
    finally:
        setattr(cls, method, original)


def measure_one(layout: str, messages: int) -> Spent:
    commits_s = 0.0
    with TemporaryDirectory(prefix="flowguard-bench-") as name:
        store = open_store(Path(name) / "data", layout=layout, durability="os")
        add_sessions(store, SESSIONS)
        started_s, thread_s = time.process_time(), time.thread_time()
        with timed(RocksEngine, "write") as writes_s:
            for ops in conversation(SESSIONS, messages):
                before_s = time.thread_time()
                store.commit(ops)
                commits_s += time.thread_time() - before_s
        own_s = time.thread_time() - thread_s
        background_s = time.process_time() - started_s - own_s
        engine_s = sum(writes_s)
        store.close()
    share = 1e6 / messages
    return Spent(engine_s * share, (commits_s - engine_s) * share, background_s * share)


def measure(conditions: Conditions) -> Layouts:
    """Interleaved, so that a disturbance meets both."""
    result = Layouts(conditions.count(MESSAGES))
    for _ in range(conditions.repeat):
        for layout in (ON_TRIAL, REFERENCE):
            if layout in LAYOUTS:
                spent = measure_one(layout, result.messages)
                result.runs.setdefault(layout, []).append(spent)
    return result
