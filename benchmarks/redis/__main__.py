"""`python -m benchmarks.redis`: one run, one client process, servers of its own.

Processor time of client and server is measured apart, since they would have cores of their own. A
commit is a batch, and as durable as the table says: each subject with the settings of its kind that
give that level.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final, TypeVar

import typer
from rich.console import Console

from benchmarks import machine, pages
from benchmarks.brokers import BrokerFailed
from benchmarks.build import Unavailable
from benchmarks.checks import Check, Grid, Report, at_least, at_most
from benchmarks.redis.brokers import OnRedis, OnRocks, messages_per_cpu_s
from benchmarks.redis.measures import (
    BATCH,
    DEEP,
    DEPTHS,
    MANY,
    RATE_PER_S,
    SESSIONS,
    Cost,
    Fetched,
    Paced,
    Start,
    bytes_of,
    cost_of,
    fetched,
    paced,
    share_of,
    started,
)
from benchmarks.redis.servers import NODE_BYTES
from benchmarks.redis.subjects import (
    FSYNC,
    LITERAL,
    NAMES,
    OS,
    PAYLOAD_BYTES,
    POSTGRES_EACH,
    ROCKS,
    STREAM,
    STREAM_DEFAULT,
    ZSET,
    Ours,
    Subject,
    opened,
)
from benchmarks.runner import BadData

KEY: Final = "redis"
ON_REDIS: Final = (STREAM, STREAM_DEFAULT, ZSET, LITERAL)
DURABLE: Final = (STREAM, ZSET, ROCKS)
"""Those a broker starts from."""
CPU_SHARE, MEMORY_SHARE, BROKER_SHARE, START_S = 0.5, 0.35, 0.5, 5.0
"""Goals: of `stream` beside the published schema, of Redis beside RocksDB."""
T = TypeVar("T")


@dataclass
class Found:
    """All figures, by the names of subjects; what is missing says why."""

    messages: int
    costs: dict[str, tuple[Cost, Cost]] = field(default_factory=dict)
    sizes: dict[str, dict[int, float]] = field(default_factory=dict)
    deep: dict[str, Fetched] = field(default_factory=dict)
    paced: dict[str, Paced | None] = field(default_factory=dict)
    starts: dict[str, Start] = field(default_factory=dict)
    brokers: dict[str, float] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def report(self) -> Report:
        grids = (self._costs(), self._memory(), self._waits(), self._starts(), self._brokers())
        return Report(
            KEY,
            "Sessions on Redis, beside what was published and RocksDB",
            f"{self.messages:,} messages of {PAYLOAD_BYTES} bytes to {SESSIONS:,} sessions; "
            f"batches of {BATCH}; a batch is one commit, but for `{LITERAL}` one pipeline of a "
            f"script call for each message, and for `{POSTGRES_EACH}` a commit for each. Level "
            f"`os`: appendfsync everysec, synchronous_commit off, a write-ahead log that is not "
            "synced; level `fsync`: appendfsync always, synchronous_commit on, a log that is. "
            f"Redis has stream-node-max-bytes {NODE_BYTES:,}, unless its own is named.",
            tuple(self._checks()),
            tuple(grid for grid in grids if grid.rows),
            tuple(self.missing),
        )

    def _costs(self) -> Grid:
        rows = []
        for name, (queue, settle) in self.costs.items():
            client_us = queue.client_us + settle.client_us
            server_us = queue.server_us + settle.server_us
            cells = (queue.client_us, queue.server_us, settle.client_us, settle.server_us)
            both = 1e3 / (client_us + server_us)
            rows.append((name, *(f"{cell:.1f}" for cell in cells), f"{both:,.0f}"))
        header = "level os, µs per message", "queue: client", "server", "settle: client", "server"
        return Grid(
            (*header, "1,000 messages per CPU second, both sides, queued and settled"), tuple(rows)
        )

    def _memory(self) -> Grid:
        rows = [
            (name, *(f"{sizes[depth]:,.0f}" for depth in DEPTHS))
            for name, sizes in self.sizes.items()
        ]
        header = [f"{depth:,} for each session" for depth in DEPTHS]
        return Grid(("bytes of Redis per queued message", *header), tuple(rows))

    def _waits(self) -> Grid:
        rows = []
        for name in NAMES:
            deep, waits = self.deep.get(name), self.paced.get(name)
            if deep is None:
                continue
            late = (
                ("cannot keep up", "")
                if waits is None
                else (f"{waits.p50_ms:.1f}", f"{waits.p99_ms:.1f}")
            )
            cost = f"{deep.cost.client_us:.1f}", f"{deep.cost.server_us:.1f}"
            rows.append((name, *late, f"{deep.wall_ms:,.0f}", *cost))
        return Grid(
            (
                f"level fsync, {RATE_PER_S:,}/s",
                "until it is committed: p50 ms",
                "p99 ms",
                f"{DEEP:,} messages to one client that returns: ms",
                "client µs each",
                "server µs each",
            ),
            tuple(rows),
        )

    def _starts(self) -> Grid:
        rows = [
            (name, f"{start.seconds:.2f}", f"{start.client_s:.2f}", f"{start.server_s:.2f}")
            for name, start in self.starts.items()
        ]
        header = (f"start with {MANY:,} sessions", "s", "CPU s of the broker", "of the server")
        return Grid(header, tuple(rows))

    def _brokers(self) -> Grid:
        rows = [(name, f"{value:,.0f}") for name, value in self.brokers.items()]
        what = "durable QoS 1, 1,000 pairs, 10 outstanding, 16 bytes, level fsync"
        return Grid((what, "messages in and out per CPU second of the broker"), tuple(rows))

    def _checks(self) -> list[Check]:
        checks: list[Check] = []
        if self.costs.keys() >= {STREAM, LITERAL}:
            ours, literal = (
                sum(cost.server_us for cost in self.costs[name]) for name in (STREAM, LITERAL)
            )
            what = "processor time of Redis, `stream` by the published schema"
            checks.append(at_most(what, ours / literal, CPU_SHARE, "x", 2))
        if self.sizes.keys() >= {STREAM, LITERAL}:
            for depth in DEPTHS[1:]:
                share = self.sizes[STREAM][depth] / self.sizes[LITERAL][depth]
                what = f"memory, the same, {depth:,} for each session"
                checks.append(at_most(what, share, MEMORY_SHARE, "x", 2))
        if self.brokers:
            share = self.brokers[OnRedis.name] / self.brokers[OnRocks.name]
            what = "messages per CPU second of the broker, Redis by RocksDB"
            checks.append(at_least(what, share, BROKER_SHARE, "x", 2))
        if STREAM in self.starts:
            what = f"start with {MANY:,} sessions"
            checks.append(at_most(what, self.starts[STREAM].seconds, START_S, " s", 1))
        return checks


class Run:
    """Asks all subjects in turn; one that is missing is left out, and said to be."""

    def __init__(self, found: Found, folder: Path, screen: Console) -> None:
        self._found = found
        self._folder = folder
        self._screen = screen
        self._count = 0
        self._absent: set[str] = set()

    def on(self, name: str, level: str) -> AbstractContextManager[Subject]:
        self._count += 1
        return opened(name, level, self._folder / str(self._count))

    def each(self, what: str, names: tuple[str, ...], ask: Callable[[str], T]) -> dict[str, T]:
        answers: dict[str, T] = {}
        for name in names:
            if name in self._absent:
                continue
            with self._screen.status(f"{what}: {name} ..."):
                try:
                    answers[name] = ask(name)
                except Unavailable as error:
                    self._absent.add(name)
                    self._found.missing.append(f"`{name}` is left out: {error}")
        return answers

    def all(self, seconds: float, repeat: int) -> None:
        found, messages = self._found, self._found.messages

        def costs(name: str) -> tuple[Cost, Cost]:
            with self.on(name, OS) as subject:
                return cost_of(subject, share_of(name, messages))

        def sizes(name: str) -> dict[int, float]:
            by_depth = {}
            for depth in DEPTHS:
                with self.on(name, OS) as subject:
                    by_depth[depth] = bytes_of(subject, messages, depth)
            return by_depth

        def deep(name: str) -> Fetched:
            with self.on(name, OS) as subject:
                return fetched(subject)

        def waits(name: str) -> Paced | None:
            with self.on(name, FSYNC) as subject:
                return paced(subject, seconds)

        def starts(name: str) -> Start:
            with self.on(name, OS) as subject:
                assert isinstance(subject, Ours)
                return started(subject, self._folder / str(self._count))

        found.costs = self.each("processor time", NAMES, costs)
        found.sizes = self.each("memory", ON_REDIS, sizes)
        found.deep = self.each("a client returns", NAMES, deep)
        found.paced = self.each("latency", NAMES, waits)
        found.starts = self.each("start", DURABLE, starts)
        with self._screen.status("brokers ..."):
            try:
                found.brokers = messages_per_cpu_s(seconds, repeat)
            except (BadData, BrokerFailed, Unavailable) as error:
                found.missing.append(f"brokers are left out: {error}")


def main(
    messages: Annotated[int, typer.Option(min=SESSIONS, help="To queue and settle.")] = 20_000,
    seconds: Annotated[float, typer.Option(min=1, help="Of latencies, and of brokers.")] = 4.0,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each broker.")] = 3,
    write: Annotated[bool, typer.Option("--write", help="Write benchmarks/results.")] = False,
) -> None:
    """Measure the store on Redis beside the published schema, its predecessor, and RocksDB."""
    screen = pages.console()
    found = Found(messages)
    with TemporaryDirectory(prefix="flowguard-bench-") as name:
        Run(found, Path(name), screen).all(seconds, repeat)
    where = f"{machine.describe()}, a disk that syncs 4 KiB in {machine.sync_ms():.2f} ms"
    pages.tell(found, where, screen, pages.RESULTS if write else None)


if __name__ == "__main__":
    typer.run(main)
