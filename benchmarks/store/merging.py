"""Two replicas of a store become one: time and memory.

Each replica has so many queued messages, half of which both have: they were one store once.
"""

import multiprocessing
import os
import shutil
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import machine
from benchmarks.build import work_folder
from benchmarks.checks import Check, Columns, Grid, Report, at_most
from benchmarks.conditions import Conditions
from flowguard.records import NEVER_S, Append, Delivery, PutSession, StoreOp
from flowguard.stores.rocks import RocksStore
from flowguard.stores.rocks.disk import used_bytes_of
from flowguard.types import Publish
from store_tools.rocks.merge import MergeReport, merge

from .filling import open_store

KEY: Final = "store-merge"
QUEUES: Final = 100
"""The entries are spread over."""
PAYLOAD_BYTES: Final = 200
COMMIT_ENTRIES: Final = 1_000
GOAL_ENTRIES, GOAL_S = 1_000_000, 20.0
"""Of each replica, and together."""
LINEAR = 1.5
"""The time per entry of the largest may be so many times that of the smallest."""
MEMORY_GROWTH_MIB = 64
MIB = 1024 * 1024


@dataclass(frozen=True)
class Merged:
    entries: int
    """Of each replica."""
    result: int
    seconds: float
    peak_mib: float
    replica_mib: float
    result_mib: float


@dataclass(frozen=True)
class Merges:
    runs: tuple[Merged, ...]

    def report(self) -> Report:
        return Report(
            KEY,
            "Two replicas of a store become one",
            f"{QUEUES} queues, payloads of {PAYLOAD_BYTES} bytes; half of the entries of each "
            "replica are in both, the other half is new to the other. The bound is the design's.",
            tuple(self._checks()),
            (Grid.of(COLUMNS, self.runs),),
            (
                "`flowguard store merge`: no broker runs; seconds include opening, checking and "
                "syncing. The result begins with hard links to the tables of the replica that was "
                "written to later.",
            ),
        )

    def _checks(self) -> list[Check]:
        largest, smallest = self.runs[-1], self.runs[0]
        bound_s = GOAL_S * largest.entries / GOAL_ENTRIES
        checks = [at_most(f"time of 2 x {largest.entries:,}", largest.seconds, bound_s, " s", 1)]
        if largest.entries > smallest.entries:
            per_entry = [each.seconds / each.entries for each in (smallest, largest)]
            growth = per_entry[1] / per_entry[0]
            what = f"time per entry, by that of 2 x {smallest.entries:,}"
            checks.append(at_most(what, growth, LINEAR, "x", 2))
            more_mib = largest.peak_mib - smallest.peak_mib
            checks.append(at_most("more memory than that", more_mib, MEMORY_GROWTH_MIB, " MiB"))
        return checks


COLUMNS: Columns[Merged] = {
    "entries read": lambda run: f"2 x {run.entries:,}",
    "entries kept": lambda run: f"{run.result:,}",
    "seconds": lambda run: f"{run.seconds:.2f}",
    "read /s": lambda run: f"{2 * run.entries / run.seconds:,.0f}",
    "peak memory MiB": lambda run: f"{run.peak_mib:.0f}",
    "a replica MiB": lambda run: f"{run.replica_mib:.0f}",
    "the result MiB": lambda run: f"{run.result_mib:.0f}",
}


def measure(conditions: Conditions) -> Merges:
    goal = conditions.count(GOAL_ENTRIES)
    return Merges(tuple(measure_one(entries) for entries in (goal // 10, goal)))


def measure_one(entries: int) -> Merged:
    """Make two replicas, and merge them in a process of its own."""
    folder = Path(tempfile.mkdtemp(prefix="flowguard-merge-", dir=work_folder()))
    try:
        first, second, out = folder / "first", folder / "second", folder / "out"
        _make(first, second, entries)
        fresh = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=fresh) as pool:
            done, seconds, peak_kib = pool.submit(_merge, first, second, out).result()
        tally = done.entries
        assert (tally.both, tally.new) == (entries // 2, 2 * (entries - entries // 2)), tally
        return Merged(
            entries,
            tally.both + tally.new,
            seconds,
            peak_kib / 1024,
            used_bytes_of(first) / MIB,
            used_bytes_of(out) / MIB,
        )
    finally:
        shutil.rmtree(folder)


def _merge(first: Path, second: Path, out: Path) -> tuple[MergeReport, float, int]:
    """Report, seconds, most memory in KiB of this process."""
    started_s = time.monotonic()
    done = merge(first, second, out, random_node=lambda: 3)
    seconds = time.monotonic() - started_s
    return done, seconds, machine.peak_resident_kib(os.getpid())


def _make(first: Path, second: Path, entries: int) -> None:
    """Both were sent half of it; then each took as much again for itself."""
    clients = [f"client-{number}" for number in range(QUEUES)]
    store = open_store(first, durability="os")
    store.commit([PutSession(client_id, 3_600, None) for client_id in clients])
    _fill(store, clients, 0, entries // 2)
    store.backup(second)
    other = open_store(second, durability="os")
    for replica in (store, other):
        _fill(replica, clients, entries // 2, entries)
        replica.close()


def _fill(store: RocksStore, clients: list[str], first: int, end: int) -> None:
    for start in range(first, end, COMMIT_ENTRIES):
        ops: list[StoreOp] = []
        for number in range(start, min(start + COMMIT_ENTRIES, end)):
            message = Publish("building/1/floor/2/room/3", os.urandom(PAYLOAD_BYTES), 1)
            delivery = Delivery(message, 1, False, (), NEVER_S)
            client_id = clients[number % len(clients)]
            ops.append(Append(client_id, 1 + number // len(clients), delivery))
        store.commit(ops)
        store.maintain()
