"""A page right after a commit, with a million settled messages behind it.

What is settled leaves tombstones, and tombstones slow what reads across them: the latency of a
fetch must not show how many messages went through.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.checks import Columns, Grid, Report, at_most
from benchmarks.conditions import Conditions
from flowguard.records import Append, Settle, StoreOp
from flowguard.stores.rocks import RocksStore

from .filling import PAYLOAD_BYTES, add_sessions, client_id, conversation, delivery, open_store

KEY: Final = "store-fetch"
SETTLED: Final = 1_000_000
FETCHES: Final = 2_000
PAGE: Final = 100
"""Messages of a fetch: a client's window."""
HISTORY_BATCH: Final = 1_000
COMMITS_PER_MAINTENANCE: Final = 50
BOUND_MS: Final = 1.0


@dataclass(frozen=True)
class Latencies:
    """Of fetches from queues that share the history."""

    queues: int
    settled: int
    sorted_ms: tuple[float, ...]

    def share_ms(self, share: float) -> float:
        return self.sorted_ms[min(int(share * len(self.sorted_ms)), len(self.sorted_ms) - 1)]


@dataclass(frozen=True)
class Fetches:
    """One queue with all of the history, and a thousand that share it."""

    runs: tuple[Latencies, ...]

    def report(self) -> Report:
        columns: Columns[Latencies] = {
            "queues": lambda run: f"{run.queues:,}",
            "settled before": lambda run: f"{run.settled:,}",
            "p50 ms": lambda run: f"{run.share_ms(0.5):.3f}",
            "p99 ms": lambda run: f"{run.share_ms(0.99):.3f}",
            "max ms": lambda run: f"{run.share_ms(1.0):.3f}",
        }
        checks = [
            at_most(
                f"fetch after a commit, p99, {run.queues:,} queues",
                run.share_ms(0.99),
                BOUND_MS,
                " ms",
                digits=2,
            )
            for run in self.runs
        ]
        return Report(
            KEY,
            "Store: a page after a commit",
            f"Each time {PAGE} messages of {PAYLOAD_BYTES} bytes are committed (fsync) to a queue "
            f"and fetched at once, then settled; {len(self.runs[0].sorted_ms):,} times.",
            tuple(checks),
            (Grid.of(columns, self.runs),),
        )


def measure_one(queues: int, settled: int, fetches: int) -> Latencies:
    with TemporaryDirectory(prefix="flowguard-bench-") as name:
        store = open_store(Path(name) / "data")
        add_sessions(store, queues)
        for number, ops in enumerate(conversation(queues, settled, HISTORY_BATCH)):
            store.commit(ops)
            if number % COMMITS_PER_MAINTENANCE == 0:
                store.maintain()
        times_ms = [fetch(store, number, queues, settled) for number in range(fetches)]
        store.close()
    return Latencies(queues, settled, tuple(sorted(times_ms)))


def fetch(store: RocksStore, number: int, queues: int, settled: int) -> float:
    """One round; the time of its fetch in ms. Each queue has had its share of the history."""
    queue, turn = number % queues, number // queues
    name = client_id(queue)
    after_pos = settled // queues + (queue < settled % queues) + turn * PAGE
    appends = [Append(name, after_pos + 1 + index, delivery()) for index in range(PAGE)]
    store.commit(appends)
    started_s = time.perf_counter()
    entries = store.fetch(name, after_pos, PAGE)
    taken_ms = (time.perf_counter() - started_s) * 1e3
    assert [entry.pos for entry in entries] == [op.pos for op in appends]
    settles: list[StoreOp] = [Settle(name, op.pos, op.delivery) for op in appends]
    store.commit(settles)
    if number % COMMITS_PER_MAINTENANCE == 0:
        store.maintain()
    return taken_ms


def measure(conditions: Conditions) -> Fetches:
    settled, fetches = conditions.count(SETTLED), conditions.count(FETCHES)
    return Fetches(tuple(measure_one(queues, settled, fetches) for queues in (1, 1_000)))
