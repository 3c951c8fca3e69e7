"""The durable log beside client queues: what a message costs that waits for many, and its replay.

CPU time of the process, with RocksDB's threads and Python. Payloads are random: others compress.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.checks import Grid, Report, at_least, at_most
from benchmarks.conditions import Conditions
from flowguard import build
from flowguard.config import StoreSettings
from flowguard.records import NEVER_S, Append, AppendToLog, Delivery, StoreOp
from flowguard.stores.log.iterators import Ahead
from flowguard.stores.log.replays import LogPlace, read_next
from flowguard.stores.rocks import RocksStore
from flowguard.types import Publish
from store_tools.rocks.compaction import data_bytes_of

from .filling import BATCH, add_sessions, client_id, open_store

KEY: Final = "store-log"
PAYLOAD_BYTES: Final = 112
FAN_OUTS: Final = (1, 10, 100, 1_000, 10_000)
ROWS: Final = 300_000
"""Queue rows of a measurement: fewer messages the more subscribers each has."""
LOGGED: Final = 30_000
"""Messages that the log gets in its place."""
MESSAGES: Final = 1_000_000
"""Messages in the log that is replayed."""
GROUPS: Final = 20
DEVICES: Final = 5_000
READINGS: Final = ("temp", "volt", "load", "fan")
LAYOUTS: Final = ("bitmask", "skipstream", "reference")
DEFAULT: Final = StoreSettings().log_layout
PAGE: Final = 1_000
PAGE_BYTES: Final = 1 << 20
SESSION_PAGE: Final = 250
SESSION_PAGE_BYTES: Final = 256 << 10
"""A page that a session reads when it comes back."""
FILTERS: Final = {
    "everything, `#`": "#",
    "one fixed level, `fleet/+/dev/+/temp`": "fleet/+/dev/+/temp",
    "two fixed levels, `fleet/3/dev/+/temp`": "fleet/3/dev/+/temp",
    "one device, `fleet/7/dev/207/+`": "fleet/7/dev/207/+",
}


@dataclass(frozen=True)
class FanOutCost:
    """A message for so many subscribers that are away."""

    subscribers: int
    queues_us: float
    log_us: float
    queues_bytes: float
    log_bytes: float


@dataclass(frozen=True)
class ReplayRate:
    """One filter over the whole log."""

    name: str
    found: int
    cpu_s: float
    first_ms: float

    @property
    def per_s(self) -> float:
        return self.found / self.cpu_s if self.cpu_s else 0.0


@dataclass(frozen=True)
class LaidOut:
    """The log in one layout."""

    layout: str
    append_per_s: float
    message_bytes: float
    """On the disk, for each message."""
    replays: list[ReplayRate]


@dataclass(frozen=True)
class DurableLog:
    messages: int
    costs: list[FanOutCost]
    layouts: list[LaidOut]

    def report(self) -> Report:
        default = next(each for each in self.layouts if each.layout == DEFAULT)
        costs = [
            (
                f"{cost.subscribers:,}",
                f"{cost.queues_us:,.1f}",
                f"{cost.log_us:,.1f}",
                f"{cost.queues_us / cost.log_us:,.1f}x",
                f"{cost.queues_bytes:,.0f}",
                f"{cost.log_bytes:,.0f}",
            )
            for cost in self.costs
        ]
        replays = [
            (
                r.name,
                f"{r.found:,}",
                f"{r.per_s:,.0f}",
                f"{r.cpu_s * 1e3:,.0f}",
                f"{r.first_ms:.2f}",
            )
            for r in default.replays
        ]
        layouts = [
            (
                each.layout,
                f"{each.append_per_s:,.0f}",
                f"{each.message_bytes:,.0f}",
                *(f"{r.cpu_s * 1e3:,.1f}" for r in each.replays),
            )
            for each in self.layouts
        ]
        wide = next(cost for cost in self.costs if cost.subscribers == 1_000)
        return Report(
            KEY,
            "Store: the durable log beside client queues",
            f"{PAYLOAD_BYTES} random bytes a message, {GROUPS * DEVICES * len(READINGS):,} topics, "
            f"batches of {BATCH}, each synced; replays over {self.messages:,} messages, by the "
            f"layout `{DEFAULT}`. {build.name().capitalize()}.",
            (
                at_least("log, messages appended per CPU second", default.append_per_s, 50_000),
                at_least(
                    "CPU, queues of log, 1,000 subscribers", wide.queues_us / wide.log_us, 30, "x"
                ),
                at_least(
                    "disk, queues of log, 1,000 subscribers",
                    wide.queues_bytes / wide.log_bytes,
                    100,
                    "x",
                ),
                at_least("`#`, messages read per CPU second", default.replays[0].per_s, 300_000),
                at_most(
                    "first page of a session that missed everything",
                    max(r.first_ms for r in default.replays),
                    20,
                    " ms",
                    1,
                ),
            ),
            (
                Grid(
                    (
                        "subscribers away",
                        "queues, µs a message",
                        "log, µs",
                        "ratio",
                        "queues, bytes on disk",
                        "log, bytes",
                    ),
                    tuple(costs),
                ),
                Grid(
                    ("replay", "messages", "per CPU second", "all of it, ms", "first page, ms"),
                    tuple(replays),
                ),
                Grid(
                    (
                        "layout",
                        "appended per CPU second",
                        "bytes on disk",
                        *(f"{name}, CPU ms" for name in FILTERS),
                    ),
                    tuple(layouts),
                ),
            ),
        )


def topic(number: int) -> str:
    group, device = number % GROUPS, number % DEVICES
    return f"fleet/{group}/dev/{device}/{READINGS[number // DEVICES % len(READINGS)]}"


def message(number: int) -> Publish:
    return Publish(topic(number), secrets.token_bytes(PAYLOAD_BYTES), 1)


def logged(count: int) -> list[StoreOp]:
    return [
        AppendToLog(f"p{number % 100}", message(number * 7), NEVER_S) for number in range(count)
    ]


def queued(count: int, subscribers: int) -> list[StoreOp]:
    ops: list[StoreOp] = []
    for number in range(count):
        delivery = Delivery(message(number * 7), 1, False, (), NEVER_S)
        ops += [Append(client_id(each), number + 1, delivery) for each in range(subscribers)]
    return ops


def commit_cost(store: RocksStore, ops: Sequence[StoreOp], batch: int) -> float:
    """CPU seconds."""
    started_s = time.process_time()
    for start in range(0, len(ops), batch):
        store.commit(ops[start : start + batch])
    return time.process_time() - started_s


def _measured(fill: Callable[[RocksStore], float], sessions: int) -> tuple[float, int]:
    """CPU seconds, and bytes on the disk."""
    with TemporaryDirectory(prefix="flowguard-bench-") as name:
        folder = Path(name) / "data"
        store = open_store(folder, disk_reserve_bytes=0, write_buffer_bytes=8 << 20)
        add_sessions(store, sessions, ended=True)
        store._engine.flush()
        before_bytes = data_bytes_of(folder)
        cpu_s = fill(store)
        store._engine.flush()
        more_bytes = data_bytes_of(folder) - before_bytes
        store.close()
    return cpu_s, more_bytes


def measure_fan_out(subscribers: int, conditions: Conditions) -> FanOutCost:
    count = max(20, conditions.count(ROWS) // max(subscribers, 10))
    many = conditions.count(LOGGED)
    in_queues, in_log = queued(count, subscribers), logged(many)
    batch = max(subscribers, BATCH)
    queues_s, queues_bytes = _measured(lambda s: commit_cost(s, in_queues, batch), subscribers)
    log_s, log_bytes = _measured(lambda s: commit_cost(s, in_log, BATCH), 1)
    return FanOutCost(
        subscribers,
        queues_s / count * 1e6,
        log_s / many * 1e6,
        queues_bytes / count,
        log_bytes / many,
    )


def first_page_ms(store: RocksStore, filter: str) -> float:
    """Until a session that has missed everything has the first page with something in it."""
    began_s, place = time.perf_counter(), LogPlace(0).encode()
    while True:
        page = read_next(store.log, place, {}, [filter], SESSION_PAGE, SESSION_PAGE_BYTES)
        if page.messages or page.is_done:
            return (time.perf_counter() - began_s) * 1e3
        place = page.place


def measure_replay(store: RocksStore, name: str, filter: str) -> ReplayRate:
    log, found = store.log, 0
    first_ms = first_page_ms(store, filter)
    started_s = time.process_time()
    for stream in log.get_streams():
        iterator = log.make_iterator(stream, [filter])
        ahead = Ahead.MORE
        while ahead is Ahead.MORE:
            page = log.next(iterator, PAGE, PAGE_BYTES)
            found += len(page.messages)
            iterator, ahead = page.iterator, page.ahead
    return ReplayRate(name, found, time.process_time() - started_s, first_ms)


def measure_layout(layout: str, count: int) -> LaidOut:
    with TemporaryDirectory(prefix="flowguard-bench-") as name:
        folder = Path(name) / "data"
        store = open_store(folder, disk_reserve_bytes=0, log_layout=layout)
        append_s = commit_cost(store, logged(count), BATCH)
        replays = [measure_replay(store, each, filter) for each, filter in FILTERS.items()]
        store._engine.flush()
        size_bytes = data_bytes_of(folder)
        store.close()
    return LaidOut(layout, count / append_s, size_bytes / count, replays)


def measure(conditions: Conditions) -> DurableLog:
    """Fan-out by fan-out, queues and log by turns; then one log, read by all filters, in every
    layout."""
    costs = [measure_fan_out(subscribers, conditions) for subscribers in FAN_OUTS]
    count = conditions.count(MESSAGES)
    return DurableLog(count, costs, [measure_layout(layout, count) for layout in LAYOUTS])
