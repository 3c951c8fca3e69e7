"""The rate limiter that HiveMQ had before 4.28.10, and that flowguard's window replaces.

It limits packets per second, not packets in process: each client has credits, a PUBLISH takes one,
and the higher the overload level, the fewer come back per tick. Nothing bounds the work in process,
and a rate guessed too low leaves the node idle: HiveMQ itself calls its limiter "sometimes overly
restrictive". CONNECTs pass a token bucket; beyond it the answer is 137, and there is no buffer.

Not published, chosen here: the level is `level_map`'s, and the credits per tick fall from 100 at
level 1, which is 1,000 PUBLISH per second and client, to 1 at level 10. HiveMQ weighed topics by
their cost as well; here every PUBLISH takes one credit.
"""

from typing import Final, Generic, TypeVar, final

from flowguard.baselines.level_map import LEVEL_MAX, Levels
from flowguard.baselines.static import WINDOW_UNLIMITED, Judge
from flowguard.flow.policy import Gate, Grant
from flowguard.flow.signals import Sample

K = TypeVar("K")

CREDITS_MAX: Final = 100
"""PUBLISH per client and tick at level 1."""


@final
class RateLimit(Generic[K]):
    """Credits by the level of now; the window is as wide as it goes."""

    __slots__ = ("_judge", "_levels", "gate", "name")

    def __init__(self, name: str, levels: Levels, gate: Gate[K], judge: Judge) -> None:
        self.name = name
        self.gate: Gate[K] = gate
        self._levels = levels
        self._judge = judge

    def tick(self, sample: Sample) -> Grant:
        """The highest level of the cluster sets everybody's rate."""
        pressure = self._judge(sample)
        self.gate.tick(sample.now_s, pressure.value)
        level, credits = self._levels.tick(pressure, self.gate.limit, sample.now_s)
        why = f"level {level} of {LEVEL_MAX}: {credits} PUBLISH a tick"
        return Grant(float(WINDOW_UNLIMITED), pressure, why, credits)
