"""Load: the clients' side of a measurement, on the loop of `loadgen.storm`, step by step."""

import time
from collections.abc import Callable
from typing import final

import trio

from loadgen.storm.loop import ClientLoop
from loadgen.storm.plan import Target
from simulations.calibration.process import CalibrationError


@final
class Load:
    """Every socket of one load; times are monotonic, seconds."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.loop = ClientLoop(Target.resolve(*address), time.monotonic)

    @property
    def now_s(self) -> float:
        return self.loop.clock()

    @property
    def cpu_s(self) -> float:
        """CPU time of this process since its start."""
        return time.process_time()

    def run(self, until: Callable[[], bool], at_most_s: float, what: str) -> None:
        """Work until `until()`; raises CalibrationError with `what` after `at_most_s`."""
        end_s = self.now_s + at_most_s
        trio.run(self.loop.run, lambda now_s: until() or now_s > end_s)
        if not until():
            raise CalibrationError(f"{what}: not done after {at_most_s:g} s")

    def run_until(self, end_s: float) -> None:
        trio.run(self.loop.run, lambda now_s: now_s >= end_s)
