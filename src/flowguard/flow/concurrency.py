"""ConcurrencyLimit: how many CONNECTs may be in process at once, found from how long they take.

The limit C starts at 16, after the loss of a peer at 4, and doubles with every completed round, a
round being C CONNECTs admitted and settled under C, as long as all C places were in use and the
pressure P is at most 1: with every round while that raises the power, which is what is let in per
second by how long it takes, and once per tick where it does not. P is the 90th percentile of
service time by its objective, less what a packet of those who are connected would have waited as
well. From the first round above that, C is the value of a `controller`: a cut is awaited for about
a service time, used is a C of which half was in use, and only CONNECTs admitted since the last cut
say how long service takes now.

Where CONNECTs take all of the loop's time, a C above `LIMIT_START` stops doubling and shrinks by a
tenth per tick, until the loop has a moment left: with fewer places about as many are served per
second, and each of them sooner, before its client gives up.

What nobody uses does not grow beyond `LIMIT_START`, and after `UNUSED_S` C begins anew there: a C
that had grown to its maximum in calm would be no gate for the crowd that follows.

The node's own pressure counts from `NODE_FROM` on only. The window law holds it between 0.8 and 1.2
on purpose; a C that followed it there would grow never and be cut now and then, down to its minimum
beside anybody who publishes without end. Nor is a CONNECT slow because of C where it waits for the
same commits and turns as every packet (docs/overload.md, "CONNECT").
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
from flowguard.flow.signals import TICK_S
from flowguard.flow.verdict import Cut

LIMIT_START: Final = 16
LIMIT_MIN: Final = 4
"""Below it the limit never goes, unless its maximum is smaller; also C after the loss of a peer."""
TUNING: Final = Tuning(
    hard_cut_gain=CUT_GAIN,
    confirms=False,
    hold_min_s=1.5 * TICK_S,
    holds_growth=True,
    growth_gain=inf,
    growth_used=1.15,
    growth_unused=1.02,
)
UNUSED_S: Final = 5.0
"""So long a limit stays as it is though fewer than half of its places are in use, seconds."""
NODE_FROM: Final = HARD_CUT_ABOVE
"""Pressure of the node above which windows alone have not helped, or not yet."""
PACKETS: Final = 2.0
"""A CONNECT waits as long as so many packets one after the other through no fault of its own: it is
to be compared with nine of ten, what is known of packets is their mean."""
TURNS: Final = 10.0
"""A CONNECT that takes longer than so many packets waits for something that they have no part in:
who proves a password, say. Windows can move the rest, at most."""
PERCENTILE: Final = 0.9
SHRINK: Final = 0.9
"""Per tick in which CONNECTs take all of the loop's time, factor."""
PAYS: Final = 2.0**0.5
"""A doubled limit lets in so many times as many per second where it raises the power."""
SAMPLES_MAX: Final = 512
"""The newest of them: enough for a percentile, and sorted in less than 0.1 ms per tick."""
SAMPLE_AGE_MAX_S: Final = 1.0


@final
class ConcurrencyLimit:
    """The adaptive limit, from 1 to `limit_max`."""

    __slots__ = (
        "_controller",
        "_doubling",
        "_inside_max",
        "_packet_s",
        "_peak",
        "_pressure",
        "_rate",
        "_round_s",
        "_round_settled",
        "_samples",
        "_since_s",
        "_ticked",
        "_used_s",
        "cuts",
        "objective_s",
    )

    def __init__(self, limit_max: int, objective_s: float) -> None:
        assert limit_max >= 1
        assert objective_s > 0
        self.objective_s = objective_s
        self.cuts: dict[Cut, int] = {}
        """How often the limit was cut since the start, by what for."""
        self._samples: deque[tuple[float, float]] = deque(maxlen=SAMPLES_MAX)
        self._pressure = 0.0
        self._packet_s = 0.0
        """What a packet takes from its admission until it is done."""
        self._peak = 0
        """Most in process in this round, or since the last tick where none is counted."""
        self._inside_max = 0
        """Most since the last tick."""
        limit_min = min(LIMIT_MIN, limit_max)
        self._controller = LogController(LIMIT_START, limit_min, limit_max, TUNING)
        self._doubling = True
        self._rate = 0.0
        """Let in per second by the round before the last doubling."""
        self._ticked = False
        """A tick has passed since then."""
        self._used_s = inf
        """When half of the places were in use last; `inf`: before the first tick."""
        self._begin_round(LIMIT_START, -inf)

    @property
    def limit(self) -> int:
        """The limit now."""
        return int(self._controller.value)

    @property
    def service_pressure(self) -> float:
        """How long serving takes because it waits for the same as packets do, by its objective."""
        return min(self._service_s(), TURNS * self._packet_s) / self.objective_s

    @property
    def waits_like_packets(self) -> bool:
        """Whether serving waits for what packets wait for as well, and for little else."""
        return 0.0 < self._service_s() <= TURNS * self._packet_s

    def restart(self, now_s: float) -> None:
        """A peer is lost and its clients are on their way: begin again, at the minimum."""
        limit_min, limit_max = self._controller.value_min, self._controller.value_max
        self._controller = LogController(LIMIT_MIN, limit_min, limit_max, TUNING)
        self._begin_doubling(LIMIT_MIN, now_s)
        self._used_s = now_s

    def admitted(self, in_process: int) -> None:
        """One more is in process, `in_process` in all."""
        if in_process > self._peak:
            self._peak = in_process
        if in_process > self._inside_max:
            self._inside_max = in_process

    def settled(self, admitted_s: float, now_s: float) -> None:
        """A CONNECT admitted at `admitted_s` is answered, or its connection is gone."""
        if admitted_s < self._since_s:
            return  # It tells how the limit before did.
        self._samples.append((now_s, now_s - admitted_s))
        if self._doubling:
            if not self._round_settled:
                self._round_s = admitted_s
            self._round_settled += 1
            if self._round_settled >= self.limit:
                self._end_round(now_s)

    def tick(
        self,
        now_s: float,
        pressure: float,
        in_process: int,
        packet_s: float = 0.0,
        *,
        loop_is_full: bool = False,
    ) -> None:
        """One step of the law under the node's `pressure`; call every `TICK_S`.

        `packet_s`: what a packet takes from its admission until it is done; 0: there are none.
        `loop_is_full`: CONNECTs take all of the loop's time.
        """
        self._pressure = pressure if pressure > NODE_FROM else 0.0
        self._packet_s = packet_s
        self._ticked = True
        self._forget(now_s)
        used = 2 * self._peak >= self.limit
        self._look_for_use(now_s, in_process)
        service_s = self._service_s()
        # While it doubles, whole rounds judge how long service takes.
        late = 0.0 if self._doubling else self._late(service_s)
        worst = max(self._pressure, late)
        # Who is in process without anybody being done is no sign of calm.
        is_known = not self._doubling and (self._samples or not in_process)
        may_grow = is_known and (used or self.limit < self._start)
        if worst >= GROW_BELOW or (may_grow and not loop_is_full):
            before = self._controller.value
            is_cut, _ = self._controller.step(worst, now_s, service_s, used=used)
            if self._controller.value < before:
                self._count(Cut.SERVICE if worst == late else Cut.PRESSURE)
            if is_cut:
                self._doubling = False
                self._samples.clear()
                self._since_s = now_s
        if loop_is_full and self.limit > LIMIT_START:
            self._count(Cut.LOOP)
            self._doubling = False
            self._controller.move(max(LIMIT_START, SHRINK * self._controller.value))
        if not self._doubling:
            self._peak = in_process

    def _count(self, cut: Cut) -> None:
        self.cuts[cut] = self.cuts.get(cut, 0) + 1

    def _begin_doubling(self, limit: int, now_s: float) -> None:
        self._doubling = True
        self._rate = 0.0
        self._begin_round(limit, now_s)

    def _begin_round(self, limit: float, now_s: float) -> None:
        self._controller.move(limit)
        self._round_settled = 0
        self._round_s = now_s
        self._peak = 0
        self._samples.clear()
        self._since_s = now_s

    def _end_round(self, now_s: float) -> None:
        pressure = max(self._pressure, self._late(self._service_s()))
        if pressure > 1.0 or self.limit >= self._controller.value_max:
            self._doubling = False
        elif self._peak >= self.limit and self._may_double(now_s):
            self._begin_round(2 * self.limit, now_s)
        else:
            self._begin_round(self.limit, now_s)

    def _may_double(self, now_s: float) -> bool:
        """Whether the last doubling has paid, or a tick has passed since."""
        took_s = now_s - self._round_s
        rate = self._round_settled / took_s if took_s > 0 else inf
        if rate < PAYS * self._rate and not self._ticked:
            return False
        self._rate = rate
        self._ticked = False
        return True

    def _look_for_use(self, now_s: float, in_process: int) -> None:
        """Begin anew where nobody needs so many places."""
        inside, self._inside_max = self._inside_max, in_process
        if 2 * inside >= self.limit or self._used_s > now_s:
            self._used_s = now_s
        if now_s - self._used_s >= UNUSED_S and self.limit != self._start:
            self._begin_doubling(LIMIT_START, now_s)

    @property
    def _start(self) -> int:
        return min(LIMIT_START, int(self._controller.value_max))

    def _late(self, service_s: float) -> float:
        """How slow service is because of what is in process, by its objective."""
        return max(0.0, service_s - PACKETS * self._packet_s) / self.objective_s

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
