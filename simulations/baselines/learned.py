"""Limits learned from response times: Netflix's Vegas and Gradient2 (`concurrency-limits`).

Both compare the present response time with a learned one. Vegas learns the least that it has seen,
again from time to time; Gradient2 learns a long average. Under a lasting overload the learned time
drifts up, and the limit with it. They are part of the comparison to show that.

The library limits calls in process of a whole service. This module takes its limit L as the node's,
and every client gets the window max(1, L / active clients). With more active clients than L,
nothing is limited any further, because a plain window is never below 1.

Emulated: the library gets every call; its `WindowedLimit` averages the calls of 1 s, or of 100 ms
at the shortest, and needs 10 at least. This module gives it one sample per tick, which is that
shortest window, or later if 10 packets take longer; the samples that Vegas counts and Gradient2
averages are these. The jitter of Vegas' probe is its mean, so that the same samples give the same
limits. The numbers are the library's defaults.
"""

from math import ceil, log10
from typing import Final, Protocol, final

from flowguard.flow.load.signals import Pressure, Sample
from flowguard.flow.policy import Grant

LIMIT_START: Final = 20.0
COMPLETED_MIN: Final = 10
"""Packets that make a sample of the response time."""
VEGAS_LIMIT_MAX: Final = 1_000.0
VEGAS_ALPHA: Final = 3
"""Length of a queue that is too short, in steps of log10 L."""
VEGAS_BETA: Final = 6
"""Length of a queue that is too long, in steps of log10 L."""
VEGAS_PROBE: Final = 30 * 0.75
"""Samples per unit of L between two probes; 0.75 is the mean of the jitter U(0.5, 1)."""
GRADIENT_LIMIT_MIN: Final = 20.0
GRADIENT_LIMIT_MAX: Final = 200.0
GRADIENT_TOLERANCE: Final = 1.5
"""Highest ratio of response time to long average that does not lower the limit."""
GRADIENT_MIN: Final = 0.5
"""Smallest gradient of one sample, before smoothing."""
GRADIENT_QUEUE: Final = 4.0
"""Packets that L may grow by."""
GRADIENT_SMOOTHING: Final = 0.2
GRADIENT_LONG: Final = 600
"""Samples in the long average."""
GRADIENT_WARM: Final = 10
"""Samples that count alike before it becomes exponential."""
GRADIENT_FORGET: Final = 0.95
"""Factor on the long average while it is more than twice the sample."""


class Limit(Protocol):
    """A limit of packets in process for the whole node."""

    value: float

    def learn(self, response_s: float, in_process: int) -> None:
        """Take one sample: mean response time, above 0, and the most packets in process
        meanwhile."""


@final
class Vegas:
    """L moves so that the queue, L (1 - least / now), stays between alpha and beta."""

    def __init__(self) -> None:
        self.value = LIMIT_START
        self._least_s = 0.0
        self._samples = 0

    def learn(self, response_s: float, in_process: int) -> None:
        """A probe, or a new least response time, updates that least time but not the limit."""
        self._samples += 1
        if self._samples >= VEGAS_PROBE * self.value:
            self._samples = 0
            self._least_s = response_s
        elif self._least_s == 0.0 or response_s < self._least_s:
            self._least_s = response_s
        elif in_process * 2 >= self.value:
            self.value = max(1.0, min(VEGAS_LIMIT_MAX, self._next(response_s)))

    def _next(self, response_s: float) -> float:
        step = max(1, int(log10(self.value)))
        queue = ceil(self.value * (1 - self._least_s / response_s))
        if queue <= step:
            return self.value + VEGAS_BETA * step
        if queue < VEGAS_ALPHA * step:
            return self.value + step
        if queue > VEGAS_BETA * step:
            return self.value - step
        return self.value


@final
class Gradient2:
    """L follows the ratio of the long average to the present response time."""

    def __init__(self) -> None:
        self.value = LIMIT_START
        self._long_s = 0.0
        self._samples = 0

    def learn(self, response_s: float, in_process: int) -> None:
        """A client that uses less than half of the limit does not move it."""
        self._samples += 1
        share = 2 / (GRADIENT_LONG + 1) if self._samples > GRADIENT_WARM else 1 / self._samples
        self._long_s += (response_s - self._long_s) * share
        long_s = self._long_s
        if long_s > 2 * response_s:
            self._long_s *= GRADIENT_FORGET
        if in_process * 2 < self.value:
            return
        gradient = max(GRADIENT_MIN, min(1.0, GRADIENT_TOLERANCE * long_s / response_s))
        aim = self.value * gradient + GRADIENT_QUEUE
        moved = self.value + (aim - self.value) * GRADIENT_SMOOTHING
        self.value = max(GRADIENT_LIMIT_MIN, min(GRADIENT_LIMIT_MAX, moved))


@final
class Learned:
    """The node's learned limit, in equal parts for the clients that are active."""

    def __init__(self, limit: Limit, window_max: int) -> None:
        self._limit = limit
        self._window_max = float(window_max)
        self._completed = 0
        self._in_process = 0
        self._response_s = 0.0

    def grant(self, sample: Sample, pressure: Pressure) -> Grant:
        """The limit ignores the pressure."""
        self._gather(sample)
        limit = self._limit.value
        window = max(1.0, min(self._window_max, limit / max(1, sample.clients_active)))
        why = f"{limit:.0f} in process for {sample.clients_active} active clients"
        return Grant(window, pressure, why)

    def _gather(self, sample: Sample) -> None:
        """Add the tick's packets; once there are enough of them, learn from their mean."""
        self._in_process = max(self._in_process, sample.in_process)
        self._completed += sample.completed
        self._response_s += sample.response_s * sample.completed
        if self._completed < COMPLETED_MIN:
            return
        mean_s = self._response_s / self._completed
        if mean_s > 0:
            self._limit.learn(mean_s, self._in_process)
        self._completed = self._in_process = 0
        self._response_s = 0.0
