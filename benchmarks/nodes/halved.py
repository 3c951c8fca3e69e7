"""One of three nodes has a processor for half of the time: whose windows shrink?

As in `slowed`, with pairs apart and touching. All processes of the last node stand still (SIGSTOP)
for half of each 0.2 s.
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

KEY = "nodes-halved"
STEP_S = 0.1
PROCESSOR = Fault(
    KEY,
    "Three nodes, one of them without a processor for half of the time",
    "one node halved",
    f"All processes of the last node are stopped for {STEP_S:g} s, then go on for as long.",
)


class Halving(threading.Thread):
    """Stops processes for half of the time, from `start` to `end`."""

    def __init__(self, pids: Iterable[int]) -> None:
        super().__init__(daemon=True)
        self._pids = list(pids)
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.wait(STEP_S):
            self._signal(signal.SIGSTOP)
            self._is_over.wait(STEP_S)
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
                halving = Halving(nodes[SLOWED].pids())
                seconds = conditions.scaled(FULL_S, 4.0)
                try:
                    return observed(PROCESSOR, nodes, folder, seconds, halving.start, halving.end)
                finally:
                    if halving.is_alive():
                        halving.end()
