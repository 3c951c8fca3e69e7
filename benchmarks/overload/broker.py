"""`python -m benchmarks.overload.broker`: flowguard with a store of known capacity, in the open.

Settings come from `FLOWGUARD_...` variables, as for `flowguard serve`. Prints `listening on
HOST:PORT`, then a line of JSON per second. SIGUSR1 holds the node under the highest pressure there
is, SIGUSR2 lets go: a test driver's lever, which the product does not have.
"""

import gc
import json
import signal
import sys
import time
from contextlib import ExitStack
from typing import Annotated

import trio
import typer

from flowguard.broker.memory import bounds_of, memory_gauge
from flowguard.broker.server import Running, listen, serve
from flowguard.cli.descriptors import use_all_descriptors
from flowguard.cli.serve import GC_THRESHOLDS
from flowguard.cli.settings import load_settings
from flowguard.cli.signals import on_signals
from flowguard.config import Settings
from flowguard.node.node import Node
from flowguard.stores import MemoryStore, Store

from .pressure import hold
from .store import COMMIT_S, MESSAGE_S, LimitedStore

HOST = "127.0.0.1"
SAMPLE_S = 1.0
PROBE_S = 0.005
"""The drift probe asks to be woken this much later, and notes how late it was."""
DRIFT_SHARE = 0.99


class Drift:
    """How late the event loop wakes who asked for it, seconds; the worst but 1 %."""

    def __init__(self) -> None:
        self._late_s: list[float] = []

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            due_s = trio.current_time() + PROBE_S
            await trio.sleep_until(due_s)
            self._late_s.append(trio.current_time() - due_s)

    def take(self) -> float:
        """The 99th percentile since the last call."""
        late_s, self._late_s = sorted(self._late_s), []
        return late_s[int(DRIFT_SHARE * (len(late_s) - 1))] if late_s else 0.0


def row(node: Node, resident_bytes: int, drift_s: float) -> dict[str, object]:
    """What the broker says of itself."""
    pressure = node.protection.grant.pressure
    return {
        "at_s": time.monotonic(),
        "window": node.window.limit,
        "pressure": pressure.value,
        "cause": None if pressure.cause is None else str(pressure.cause),
        "in_process": node.window.in_process,
        "paused": node.paused_count,
        "sojourn": node.journal.sojourn.cumulative(),
        "resident_mib": resident_bytes / 2**20,
        "drift_p99_ms": drift_s * 1e3,
        "received": node.counters.publish_received,
        "dropped": node.counters.publish_dropped,
        "outbox_mib": node.outbox_budget.used_bytes / 2**20,
        "queues_mib": node.queue_budget.used_bytes / 2**20,
    }


async def report(running: Running) -> None:
    """A row per second on stdout, until cancelled."""
    drift = Drift()
    with ExitStack() as stack:
        resident_bytes = stack.enter_context(memory_gauge())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drift.watch)
            while True:
                await trio.sleep(SAMPLE_S)
                line = row(running.node, resident_bytes(), drift.take())
                sys.stdout.write(json.dumps(line) + "\n")
                sys.stdout.flush()


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


async def run(settings: Settings, store: Store, port: int) -> None:
    async with trio.open_nursery() as nursery:

        async def broker(*, task_status: trio.TaskStatus[Running]) -> None:
            await serve(bounds_of(settings), store, listen(HOST, port), task_status=task_status)
            nursery.cancel_scope.cancel()

        running: Running = await nursery.start(broker)
        await nursery.start(on_signals, running.stop.set)
        await nursery.start(obey, running)
        nursery.start_soon(report, running)
        sys.stdout.write(f"listening on {HOST}:{running.address[1]}\n")
        sys.stdout.flush()


def main(
    port: Annotated[int, typer.Option(min=0, max=65_535)] = 0,
    commit_ms: Annotated[float, typer.Option(help="0: a store that never waits.")] = COMMIT_S * 1e3,
    message_us: Annotated[float, typer.Option()] = MESSAGE_S * 1e6,
) -> None:
    use_all_descriptors()
    gc.set_threshold(*GC_THRESHOLDS)
    store = LimitedStore(commit_ms / 1e3, message_us / 1e6) if commit_ms else MemoryStore()
    trio.run(run, load_settings(None), store, port)


if __name__ == "__main__":
    typer.run(main)
