"""The line of one of three nodes to Redis becomes fifty times slower: whose windows shrink?

Each node has one shard, and durable pairs publish at a steady pace. Pairs *apart* have both
sessions on the first node. The publisher of a *touching* pair is on the first node, and its
subscriber on the last. The line of that node becomes slower, and later as fast as before. The
first node reports the window that its clients have for messages to the last one.
"""

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import machine
from benchmarks.checks import Check, Grid, Report, at_least, at_most
from benchmarks.conditions import Conditions
from benchmarks.overload.plot import Panel, Series, svg
from benchmarks.overload.workers import pairs_program
from benchmarks.peers import BUILT
from benchmarks.placement import owned
from benchmarks.redis.servers import redis_server
from benchmarks.runner import last_result, number, refuse_errors
from flowguard.app.workers.seat import name_of

from .line import lines
from .running import Node, NodePlan, running

KEY = "nodes-slowed"
NODES, PAIRS, RATE_PER_S = 3, 50, 1_000.0
BYTES_PER_S, DELAY_S, FACTOR = 4_000_000.0, 0.002, 50.0
FULL_S, CALM_S, WARMUP_S, LOOK_S, HEALED_S = 20.0, 8.0, 2.0, 0.05, 30.0
DOWN_MAX_S, DOWN_SHARE, APART_MIN, OPEN = 1.0, 0.5, 90.0, 100.0
FIRST, SLOWED = 0, 2


Windows = list[tuple[float, float]]
"""Instants and windows; second 0 is when the node becomes slow."""


@dataclass(frozen=True)
class Fault:
    """The cause that slows one of the nodes."""

    key: str
    title: str
    is_slow: str
    """The slow part, as the head of a column."""
    text: str


LINE = Fault(
    KEY,
    f"Three nodes, the line of one to Redis {FACTOR:g} times slower",
    "one line slow",
    f"A line passes on {BYTES_PER_S / 1e6:g} MB/s and holds each answer back "
    f"for {DELAY_S * 1e3:g} ms. Slow means {BYTES_PER_S / FACTOR / 1e6:g} MB/s and "
    f"{FACTOR * DELAY_S * 1e3:g} ms.",
)


@dataclass(frozen=True)
class Slowed:
    fault: Fault
    apart_per_s: tuple[float, float]
    """Messages in and out, before and while the line is slow."""
    touching_per_s: tuple[float, float]
    publisher: Windows
    """The window of a touching publisher."""
    nodes: tuple[Windows, ...]
    healed_s: float
    """When the node was as fast as before, since second 0."""

    @property
    def down_s(self) -> float:
        """Time until the window of the publisher is at half of what it was."""
        before = [window for at_s, window in self.publisher if at_s <= 0][-1]
        down = [
            at_s for at_s, window in self.publisher if at_s > 0 and window <= DOWN_SHARE * before
        ]
        return min(down, default=float("inf"))

    @property
    def open_s(self) -> float:
        """Time from the healing until the windows of all nodes are at their maximum."""
        opened = [
            min(
                (at_s for at_s, window in node if at_s > self.healed_s and window >= OPEN),
                default=float("inf"),
            )
            for node in self.nodes
        ]
        return max(opened) - self.healed_s

    def report(self) -> Report:
        apart = 100 * self.apart_per_s[1] / self.apart_per_s[0]
        checks: list[Check] = [
            at_most("window of touching publishers halved after", self.down_s, DOWN_MAX_S, " s", 1),
            at_least("throughput of pairs apart while it is slow", apart, APART_MIN, " %"),
            at_most("all windows at 100 again after", self.open_s, HEALED_S, " s", 1),
        ]
        rows = (
            ("apart", *(f"{each:,.0f}" for each in self.apart_per_s)),
            ("touching", *(f"{each:,.0f}" for each in self.touching_per_s)),
        )
        first_s = min(each[0][0] for each in (self.publisher, *self.nodes))
        names = ("a touching publisher", *(f"node {n + 1}" for n in range(NODES)))
        series = tuple(
            Series(name, tuple((at_s - first_s, window) for at_s, window in each))
            for name, each in zip(names, (self.publisher, *self.nodes), strict=True)
        )
        title = self.fault.title
        return Report(
            self.fault.key,
            title,
            f"flowguard ({BUILT.name}). The nodes share one core, and Redis, lines and generators "
            f"have another. {self.fault.text} {PAIRS} durable pairs of each kind publish "
            f"{RATE_PER_S:,.0f} messages per second, QoS 1.",
            tuple(checks),
            (Grid(("pairs", "messages in and out per second", self.fault.is_slow), rows),),
            (f"It was slow for {self.healed_s:.0f} s.",),
            svg([Panel("window, packets", series, True)], title, -first_s),
        )


def measure(conditions: Conditions) -> Slowed:
    BUILT.prepare()
    with (
        TemporaryDirectory(prefix="flowguard-bench-") as name,
        machine.pinned(conditions.generator_core),
    ):
        folder = Path(name)
        with (
            redis_server(folder / "redis", "always") as redis,
            lines(folder, redis.path, NODES, BYTES_PER_S, DELAY_S) as made,
        ):
            plans = [NodePlan(line.url, NODES, 1) for line in made]
            line = made[SLOWED]
            with running(folder, plans, conditions.broker_core) as nodes:
                return observed(
                    LINE,
                    nodes,
                    folder,
                    conditions.scaled(FULL_S, 4.0),
                    lambda: line.change(BYTES_PER_S / FACTOR, FACTOR * DELAY_S),
                    lambda: line.change(BYTES_PER_S, DELAY_S),
                )


def observed(
    fault: Fault,
    nodes: list[Node],
    folder: Path,
    seconds: float,
    begin: Callable[[], None],
    end: Callable[[], None],
) -> Slowed:
    """Observe pairs and windows while one node is slow, from `begin` to `end`."""
    shards = [shard for node in nodes for shard in node.shards()]
    measured = (nodes[FIRST], shards, folder, seconds)
    calm = [throughput_of(process) for process in loads_of(*measured, WARMUP_S)]
    own = [partial(own_window, node, k) for node, k in zip(nodes, shards, strict=True)]
    touching = partial(touching_window, nodes[FIRST], shards[FIRST], shards[SLOWED])
    with looking([touching, *own]) as looks:
        loads = loads_of(*measured, CALM_S + WARMUP_S)
        time.sleep(CALM_S)
        begin()
        slowed_s = time.monotonic()
        slow = [throughput_of(process) for process in loads]
        end()
        healed_s = time.monotonic() - slowed_s
        while time.monotonic() < slowed_s + healed_s + HEALED_S:
            time.sleep(LOOK_S)
            last = [look[-1] for look in looks[1:]]
            if all(at_s - slowed_s > healed_s and window >= OPEN for at_s, window in last):
                break
    publisher, *found = ([(at_s - slowed_s, window) for at_s, window in look] for look in looks)
    return Slowed(fault, (calm[0], slow[0]), (calm[1], slow[1]), publisher, tuple(found), healed_s)


def own_window(node: Node, shard: int) -> float:
    return float(node.get(f"/workers/{shard}/status")["window"]["granted"])


def touching_window(node: Node, shard: int, other: int) -> float:
    """Return the window of clients of a shard for messages to another one."""
    return float(node.get(f"/workers/{shard}/status")["links"]["window"][name_of(other)])


def throughput_of(process: "subprocess.Popen[str]") -> float:
    """Messages in and out per second, when it has ended."""
    output, errors = process.communicate()
    result = last_result(output, errors)
    refuse_errors(result)
    done = number(result, "accepted") + number(result, "delivered")
    return done / number(result, "window_s")


def loads_of(
    node: Node, shards: list[int], folder: Path, seconds: float, warmup_s: float
) -> "list[subprocess.Popen[str]]":
    """Pairs apart, and those that touch the last node."""
    return [load(node, shards, folder, seconds, warmup_s, at) for at in (FIRST, SLOWED)]


def load(
    node: Node, shards: list[int], folder: Path, seconds: float, warmup_s: float, at: int
) -> "subprocess.Popen[str]":
    """Durable pairs whose publishers are on the first node, and their subscribers on node `at`."""
    path = folder / f"numbers-{at}"
    path.write_text("".join(f"{each}\n" for each in numbers(shards, at)))
    values = {
        "port": node.port,
        "broker-pid": node.pid,
        "count": PAIRS,
        "qos": 1,
        "w": 100,
        "rate": RATE_PER_S,
        "durable": 1,
        "first-topic": at * PAIRS,
        "warmup": warmup_s,
        "seconds": seconds,
    }
    return pairs_program(values, path)


def numbers(shards: list[int], at: int) -> list[int]:
    """Numbers of the subscribers on node `at`, then of their publishers on the first node."""
    skipped = at * PAIRS  # Clients of both generators have their own numbers.
    return [
        each
        for letter, place in (("s", at), ("p", FIRST))
        for each in islice(owned(letter, NODES, shards[place]), skipped, skipped + PAIRS)
    ]


@contextmanager
def looking(sources: list[Callable[[], float]]) -> Iterator[list[Windows]]:
    """Read each window all the time, into one list per source."""
    looks: list[Windows] = [[] for _ in sources]
    is_over = threading.Event()

    def look(source: Callable[[], float], found: Windows) -> None:
        while not is_over.wait(LOOK_S):
            with suppress(OSError):  # A node that stands still may not answer in time.
                found.append((time.monotonic(), source()))

    threads = [
        threading.Thread(target=look, args=each) for each in zip(sources, looks, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        yield looks
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
