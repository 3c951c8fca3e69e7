"""ConcurrencyLimit: the number of CONNECTs that may be in process at once, from their service time.

The limit is the value of a `controller`. The pressure on it is the 90th percentile of service time
by its objective, less the time for which a packet of a connected client would have waited as well.
Only CONNECTs admitted since the last cut count. Between ticks the limit doubles with each round of
`limit` CONNECTs that are fast and use all slots. A crowd of a second does not wait for ticks.
docs/explain/overload.md, "CONNECT", has the rest, and
docs/develop/decisions/0005-limit-of-connects-in-process.md the reasons.
"""

from collections import deque
from math import ceil, inf
from typing import Final, final

from flowguard.flow.controller import (
    CUT_GAIN,
    GROW_BELOW,
    HARD_CUT_ABOVE,
    LogController,
    Tuning,
)
from flowguard.flow.load.signals import TICK_S
from flowguard.flow.verdict import Cut

LIMIT_START: Final = 16
LIMIT_MIN: Final = 4
"""The limit never falls below it, unless its maximum is smaller; also the limit after the loss of a
peer."""
TUNING: Final = Tuning(
    hard_cut_gain=CUT_GAIN,
    confirms=False,
    hold_min_s=1.5 * TICK_S,
    holds_growth=True,
    growth_gain=inf,
)
UNUSED_S: Final = 5.0
"""Time after which a limit begins again if fewer than half of its slots are in use, seconds."""
NODE_FROM: Final = HARD_CUT_ABOVE
"""Pressure of the node above which windows alone have not helped, or not yet."""
PACKETS: Final = 2.0
"""Number of packets in a row whose time is subtracted from a CONNECT's. It is above 1, because a
CONNECT's time is the longest of nine in ten, and for packets only the mean is known."""
FAST: Final = 0.2
"""A CONNECT that takes at most this share of the objective is fast."""
PERCENTILE: Final = 0.9
SAMPLES_MAX: Final = 512
"""The newest of them: enough for a percentile, and sorted in less than 0.1 ms per tick."""
SAMPLE_AGE_MAX_S: Final = 1.0


@final
class ConcurrencyLimit:
    """The adaptive limit, from 1 to `limit_max`."""

    __slots__ = (
        "_controller",
        "_fast_count",
        "_is_calm",
        "_peak",
        "_round_s",
        "_samples",
        "_since_s",
        "_used_s",
        "cuts",
        "objective_s",
    )

    def __init__(self, limit_max: int, objective_s: float) -> None:
        assert limit_max >= 1
        assert objective_s > 0
        self.objective_s = objective_s
        self.cuts: dict[Cut, int] = {}
        """How often the limit was cut since the start, by cause."""
        self._samples: deque[tuple[float, float]] = deque(maxlen=SAMPLES_MAX)
        """When a CONNECT was settled, and its service time."""
        self._peak = 0
        """Most CONNECTs in process since the last tick."""
        self._since_s = -inf
        """Only CONNECTs admitted since then count."""
        self._round_s = -inf
        """Start of the round under the present limit."""
        self._fast_count = 0
        """CONNECTs of the round that were fast, one after the other."""
        self._is_calm = True
        """False if the last tick found no reason to grow."""
        self._used_s = inf
        """When half of the slots were last in use; `inf` before the first tick."""
        self._controller = LogController(LIMIT_START, min(LIMIT_MIN, limit_max), limit_max, TUNING)

    @property
    def limit(self) -> int:
        return int(self._controller.value)

    def bound(self, limit_max: int, objective_s: float) -> None:
        """Use another maximum and objective from now on."""
        self.objective_s = objective_s
        self._controller.bound(min(LIMIT_MIN, limit_max), limit_max)

    def restart(self, now_s: float) -> None:
        """Begin again at the minimum: a peer is lost, and its clients will reconnect to this
        node."""
        self._begin(LIMIT_MIN, now_s)

    def _begin(self, limit: float, now_s: float) -> None:
        old = self._controller
        self._controller = LogController(limit, old.value_min, old.value_max, TUNING)
        self._samples.clear()
        self._since_s = self._used_s = now_s
        self._begin_round(now_s)

    def admitted(self, in_process: int) -> None:
        """Count an admitted CONNECT; `in_process` of them are in process now."""
        if in_process > self._peak:
            self._peak = in_process

    def settled(self, admitted_s: float, now_s: float) -> None:
        """A CONNECT admitted at `admitted_s` is answered, or its connection has ended."""
        if admitted_s < self._since_s:
            return
        service_s = now_s - admitted_s
        self._samples.append((now_s, service_s))
        if service_s > FAST * self.objective_s:
            self._fast_count = 0
        elif admitted_s >= self._round_s:
            self._fast_count += 1
            if self._fast_count >= self.limit <= self._peak and self._is_calm:
                self._controller.move(2 * self.limit)
                self._begin_round(now_s)

    def _begin_round(self, now_s: float) -> None:
        self._round_s = now_s
        self._fast_count = 0

    def store_stands(self, connects_count: float) -> None:
        """Allow `connects_count` CONNECTs in process.

        Call it instead of `tick` while the store stands still. CONNECTs in process wait for the
        store then, and a smaller limit makes no commit faster.
        """
        self._controller.move(max(self._controller.value, connects_count))

    def tick(self, now_s: float, pressure: float, in_process: int, packet_s: float = 0.0) -> None:
        """One step of the law under the node's `pressure`; call every `TICK_S`.

        `packet_s`: time of a packet from its admission until it is done; 0 if there are none.
        """
        samples = self._samples
        while samples and now_s - samples[0][0] > SAMPLE_AGE_MAX_S:
            samples.popleft()
        used = 2 * self._peak >= self.limit
        self._peak = in_process
        start = min(LIMIT_START, int(self._controller.value_max))
        if used or self._used_s > now_s:
            self._used_s = now_s
        elif now_s - self._used_s >= UNUSED_S and self.limit != start:
            self._begin(start, now_s)
        service_s = self._service_s()
        late = max(0.0, service_s - PACKETS * packet_s) / self.objective_s
        worst = max(late, pressure if pressure > NODE_FROM else 0.0)
        self._is_calm = worst < GROW_BELOW
        # Unfinished CONNECTs in process are no sign of calm.
        may_grow = used and (samples or not in_process)
        if self._is_calm and not may_grow:
            return
        before = self._controller.value
        is_cut, _ = self._controller.step(worst, now_s, service_s)
        if self._controller.value < before:
            cut = Cut.SERVICE if worst == late else Cut.PRESSURE
            self.cuts[cut] = self.cuts.get(cut, 0) + 1
        if is_cut:
            samples.clear()
            self._since_s = now_s
            self._begin_round(now_s)

    def _service_s(self) -> float:
        """90th percentile of the service times that count; 0 without any."""
        if not self._samples:
            return 0.0
        ordered = sorted([service_s for _, service_s in self._samples])
        return ordered[ceil(PERCENTILE * len(ordered)) - 1]
