"""ConcurrencyLimit: how many CONNECTs may be in process at once, found from how long they take.

The limit C starts at 16, after the loss of a peer at 4, and doubles with every completed round, a
round being C CONNECTs admitted and settled under C, as long as all C places were in use and the
pressure P is at most 1. P is the worse of the node's pressure and of the 90th percentile of service
time by its objective. From the first round above that, C is the value of a `controller`: a cut is
awaited for about a service time, used is a C of which half was in use, and only CONNECTs admitted
since the last cut say how long service takes now.
"""

from collections import deque
from math import ceil, inf
from typing import Final, final

from flowguard.flow.controller import CUT_GAIN, GROW_BELOW, LogController, Tuning
from flowguard.flow.signals import TICK_S

LIMIT_START: Final = 16
LIMIT_MIN: Final = 4
"""Below it the limit never goes, unless its maximum is smaller; also C after the loss of a peer."""
TUNING: Final = Tuning(
    hard_cut_gain=CUT_GAIN,
    confirms=False,
    hold_min_s=1.5 * TICK_S,
    holds_growth=True,
    growth_gain=inf,
    growth_used=1.05,
    growth_unused=1.02,
)
PERCENTILE: Final = 0.9
SAMPLES_MAX: Final = 512
"""The newest of them: enough for a percentile, and sorted in less than 0.1 ms per tick."""
SAMPLE_AGE_MAX_S: Final = 1.0


@final
class ConcurrencyLimit:
    """The adaptive limit, from 1 to `limit_max`."""

    __slots__ = (
        "_controller",
        "_doubling",
        "_objective_s",
        "_peak",
        "_pressure",
        "_round_settled",
        "_samples",
        "_since_s",
    )

    def __init__(self, limit_max: int, objective_s: float) -> None:
        assert limit_max >= 1
        assert objective_s > 0
        self._objective_s = objective_s
        self._samples: deque[tuple[float, float]] = deque(maxlen=SAMPLES_MAX)
        self._pressure = 0.0
        self._peak = 0
        limit_min = min(LIMIT_MIN, limit_max)
        self._controller = LogController(LIMIT_START, limit_min, limit_max, TUNING)
        self._doubling = True
        self._begin_round(LIMIT_START, -inf)

    @property
    def limit(self) -> int:
        """The limit now."""
        return int(self._controller.value)

    def restart(self, now_s: float) -> None:
        """A peer is lost and its clients are on their way: begin again, at the minimum."""
        limit_min, limit_max = self._controller.value_min, self._controller.value_max
        self._controller = LogController(LIMIT_MIN, limit_min, limit_max, TUNING)
        self._doubling = True
        self._begin_round(LIMIT_MIN, now_s)

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
        # Who is in process without anybody being done is no sign of calm.
        is_known = not self._doubling and (self._samples or not in_process)
        if worst >= GROW_BELOW or is_known:
            used = 2 * self._peak >= self.limit
            is_cut, _ = self._controller.step(worst, now_s, service_s, used=used)
            if is_cut:
                self._doubling = False
                self._samples.clear()
                self._since_s = now_s
        if not self._doubling:
            self._peak = in_process

    def _begin_round(self, limit: float, now_s: float) -> None:
        self._controller.move(limit)
        self._round_settled = 0
        self._peak = 0
        self._samples.clear()
        self._since_s = now_s

    def _end_round(self, now_s: float) -> None:
        pressure = max(self._pressure, self._service_s() / self._objective_s)
        if pressure > 1.0 or self.limit >= self._controller.value_max:
            self._doubling = False
        else:
            self._begin_round(2 * self.limit if self._peak >= self.limit else self.limit, now_s)

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
