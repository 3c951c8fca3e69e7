"""A broker as a process of its own, which can be killed: forked, so that it starts in no time.

The processes are children of multiprocessing's fork server, which has imported everything and
opened nothing.
"""

import gc
import logging
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socket
from typing import Any

import structlog
import trio

from flowguard.__main__ import GC_THRESHOLDS
from flowguard.broker.memory import bounds_of
from flowguard.broker.server import Running, listen, serve
from flowguard.cli.signals import on_signals
from flowguard.config import Settings
from flowguard.stores import Store
from tests.support.fork_server import CONTEXT
from tests.support.patience import HANG_S
from tests.torture.stores import STORES
from tests.torture.wire import HOST


@dataclass(frozen=True)
class Start:
    """The arguments of a broker's start."""

    port: int
    folder: Path
    """`store` and `broker.log` are in it."""
    store: str
    """One of `stores.STORES`."""
    settings: dict[str, dict[str, Any]]


class Broker:
    """A process from start to end; times are `time.monotonic`'s, the same in all processes."""

    def __init__(self, start: Start, *, cold: bool = False) -> None:
        """`cold`: an interpreter of its own, which has yet to import everything."""
        context = multiprocessing.get_context("spawn") if cold else CONTEXT
        self._reader, writer = context.Pipe(duplex=False)
        self._process = context.Process(target=main, args=(start, writer), daemon=True)
        self._serving_s: float | None = None
        self.cpu_s = 0.0
        """Processor time it took until then."""
        self.started_s = time.monotonic()
        self._process.start()
        writer.close()

    @property
    def serving_s(self) -> float | None:
        """When it began to serve, or None if it has not."""
        if self._serving_s is None and not self._reader.closed:
            try:
                if self._reader.poll():
                    self._serving_s, self.cpu_s = self._reader.recv()
            except EOFError:
                pass  # It was killed before.
        return self._serving_s

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def has_ended(self, within_s: float) -> bool:
        self._process.join(within_s)
        return not self.is_alive

    def terminate(self) -> None:
        """Ask it to drain and end."""
        self._process.terminate()

    def kill(self) -> int:
        """SIGKILL, and wait until nothing is left of it; its exit code."""
        self._process.kill()
        return self.wait()

    def wait(self) -> int:
        """Wait for its end and return its exit code, or the negative signal."""
        self._process.join(HANG_S)
        code = self._process.exitcode
        assert code is not None, "the process does not end"
        assert self.serving_s is None or self.serving_s > self.started_s
        self._reader.close()
        self._process.close()
        return code


def main(start: Start, report: Connection) -> None:
    """In the process: as `flowguard serve` does it."""
    log = os.open(start.folder / "broker.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process of the test.
    gc.set_threshold(*GC_THRESHOLDS)
    settings = Settings.model_validate(start.settings)
    listener = listen(HOST, start.port)
    store = STORES[start.store](start.folder / "store", settings.store)
    trio.run(_main, settings, store, listener, report)


async def _main(settings: Settings, store: Store, listener: socket, report: Connection) -> None:
    async with trio.open_nursery() as nursery:

        async def run(*, task_status: trio.TaskStatus[Running]) -> None:
            await serve(bounds_of(settings), store, listener, task_status=task_status)
            nursery.cancel_scope.cancel()

        running: Running = await nursery.start(run)
        await nursery.start(on_signals, running.stop.set)
        report.send((time.monotonic(), time.process_time()))
