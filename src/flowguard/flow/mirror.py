"""MirrorGate: the real gate for whoever asks, and behind it the shadow's, which sees the same.

Each CONNECT is a twin: one in reality under the caller's key, one in the shadow's gate under a
number of its own, because it may outlive the connection there. What is taken for what the shadow
cannot know stands in `flowguard.flow.shadow`.
"""

from heapq import heappop, heappush
from typing import Final, Generic, TypeVar, final

from flowguard.flow.policy import Arrival, Gate, Rung
from flowguard.flow.signals import Pressure, Sample
from flowguard.flow.verdict import Reason, Verdict

K = TypeVar("K")

MEAN_SHARE: Final = 0.1
"""Weight of the latest CONNECT in the mean time of serving one."""


@final
class _Twin:
    """One CONNECT in both worlds; in the shadow's gate its key is `serial`."""

    __slots__ = ("admitted_s", "real_s", "serial", "service_s", "waits")

    def __init__(self, serial: int) -> None:
        self.serial = serial
        self.real_s: float | None = None
        """When reality admitted it."""
        self.admitted_s: float | None = None
        """When the shadow admitted it; None before admission and after completion."""
        self.waits = False
        """In the shadow's buffer."""
        self.service_s: float | None = None
        """What serving it takes, once reality is done with it."""


@final
class MirrorGate(Generic[K]):
    """The real gate for whoever asks; every CONNECT goes to the shadow's gate as well."""

    def __init__(self, real: Gate[K], shadow: Gate[int]) -> None:
        self._enforced = real
        self._heard_s: float | None = None
        self._shadow = shadow
        self.refused = real.refused
        self.cuts = real.cuts
        self.admitted = 0
        self.closed = 0
        self._twins: dict[K, _Twin] = {}
        """Whom the real gate holds."""
        self._waiting: dict[int, _Twin] = {}
        """Whom the shadow's buffer holds."""
        self._due: list[tuple[float, int]] = []
        """When those whom only the shadow serves will be done: a heap."""
        self._serial = 0
        self._mean_s: float | None = None
        self._now_s = 0.0

    @property
    def limit(self) -> int:
        """The real gate's."""
        return self._enforced.limit

    @property
    def in_process(self) -> int:
        """The real gate's."""
        return self._enforced.in_process

    @property
    def buffered(self) -> int:
        """The real gate's."""
        return self._enforced.buffered

    @property
    def buffered_bytes(self) -> int:
        """The real gate's."""
        return self._enforced.buffered_bytes

    @property
    def held_bytes(self) -> int:
        """The real gate's."""
        return self._enforced.held_bytes

    @property
    def rung(self) -> Rung:
        """The real gate's."""
        return self._enforced.rung

    @property
    def is_ready(self) -> bool:
        """The real gate's."""
        return self._enforced.is_ready

    @property
    def reason(self) -> Reason | None:
        """The real gate's."""
        return self._enforced.reason

    def holds(self, key: K) -> bool:
        """The real gate's."""
        return self._enforced.holds(key)

    def offer(self, key: K, arrival: Arrival, now_s: float) -> Verdict:
        """The real verdict; the shadow's is counted."""
        would_close = self._shadow.closes(now_s) and not self._enforced.closes(now_s)
        verdict = self._enforced.offer(key, arrival, now_s)
        self._pass(now_s)
        self._serial += 1
        twin = _Twin(self._serial)
        if would_close:
            self.closed += 1
        else:
            self._place(twin, self._shadow.offer(twin.serial, arrival, now_s), now_s)
        if verdict is Verdict.ADMIT:
            twin.real_s = now_s
        if verdict in (Verdict.ADMIT, Verdict.DELAY):
            self._twins[key] = twin
        else:
            self._outlive(twin, self._mean_s or 0.0, now_s)
        return verdict

    def settle(self, key: K, now_s: float) -> None:
        """Over in reality; in the shadow as soon as it has taken as long there."""
        self._enforced.settle(key, now_s)
        self._pass(now_s)
        twin = self._twins.pop(key, None)
        if twin is not None:
            if twin.real_s is None:
                self._leave(twin, now_s)
            else:
                self._served(twin, now_s - twin.real_s, now_s)
        self._follow(now_s)

    def admit_next(self, now_s: float, heard_s: float | None = None) -> tuple[K, Verdict] | None:
        """The real answer; the shadow admits one as well, or all it can if reality has nobody."""
        self._heard_s = heard_s
        found = self._enforced.admit_next(now_s, heard_s)
        self._pass(now_s)
        if found is None:
            self._drain(now_s)
            return None
        key, verdict = found
        if verdict is Verdict.ADMIT:
            self._twins[key].real_s = now_s
            self._admit_one(now_s)
        else:
            # Before it is forgotten: an equal shadow gives it the same answer in the same call.
            self._admit_one(now_s)
            self._outlive(self._twins.pop(key), self._mean_s or 0.0, now_s)
        return found

    def abandon_next(self) -> K | None:
        """A node that drains serves nobody, whatever its policy: not counted."""
        key = self._enforced.abandon_next()
        if key is not None:
            self._leave(self._twins.pop(key), self._now_s)
        return key

    def tick(self, sample: Sample, pressure: Pressure) -> None:
        """The real gate's; the shadow's is ticked by its own policy."""
        self._enforced.tick(sample, pressure)

    def before_tick(self, now_s: float) -> None:
        """The shadow's policy is about to tick its gate: what ended until now must have ended."""
        self._pass(now_s)

    def after_tick(self, now_s: float) -> None:
        """Both gates were ticked by their policies."""
        if self._enforced.buffered or self._enforced.is_ready:
            self._follow(now_s)
        else:
            self._drain(now_s)

    def retry_after_s(self, draw: float) -> float:
        """The real gate's."""
        return self._enforced.retry_after_s(draw)

    def may_accept(self, now_s: float) -> bool:
        """The real gate's."""
        return self._enforced.may_accept(now_s)

    def let_in(self, waited_s: float) -> None:
        """Both doors see everybody who comes in."""
        self._enforced.let_in(waited_s)
        self._shadow.let_in(waited_s)

    def closes(self, now_s: float) -> bool:
        """The real gate's."""
        return self._enforced.closes(now_s)

    def spent(self, cost_s: float, now_s: float) -> None:
        """Book on the shadow's account what reality spent."""
        self._enforced.spent(cost_s, now_s)
        self._pass(now_s)
        self._shadow.spent(cost_s, now_s)

    def _place(self, twin: _Twin, verdict: Verdict, now_s: float) -> None:
        """The verdict of the shadow's gate."""
        if verdict is Verdict.ADMIT:
            self.admitted += 1
            twin.admitted_s = now_s
        elif verdict is Verdict.DELAY:
            twin.waits = True
            self._waiting[twin.serial] = twin

    def _served(self, twin: _Twin, service_s: float, now_s: float) -> None:
        """Reality has served it, or its client is gone meanwhile."""
        mean_s = service_s if self._mean_s is None else self._mean_s
        self._mean_s = mean_s + (service_s - mean_s) * MEAN_SHARE
        started_s = twin.admitted_s
        if started_s is not None and twin.real_s is not None and started_s <= twin.real_s:
            self._leave(twin, now_s)
        else:
            self._outlive(twin, service_s, now_s)

    def _outlive(self, twin: _Twin, service_s: float, now_s: float) -> None:
        """Reality is done with it; from now on its end in the shadow follows from `service_s`."""
        twin.service_s = service_s
        if twin.admitted_s is None:
            return
        until_s = twin.admitted_s + service_s
        if until_s <= now_s:
            self._leave(twin, now_s)
        else:
            heappush(self._due, (until_s, twin.serial))

    def _leave(self, twin: _Twin, now_s: float) -> None:
        """Gone from the shadow's gate, wherever it was."""
        twin.admitted_s = None
        if twin.waits:
            twin.waits = False
            del self._waiting[twin.serial]
        self._shadow.settle(twin.serial, now_s)

    def _pass(self, now_s: float) -> None:
        """Let those whose time is over leave the shadow, in order and each at its time."""
        while self._due and self._due[0][0] <= now_s:
            until_s, serial = heappop(self._due)
            self._shadow.settle(serial, max(until_s, self._now_s))
            self._now_s = max(until_s, self._now_s)
        self._now_s = now_s

    def _follow(self, now_s: float) -> None:
        """The shadow admits by itself, unless the real gate is about to be asked."""
        while self._shadow.is_ready and not self._enforced.is_ready and self._admit_one(now_s):
            pass

    def _drain(self, now_s: float) -> None:
        """The real gate has nobody: the shadow answers whom it can, the late ones as well."""
        while self._admit_one(now_s):
            pass

    def _admit_one(self, now_s: float) -> bool:
        found = self._shadow.admit_next(now_s, self._heard_s)
        if found is None:
            return False
        serial, verdict = found
        twin = self._waiting.pop(serial)
        twin.waits = False
        self._place(twin, verdict, now_s)
        if twin.service_s is not None:
            self._outlive(twin, twin.service_s, now_s)
        return True
