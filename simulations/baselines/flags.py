"""Flags: while the node is overloaded, new sockets are closed. Connected clients are not slowed.

Both detectors have one reaction: `Rung.CLOSE` closes a socket before TLS and MQTT, so that its
client gets no 0x89 (Server busy). Both watch the drift of the event loop, which is the wait of
whatever is ready to run.

- `RunQueueFlag` is EMQX's (load controller `lc`, off by default). It looks every T1, and in a burst
  every T2. A burst takes one of C1 credits per look; the last one raises the flag. Below a load of
  F2 one credit per T1 comes back, and the flag falls with the last but one. So it is raised after 2
  to 5 s of burst, and stays for 10 s or more. Emulated: a run queue of F1 = 8 per scheduler is a
  drift above the loop's objective, and a utilisation below F2 = 0.8 is a drift below 0.8 of it,
  because one loop has neither. Left out: killing processes, skipping hibernation and garbage
  collection, the 1 ms on each CONNECT, and the memory flag.
- `DriftFlag` is FlashMQ's (`overload_mode = close_new_clients`, the default is to log). It is up
  while the latest drift of the main loop, or the median over threads of the average of 16 drifts,
  is above 2 s. It has no hysteresis. Emulated: one loop is the main loop and the only thread, so
  that the median is its own average.
"""

from collections import deque
from typing import Final, Generic, Protocol, TypeVar, final

from flowguard.flow.load.signals import Pressure, Sample
from flowguard.flow.policy import Grant, Rung
from simulations.baselines.gates import OpenGate

K = TypeVar("K")

EMQX_T1_S: Final = 3.0
"""Time between two looks while there is no burst."""
EMQX_T2_S: Final = 1.0
"""Time between two looks in a burst."""
EMQX_C1: Final = 3
"""Credits: looks in a row that must see a burst."""
EMQX_F2: Final = 0.8
"""Load, in objectives, below which credits come back."""
FLASHMQ_DRIFT_MAX_S: Final = 2.0
"""Default of `max_event_loop_drift`."""
FLASHMQ_DRIFTS: Final = 16
"""Readings in the average."""
FLASHMQ_READING_S: Final = 1.0
"""Between two readings; as long as the second that `Sample.drift_s` looks back."""


class Flag(Protocol):
    """A detector of overload: yes or no."""

    def look(self, drift_s: float, now_s: float) -> bool:
        """Return True if the flag is up. Called every tick."""


@final
class RunQueueFlag:
    """EMQX's state machine, with credits as its hysteresis."""

    def __init__(self, drift_max_s: float) -> None:
        assert drift_max_s > 0
        self._drift_max_s = drift_max_s
        self._credits = EMQX_C1
        self._look_s = 0.0
        self._raised = False

    def look(self, drift_s: float, now_s: float) -> bool:
        if now_s >= self._look_s:
            self._look_s = now_s + self._step(drift_s / self._drift_max_s)
        return self._raised

    def _step(self, load: float) -> float:
        """Look at the load, in objectives; return the seconds until the next look."""
        if load > 1.0:
            return self._burst()
        if self._credits == EMQX_C1 - 1:
            self._raised = False
            self._credits = EMQX_C1
        elif self._credits < EMQX_C1 and load < EMQX_F2:
            self._credits += 1
        return EMQX_T1_S

    def _burst(self) -> float:
        if self._credits > 1:
            self._credits -= 1
            return EMQX_T2_S
        if self._credits == 1:
            self._raised = True
            self._credits = 0
            return EMQX_T1_S + EMQX_T2_S
        return EMQX_T1_S


@final
class DriftFlag:
    """FlashMQ's comparison, without memory of earlier comparisons."""

    def __init__(self) -> None:
        self._drifts: deque[float] = deque([0.0] * FLASHMQ_DRIFTS, maxlen=FLASHMQ_DRIFTS)
        self._read_s = 0.0

    def look(self, drift_s: float, now_s: float) -> bool:
        if now_s >= self._read_s:
            self._read_s = now_s + FLASHMQ_READING_S
            self._drifts.append(drift_s)
        average_s = sum(self._drifts) / FLASHMQ_DRIFTS
        return drift_s > FLASHMQ_DRIFT_MAX_S or average_s > FLASHMQ_DRIFT_MAX_S


@final
class Flagged(Generic[K]):
    """The largest window for every client, always; sockets are closed while the flag is up."""

    def __init__(self, window: int, flag: Flag, gate: OpenGate[K]) -> None:
        self._window = float(window)
        self._flag = flag
        self._gate = gate

    def grant(self, sample: Sample, pressure: Pressure) -> Grant:
        """The flag sets the gate's rung. The window never changes."""
        is_up = self._flag.look(sample.drift_s, sample.now_s)
        self._gate.climb(Rung.CLOSE if is_up else Rung.BUFFER)
        why = "flag is up: new sockets close" if is_up else "no flag"
        return Grant(self._window, pressure, why)
