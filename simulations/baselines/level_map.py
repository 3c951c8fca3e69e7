"""Levels: a pressure becomes one of ten levels, and each has its window or rate. No memory, no
damping.

HiveMQ works with levels 1, lowest, to 10, critical, which are computed every 100 ms. Each lowers
the window of every client, from 100 packets towards 1, and all nodes apply the highest level of the
cluster. Neither the formula of the level nor the table of windows is published, so `level-map`
stands for that family, and not for HiveMQ.

Chosen by this module: levels 1 to 10 divide the pressures from half the objective to four times of
it (store stopped, memory at 90 %) evenly on a logarithmic scale, by a factor of 1.26 each. The
windows fall by the same factor from level to level. Any map without memory has the property that
the experiment is about: windows follow a noisy, delayed signal at full speed, and the loop swings
(experiment E10, docs/develop/benchmarks.md).

`rate-limit-v1` is the limiter that HiveMQ had before 4.28.10, and that flowguard's window replaces.
It limits packets per second, not packets in process. Each client has credits, and a PUBLISH takes
its weight of them. The higher the overload level, the fewer credits come back per tick. The work in
process has no bound, and a rate guessed too low leaves the node idle: HiveMQ itself calls its
limiter "sometimes overly restrictive". CONNECTs pass a token bucket; those beyond it get 137, and
there is no connect queue.

Not published, and chosen by this module: the level is the same, and the credits per tick fall from
100 at level 1, which is 1,000 PUBLISH per second and client, to 1 at level 10. HiveMQ weighed
topics by their cost as well. Here a PUBLISH has the weight that it has in a window (`flow/cost`),
and credits spent beyond those of a tick are owed: a client that publishes to 10,000 subscribers, at
a weight of 101, may do so ten times a second.
"""

from collections.abc import Callable
from math import exp, floor, log, log2
from typing import Final, Generic, TypeVar, final

from flowguard.cluster.pressure import Cluster
from flowguard.flow.adaptive import Tell, tell_nobody
from flowguard.flow.load.signals import Pressure, Sample
from flowguard.flow.policy import Gate, Grant
from simulations.baselines.static import WINDOW_UNLIMITED

K = TypeVar("K")

LEVEL_MIN: Final = 1
LEVEL_MAX: Final = 10
PRESSURE_LOWEST: Final = 0.5
"""Pressures below it are level 1."""
LEVELS_PER_DOUBLING: Final = 3
"""Chosen so that level 10 begins at a pressure of 4."""
CREDITS_MAX: Final = 100
"""PUBLISH per client and tick at level 1."""


def level_of(pressure: float) -> int:
    """Return the level, 1 to 10; it never falls when the pressure grows."""
    if pressure <= PRESSURE_LOWEST:
        return LEVEL_MIN
    steps = floor(LEVELS_PER_DOUBLING * log2(pressure / PRESSURE_LOWEST) + 1e-9)
    return min(LEVEL_MAX, LEVEL_MIN + steps)


def allowance_of(level: int, allowance_max: int) -> int:
    """From `allowance_max` at level 1 to 1 at level 10, the same factor from level to level."""
    assert LEVEL_MIN <= level <= LEVEL_MAX
    share = (LEVEL_MAX - level) / (LEVEL_MAX - LEVEL_MIN)
    return max(1, round(exp(log(allowance_max) * share)))


@final
class Levels:
    """The level that counts: this node's own, or the highest one of its cluster."""

    def __init__(
        self, allowance_max: int, cluster: Cluster | None = None, tell: Tell = tell_nobody
    ) -> None:
        self._allowance_max = allowance_max
        self._cluster = cluster
        self._tell = tell

    def tick(self, pressure: Pressure, connects_limit: int, now_s: float) -> tuple[int, int]:
        """Return the level and its allowance. The node announces its own level to the cluster."""
        level = level_of(pressure.value)
        cluster = self._cluster
        if cluster is not None:
            own = float(allowance_of(level, self._allowance_max))
            record = cluster.announce(own, pressure.value, pressure.cause, connects_limit, now_s)
            if record is not None:
                self._tell(record)
            for peer in cluster.peers(now_s):
                level = max(level, level_of(peer.pressure))
        return level, allowance_of(level, self._allowance_max)


@final
class Levelled(Generic[K]):
    """A law by levels: the node's own pressure limits CONNECTs, the cluster's level limits
    packets."""

    def __init__(
        self, levels: Levels, gate: Gate[K], allowed: Callable[[int, Pressure, str], Grant]
    ) -> None:
        """`allowed` returns the limits for an allowance, a pressure and a reason."""
        self._levels = levels
        self._gate = gate
        self._allowed = allowed

    def grant(self, sample: Sample, pressure: Pressure) -> Grant:
        level, allowance = self._levels.tick(pressure, self._gate.limit, sample.now_s)
        return self._allowed(allowance, pressure, f"level {level} of {LEVEL_MAX}")


def level_map(allowance: int, pressure: Pressure, why: str) -> Grant:
    """Grant the window of the present level, for every client."""
    return Grant(float(allowance), pressure, why)


def rate_limit(allowance: int, pressure: Pressure, why: str) -> Grant:
    """Grant the credits of the present level; the window is unlimited."""
    words = f"{why}: {allowance} PUBLISH a tick"
    return Grant(float(WINDOW_UNLIMITED), pressure, words, allowance)
