"""`python -m benchmarks.overload.broker`: a flowguard that watches itself, in the open.

Its store has a known capacity, or is RocksDB (`--data`), or Redis where its settings say so. They
come from `FLOWGUARD_...` variables, as for `flowguard serve`. Prints `listening on HOST:PORT`, then
lines of JSON. SIGUSR1 holds the node under the highest pressure there is, SIGUSR2 lets go: a test
driver's lever, which the product does not have.
"""

import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import trio
import typer

from benchmarks.store.filling import open_store
from flowguard.__main__ import GC_THRESHOLDS
from flowguard.app.stores import open_store as open_named_store
from flowguard.broker.memory import bounds_of, memory_gauge
from flowguard.broker.server import Running, listen, serve
from flowguard.cli.descriptors import use_all_descriptors
from flowguard.cli.settings import load
from flowguard.cli.signals import on_signals
from flowguard.config import Settings
from flowguard.flow.load.signals import PRESSURE_MAX, TICK_S
from flowguard.node.node import Node
from flowguard.stores import MemoryStore, Store

from .store import COMMIT_S, MESSAGE_S, LimitedStore

HOST = "127.0.0.1"
PROBE_S = 0.002
"""The drift probe asks to be woken this much later, and notes how late it was."""
DRIFT_SHARE = 0.99


@contextmanager
def core_gauge() -> Iterator[Callable[[], float]]:
    """Reads how long this thread has waited for a core so far, ms."""
    with Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").open("rb") as schedstat:
        yield lambda: int(os.pread(schedstat.fileno(), 128, 0).split()[1]) / 1e6


class Drift:
    """How late the event loop wakes who asked for it, and how long it was denied its core."""

    def __init__(self) -> None:
        self.late_ms: list[float] = []
        self.denied_ms: list[float] = []

    async def watch(self) -> None:
        """Until cancelled."""
        with core_gauge() as waited_ms:
            while True:
                due_s, before_ms = trio.current_time() + PROBE_S, waited_ms()
                await trio.sleep_until(due_s)
                self.late_ms.append(round((trio.current_time() - due_s) * 1e3, 3))
                self.denied_ms.append(round(waited_ms() - before_ms, 3))

    def take(self) -> dict[str, object]:
        """Since the last call."""
        late_ms, denied_ms = self.late_ms, self.denied_ms
        self.late_ms, self.denied_ms = [], []
        p99_ms = sorted(late_ms)[int(DRIFT_SHARE * (len(late_ms) - 1))] if late_ms else 0.0
        return {"late_ms": late_ms, "denied_ms": denied_ms, "drift_p99_ms": p99_ms}


def row(node: Node, resident_bytes: int) -> dict[str, object]:
    pressure = node.guard.grant.pressure
    return {
        "at_s": time.monotonic(),
        "window": node.guard.window.limit,
        "pressure": pressure.value,
        "cause": None if pressure.cause is None else str(pressure.cause),
        "in_process": node.guard.window.in_process,
        "paused": node.state.paused_count,
        "sojourn": node.journal.written.sojourn.cumulative(),
        "resident_mib": resident_bytes / 2**20,
        "received": node.counters.publish_received,
        "dropped": node.counters.publish_dropped,
        "outbox_mib": node.state.outbox_budget.used_bytes / 2**20,
        "queues_mib": node.state.queue_budget.used_bytes / 2**20,
    }


async def report(running: Running, every_s: float) -> None:
    """Rows on stdout, until cancelled."""
    drift = Drift()
    with ExitStack() as stack:
        resident_bytes = stack.enter_context(memory_gauge())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drift.watch)
            while True:
                await trio.sleep(every_s)
                line = row(running.node, resident_bytes()) | drift.take()
                sys.stdout.write(json.dumps(line) + "\n")
                sys.stdout.flush()


async def hold(
    node: Node, *, task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED
) -> None:
    """Until the scope that it reports is cancelled: replicas that are far too late."""
    observer = node.guard.observer
    late_s = node.settings.flow.replication_objective_s * PRESSURE_MAX
    with trio.CancelScope() as scope:
        task_status.started(scope)
        try:
            while True:
                observer.replication(late_s)
                await trio.sleep(TICK_S / 2)
        finally:
            observer.replication(0.0)


async def obey(running: Running, *, task_status: trio.TaskStatus[None]) -> None:
    """SIGUSR1: hold the node under pressure; SIGUSR2: let go."""
    held: trio.CancelScope | None = None
    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(signal.SIGUSR1, signal.SIGUSR2) as signals:
            task_status.started()
            async for number in signals:
                if held is not None:
                    held.cancel()
                    held = None
                if number == signal.SIGUSR1:
                    held = await nursery.start(hold, running.node)


async def run(settings: Settings, store: Store, port: int, row_s: float) -> None:
    async with trio.open_nursery() as nursery:

        async def broker(*, task_status: trio.TaskStatus[Running]) -> None:
            await serve(bounds_of(settings), store, listen(HOST, port), task_status=task_status)
            nursery.cancel_scope.cancel()

        running: Running = await nursery.start(broker)
        await nursery.start(on_signals, running.stop.set)
        await nursery.start(obey, running)
        nursery.start_soon(report, running, row_s)
        sys.stdout.write(f"listening on {HOST}:{running.address[1]}\n")
        sys.stdout.flush()


def main(
    port: Annotated[int, typer.Option(min=0, max=65_535)] = 0,
    commit_ms: Annotated[float, typer.Option(help="0: a store that never waits.")] = COMMIT_S * 1e3,
    message_us: Annotated[float, typer.Option()] = MESSAGE_S * 1e6,
    row_s: Annotated[float, typer.Option(help="How often it says how it is.")] = 1.0,
    data: Annotated[Path | None, typer.Option(help="RocksDB there, instead.")] = None,
) -> None:
    use_all_descriptors()
    gc.set_threshold(*GC_THRESHOLDS)
    settings = load(None, os.environ).settings
    store: Store = MemoryStore()
    if data is not None:
        store = open_store(data, **settings.store.model_dump())
    elif settings.store.kind == "redis":
        store = open_named_store(settings, Path())
    elif commit_ms:
        store = LimitedStore(commit_ms / 1e3, message_us / 1e6)
    trio.run(run, settings, store, port, row_s)


if __name__ == "__main__":
    typer.run(main)
