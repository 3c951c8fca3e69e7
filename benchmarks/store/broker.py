"""`python -m benchmarks.store.broker`: a flowguard that watches how long its event loop is away.

Settings come from `FLOWGUARD_...` variables. Prints `listening on HOST:PORT`, then every 100 ms a
line of JSON: how late the loop woke who asked for it, and for how much of that the kernel gave its
core to somebody else.
"""

import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import trio
import typer

from benchmarks.brokers import HOST
from flowguard.broker.memory import bounds_of
from flowguard.broker.server import Running, listen, serve
from flowguard.cli.descriptors import use_all_descriptors
from flowguard.cli.serve import GC_THRESHOLDS
from flowguard.cli.settings import load_settings
from flowguard.cli.signals import on_signals
from flowguard.config import Settings
from flowguard.stores import MemoryStore, Store

from .filling import open_store

PROBE_S: Final = 0.002
"""Who asks to be woken asks for so much later."""
ROW_S: Final = 0.1


@contextmanager
def core_gauge() -> Iterator[Callable[[], float]]:
    """Reads how long this thread has waited for a core so far, ms."""
    with Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").open("rb") as schedstat:
        yield lambda: int(os.pread(schedstat.fileno(), 128, 0).split()[1]) / 1e6


async def watch(waited_ms: Callable[[], float]) -> None:
    """A row every 100 ms on stdout, until cancelled."""
    late_ms: list[float] = []
    denied_ms: list[float] = []
    since_s = trio.current_time()
    while True:
        due_s, before_ms = trio.current_time() + PROBE_S, waited_ms()
        await trio.sleep_until(due_s)
        now_s = trio.current_time()
        late_ms.append(round((now_s - due_s) * 1e3, 3))
        denied_ms.append(round(waited_ms() - before_ms, 3))
        if now_s - since_s >= ROW_S:
            row = {"at_s": time.monotonic(), "late_ms": late_ms, "denied_ms": denied_ms}
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()
            late_ms, denied_ms, since_s = [], [], now_s


async def run(settings: Settings, store: Store, waited_ms: Callable[[], float]) -> None:
    async with trio.open_nursery() as nursery:

        async def broker(*, task_status: trio.TaskStatus[Running]) -> None:
            await serve(bounds_of(settings), store, listen(HOST, 0), task_status=task_status)
            nursery.cancel_scope.cancel()

        running: Running = await nursery.start(broker)
        await nursery.start(on_signals, running.stop.set)
        nursery.start_soon(watch, waited_ms)
        sys.stdout.write(f"listening on {HOST}:{running.address[1]}\n")
        sys.stdout.flush()


def main(data: Annotated[Path, typer.Option()]) -> None:
    use_all_descriptors()
    gc.set_threshold(*GC_THRESHOLDS)
    settings = load_settings(None)
    store: Store = MemoryStore()
    if settings.store.kind != "memory":
        store = open_store(data, **settings.store.model_dump())
    with core_gauge() as waited_ms:
        trio.run(run, settings, store, waited_ms)


if __name__ == "__main__":
    typer.run(main)
