"""One of three nodes has a processor for a tenth of the time: whose windows shrink?

As in `slowed`, with pairs apart and touching. All processes of the last node stand still (SIGSTOP)
for nine tenths of each 0.2 s, so that it cannot do its work. With half of the time it still can.
"""

import os
import signal
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import machine
from benchmarks.conditions import Conditions
from benchmarks.peers import BUILT
from benchmarks.redis.servers import redis_server

from .running import NodePlan, running
from .slowed import FULL_S, NODES, SLOWED, Fault, Slowed, observed

KEY = "nodes-starved"
STOPPED_S, RUNS_S = 0.18, 0.02
PROCESSOR = Fault(
    KEY,
    "Three nodes, one of them with a processor for a tenth of the time",
    "one node starved",
    f"All processes of the last node are stopped for {STOPPED_S:g} s, "
    f"then go on for {RUNS_S:g} s, again and again.",
)


class Starving(threading.Thread):
    """Stops processes for nine tenths of the time, from `start` to `end`."""

    def __init__(self, pids: Iterable[int]) -> None:
        super().__init__(daemon=True)
        self._pids = list(pids)
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.wait(RUNS_S):
            self._signal(signal.SIGSTOP)
            self._is_over.wait(STOPPED_S)
            self._signal(signal.SIGCONT)

    def end(self) -> None:
        self._is_over.set()
        self.join()

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def measure(conditions: Conditions) -> Slowed:
    BUILT.prepare()
    with (
        TemporaryDirectory(prefix="flowguard-bench-") as name,
        machine.pinned(conditions.generator_core),
    ):
        folder = Path(name)
        with redis_server(folder / "redis", "always") as redis:
            plans = [NodePlan(redis.url, NODES, 1) for _ in range(NODES)]
            with running(folder, plans, conditions.broker_core) as nodes:
                starving = Starving(nodes[SLOWED].pids())
                seconds = conditions.scaled(FULL_S, 4.0)
                try:
                    return observed(PROCESSOR, nodes, folder, seconds, starving.start, starving.end)
                finally:
                    if starving.is_alive():
                        starving.end()
