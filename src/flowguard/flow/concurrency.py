"""ConcurrencyLimit: how many CONNECTs may be in process at once, found from how long they take.

The law: the limit C starts at 16, after the loss of a peer at 4, and doubles
with every completed round, a round being C CONNECTs admitted and settled under C, as long as all C
places were in use and the pressure P is at most 1. P is the worse of the node's pressure and of the
90th percentile of service time by its objective. From the first round above that, C follows P in
the log domain every tick: above 1.2 it is cut by P^-1/4, at most halved; up to 0.8 it grows by 5 %,
by 2 % if less than half of it was in use; in between it stands still.

One cut per feedback delay: after a cut C holds for about a service time, but for a second at most,
unless P gets twice as bad as it was, and only CONNECTs admitted since then say how long service
takes now. Without the second a loop that stood still for ten would hold for ten more, at a limit
that was right before.
"""

from collections import deque
from math import ceil, inf
from typing import Final, final

from flowguard.flow.signals import TICK_S

LIMIT_START: Final = 16
LIMIT_MIN: Final = 4
"""Below it the limit never goes, unless its maximum is smaller; also C after the loss of a peer."""
GAIN: Final = 0.25
CUT_ABOVE: Final = 1.2
CUT_MAX: Final = 0.5
GROW_BELOW: Final = 0.8
CALM_TICKS: Final = 3
GROWTH: Final = 1.05
GROWTH_UNUSED: Final = 1.02
PERCENTILE: Final = 0.9
SAMPLES_MAX: Final = 512
"""The newest of them: enough for a percentile, and sorted in less than 0.1 ms per tick."""
SAMPLE_AGE_MAX_S: Final = 1.0
HOLD_MIN_S: Final = 1.5 * TICK_S
HOLD_MAX_S: Final = 1.0
"""What took longer says nothing about now."""


@final
class ConcurrencyLimit:
    """The adaptive limit; `limit` is what it is now."""

    __slots__ = (
        "_calm_ticks",
        "_cut_pressure",
        "_doubling",
        "_held_until_s",
        "_limit_max",
        "_limit_min",
        "_objective_s",
        "_peak",
        "_pressure",
        "_round_settled",
        "_samples",
        "_since_s",
        "_value",
        "limit",
    )

    def __init__(self, limit_max: int, objective_s: float) -> None:
        assert limit_max >= 1
        assert objective_s > 0
        self._limit_max = limit_max
        self._limit_min = min(LIMIT_MIN, limit_max)
        self._objective_s = objective_s
        self._samples: deque[tuple[float, float]] = deque(maxlen=SAMPLES_MAX)
        self._pressure = 0.0
        self._peak = 0
        self._start(LIMIT_START, -inf)

    def restart(self, now_s: float) -> None:
        """A peer is lost and its clients are on their way: begin again, at the minimum."""
        self._start(LIMIT_MIN, now_s)

    def admitted(self, in_process: int) -> None:
        """One more is in process, `in_process` in all."""
        if in_process > self._peak:
            self._peak = in_process

    def settled(self, admitted_s: float, now_s: float) -> None:
        """A CONNECT admitted at `admitted_s` is answered, or its connection is gone."""
        if admitted_s < self._since_s:
            return  # It tells how the limit before did.
        self._samples.append((now_s, now_s - admitted_s))
        if self._doubling:
            self._round_settled += 1
            if self._round_settled >= self.limit:
                self._end_round(now_s)

    def tick(self, now_s: float, pressure: float, in_process: int) -> None:
        """One step of the law under the node's `pressure`; call every `TICK_S`."""
        self._pressure = pressure
        self._forget(now_s)
        service_s = self._service_s()
        # While it doubles, whole rounds judge how long service takes.
        late = 0.0 if self._doubling else service_s / self._objective_s
        worst = max(pressure, late)
        if now_s < self._held_until_s and worst <= 2.0 * self._cut_pressure:
            pass
        elif worst > CUT_ABOVE:
            self._cut(worst, service_s, now_s)
        elif worst < GROW_BELOW:
            # Who is in process without anybody being done is no sign of calm.
            if not self._doubling and (self._samples or not in_process):
                self._grow()
        else:
            self._calm_ticks = 0
        if not self._doubling:
            self._peak = in_process

    def _start(self, limit: int, now_s: float) -> None:
        self._doubling = True
        self._held_until_s = -inf
        self._cut_pressure = 0.0
        self._calm_ticks = 0
        self._begin_round(limit, now_s)

    def _begin_round(self, limit: float, now_s: float) -> None:
        self._move(limit)
        self._round_settled = 0
        self._peak = 0
        self._samples.clear()
        self._since_s = now_s

    def _end_round(self, now_s: float) -> None:
        pressure = max(self._pressure, self._service_s() / self._objective_s)
        if pressure > 1.0 or self.limit >= self._limit_max:
            self._doubling = False
        else:
            self._begin_round(2 * self.limit if self._peak >= self.limit else self.limit, now_s)

    def _cut(self, pressure: float, service_s: float, now_s: float) -> None:
        self._doubling = False
        self._calm_ticks = 0
        self._cut_pressure = pressure
        self._held_until_s = now_s + min(HOLD_MAX_S, max(HOLD_MIN_S, service_s))
        self._move(self._value * max(CUT_MAX, pressure**-GAIN))
        self._samples.clear()
        self._since_s = now_s

    def _grow(self) -> None:
        self._calm_ticks += 1
        if self._calm_ticks >= CALM_TICKS:
            self._move(self._value * (GROWTH if 2 * self._peak >= self.limit else GROWTH_UNUSED))

    def _move(self, value: float) -> None:
        self._value = min(float(self._limit_max), max(float(self._limit_min), value))
        self.limit = int(self._value)

    def _forget(self, now_s: float) -> None:
        samples = self._samples
        while samples and now_s - samples[0][0] > SAMPLE_AGE_MAX_S:
            samples.popleft()

    def _service_s(self) -> float:
        """90th percentile of the service times that count; 0 without any."""
        if not self._samples:
            return 0.0
        ordered = sorted([service_s for _, service_s in self._samples])
        return ordered[ceil(PERCENTILE * len(ordered)) - 1]
