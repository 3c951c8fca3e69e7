"""Policies that ignore their samples: a fixed window, from one packet to no limit at all.

`static-1`, `static-10`, `static-100` do what brokers with an in-flight cap do (EMQX `active_n`,
Mosquitto `max_inflight_messages`). The best of them, found by search, is the measure for experiment
E1 (docs/develop/benchmarks.md). `unlimited` shows that a test can fail.
"""

from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar, final

from flowguard.flow.load.signals import Pressure, Sample
from flowguard.flow.policy import Gate, Grant

K = TypeVar("K")
Judge = Callable[[Sample], Pressure]
"""Maps a sample to its pressure against the node's objectives."""

WINDOW_UNLIMITED: Final = 65_535
"""The largest Receive Maximum that MQTT 5.0 can express: no client has more in process."""


class Law(Protocol):
    def grant(self, sample: Sample, pressure: Pressure) -> Grant:
        """Return the limits until the next sample."""


@final
class Baseline(Generic[K]):
    """Another broker's overload law, as a `flow.policy.Policy`."""

    def __init__(self, name: str, gate: Gate[K], judge: Judge, law: Law) -> None:
        self.name = name
        self.gate: Gate[K] = gate
        self._judge = judge
        self._law = law

    def tick(self, sample: Sample) -> Grant:
        """Judge the pressure for the record and for the gate, even if the law ignores it."""
        pressure = self._judge(sample)
        self.gate.tick(sample, pressure)
        return self._law.grant(sample, pressure)


@final
class Static:
    def __init__(self, window: int) -> None:
        assert 1 <= window <= WINDOW_UNLIMITED
        self._window = float(window)
        self._why = "no limit" if window == WINDOW_UNLIMITED else f"fixed at {window}"

    def grant(self, sample: Sample, pressure: Pressure) -> Grant:
        return Grant(self._window, pressure, self._why)
