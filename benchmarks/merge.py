"""`python -m benchmarks.merge`: two replicas of a store become one; time and memory.

Each replica has so many queued messages, half of which both have: they were one store once. With
--write the table goes into docs/benchmarks.md.
"""

import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import machine, report
from benchmarks.__main__ import PAGE, split, without_page
from benchmarks.build import work_folder
from benchmarks.overload import page as pages
from benchmarks.overload.checks import Check, Grid, Report, at_most
from flowguard.config import StoreSettings
from flowguard.records import NEVER_S, Append, Delivery, PutSession, StoreOp
from flowguard.stores.rocks import RocksStore
from flowguard.stores.rocks.disk import used_bytes_of
from flowguard.stores.rocks.merge import MergeReport, merge
from flowguard.types import Publish

MARKERS = ("<!-- merge: begin, written by python -m benchmarks.merge -->", "<!-- merge: end -->")
COMMIT_ENTRIES = 1_000
GOAL_ENTRIES, GOAL_S = 1_000_000, 20.0
"""Of each replica, and together."""
LINEAR = 1.5
"""The time per entry of the largest may be so many times that of the smallest."""
MEMORY_GROWTH_MIB = 64
MIB = 1024 * 1024
console = Console(width=None if sys.stdout.isatty() else 180)


@dataclass(frozen=True)
class Merged:
    """One measurement."""

    entries: int
    """Of each replica."""
    result: int
    seconds: float
    peak_mib: float
    replica_mib: float
    result_mib: float


def main(
    entries: Annotated[
        str, typer.Option(help="Of each replica, by comma.")
    ] = f"{GOAL_ENTRIES // 10},{GOAL_ENTRIES}",
    queues: Annotated[int, typer.Option(min=1, help="They are spread over.")] = 100,
    payload_bytes: Annotated[int, typer.Option(min=0, help="Of each message.")] = 200,
    write: Annotated[bool, typer.Option("--write", help="Write into the page.")] = False,
    page: Annotated[
        Path, typer.Option(help="The page for --write.", show_default="docs/benchmarks.md")
    ] = PAGE,
    strict: Annotated[bool, typer.Option("--strict", help="A missed bound fails.")] = False,
) -> None:
    """Merges replicas of a store, on this machine, and says how long it took, with what memory."""
    try:
        sizes = sorted(int(word) for word in split(entries))
    except ValueError as error:
        raise typer.BadParameter(f"{entries!r} are no numbers") from error
    if not sizes or sizes[0] < 2 * queues:
        raise typer.BadParameter("each queue needs at least two entries")
    found = []
    for size in sizes:
        with console.status(f"{size:,} + {size:,} entries ..."):
            found.append(measure(size, queues, payload_bytes))
    told = tell(found, queues, payload_bytes)
    console.print(pages.terminal(told))
    raw = json.dumps([asdict(each) for each in found], indent=1)
    (work_folder() / "merge.json").write_text(raw + "\n")
    if write:
        command = " ".join(["python -m benchmarks.merge", *without_page(sys.argv[1:])])
        today = datetime.now(UTC).date().isoformat()
        commit = machine.commit() or "without git"
        origin = f"{today}. {machine.describe()}. flowguard {commit}."
        begin, end = MARKERS
        section = "\n\n".join([begin, *pages.paragraphs(told, command, origin), end])
        report.write(page, section, MARKERS)
        console.print(f"written: {page}")
    if strict and not told.passed:
        raise typer.Exit(1)


def measure(entries: int, queues: int, payload_bytes: int) -> Merged:
    """Make two replicas, and merge them in a process of its own."""
    folder = Path(tempfile.mkdtemp(prefix="flowguard-merge-", dir=work_folder()))
    try:
        first, second, out = folder / "first", folder / "second", folder / "out"
        _make(first, second, entries, queues, payload_bytes)
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


def _make(first: Path, second: Path, entries: int, queues: int, payload_bytes: int) -> None:
    """Both were sent half of it; then each took as much again for itself."""
    clients = [f"client-{number}" for number in range(queues)]
    store = _open(first, lambda: 1)
    store.commit([PutSession(client_id, 3_600, None) for client_id in clients])
    _fill(store, clients, 0, entries // 2, payload_bytes)
    store.backup(second)
    other = _open(second, lambda: 2)
    for replica in (store, other):
        _fill(replica, clients, entries // 2, entries, payload_bytes)
        replica.close()


def _open(folder: Path, random_node: Callable[[], int]) -> RocksStore:
    settings = StoreSettings(durability="os")
    return RocksStore(folder, settings, wall_s=time.time, random_node=random_node)


def _fill(store: RocksStore, clients: list[str], first: int, end: int, payload_bytes: int) -> None:
    for start in range(first, end, COMMIT_ENTRIES):
        ops: list[StoreOp] = []
        for number in range(start, min(start + COMMIT_ENTRIES, end)):
            message = Publish("building/1/floor/2/room/3", os.urandom(payload_bytes), 1)
            delivery = Delivery(message, 1, False, (), NEVER_S)
            client_id = clients[number % len(clients)]
            ops.append(Append(client_id, 1 + number // len(clients), delivery))
        store.commit(ops)
        store.maintain()


def tell(found: list[Merged], queues: int, payload_bytes: int) -> Report:
    """What was measured, and whether that is enough."""
    rows = tuple(
        (
            f"2 x {each.entries:,}",
            f"{each.result:,}",
            f"{each.seconds:.2f}",
            f"{2 * each.entries / each.seconds:,.0f}",
            f"{each.peak_mib:.0f}",
            f"{each.replica_mib:.0f}",
            f"{each.result_mib:.0f}",
        )
        for each in found
    )
    header = (
        "entries read",
        "entries kept",
        "seconds",
        "read /s",
        "peak memory MiB",
        "a replica MiB",
        "the result MiB",
    )
    return Report(
        "merge",
        "Two replicas of a store become one",
        f"{queues} queues, payloads of {payload_bytes} bytes; half of the entries of each replica "
        "are in both, the other half is new to the other. The bound is the design's.",
        tuple(_checks(found)),
        (Grid(header, rows),),
        (
            "`flowguard store merge`: no broker runs; seconds include opening, checking and "
            "syncing. The result begins with hard links to the tables of the replica that was "
            "written to later.",
        ),
    )


def _checks(found: list[Merged]) -> list[Check]:
    largest, smallest = found[-1], found[0]
    bound_s = GOAL_S * largest.entries / GOAL_ENTRIES
    checks = [
        at_most(f"time of 2 x {largest.entries:,}", largest.seconds, bound_s, " s", 1),
    ]
    if largest.entries > smallest.entries:
        per_entry = [each.seconds / each.entries for each in (smallest, largest)]
        growth = per_entry[1] / per_entry[0]
        what = f"time per entry, by that of 2 x {smallest.entries:,}"
        checks.append(at_most(what, growth, LINEAR, "x", 2))
        more_mib = largest.peak_mib - smallest.peak_mib
        checks.append(at_most("more memory than that", more_mib, MEMORY_GROWTH_MIB, " MiB"))
    return checks


if __name__ == "__main__":
    typer.run(main)
