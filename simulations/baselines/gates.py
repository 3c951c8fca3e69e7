"""Gates without a connect queue: a CONNECT is admitted or rejected with 0x89 (Server busy) at once.

No CONNECT waits, so none expires, is superseded or is abandoned. The gates have no budget for
rejections and no retry-after hint: these are flowguard's, and the compared brokers lack them.
"""

from math import inf
from typing import Final, Generic, TypeVar, final

from flowguard.flow.adaptive import RestartableGate
from flowguard.flow.load.signals import Pressure, Sample
from flowguard.flow.policy import Arrival, Rung
from flowguard.flow.verdict import Cut, Reason, Verdict

K = TypeVar("K")

CONNECTS_UNLIMITED: Final = 2**31 - 1
"""The limit of a gate that has none."""
CONNECT_RATE: Final = 500.0
"""CONNECTs per second, HiveMQ's default."""
CONNECT_BURST: Final = 1_000.0
"""CONNECTs at once after a pause: twice the rate, HiveMQ's default."""


class _Bufferless(Generic[K]):
    """The admitted connections, and counts of rejections by reason. `Gate` describes the
    methods."""

    def __init__(self) -> None:
        self._inside: set[K] = set()
        self._rung = Rung.BUFFER
        self.refused: dict[Reason, int] = {}
        self.cuts: dict[Cut, int] = {}
        self.reason: Reason | None = None
        """Reason of the last rejection."""

    @property
    def limit(self) -> int:
        return CONNECTS_UNLIMITED

    @property
    def in_process(self) -> int:
        return len(self._inside)

    @property
    def buffered(self) -> int:
        return 0

    @property
    def buffered_bytes(self) -> int:
        return 0

    @property
    def held_bytes(self) -> int:
        return 0

    @property
    def rung(self) -> Rung:
        return self._rung

    @property
    def late_claims_max(self) -> float:
        return inf

    @property
    def is_ready(self) -> bool:
        return False

    def holds(self, key: K) -> bool:
        return key in self._inside

    def settle(self, key: K, now_s: float) -> None:
        """The CONNECT is answered, or its connection has ended. Unknown keys are ignored."""
        self._inside.discard(key)

    def admit_next(self, now_s: float, heard_s: float | None = None) -> tuple[K, Verdict] | None:
        return None

    def abandon_next(self) -> K | None:
        return None

    def tick(self, sample: Sample, pressure: Pressure) -> None:
        """Nothing here adapts."""

    def retry_after_s(self, draw: float) -> float:
        return 0.0

    def may_accept(self, now_s: float) -> bool:
        return True

    def let_in(self, waited_s: float) -> None:
        """Do nothing: no CONNECT waits."""

    def closes(self, now_s: float) -> bool:
        """True whenever the rung demands it: closing has no budget."""
        return self._rung is Rung.CLOSE

    def spent(self, cost_s: float, now_s: float) -> None:
        """Not counted."""

    def _admit(self, key: K) -> Verdict:
        assert key not in self._inside
        self._inside.add(key)
        return Verdict.ADMIT

    def _refuse(self, reason: Reason) -> Verdict:
        self.reason = reason
        self.refused[reason] = self.refused.get(reason, 0) + 1
        return Verdict.REJECT


@final
class OpenGate(_Bufferless[K]):
    """Every CONNECT is admitted at once. A policy that closes new sockets sets `rung`."""

    def offer(self, key: K, arrival: Arrival, now_s: float) -> Verdict:
        return self._admit(key)

    def climb(self, rung: Rung) -> None:
        self._rung = rung


@final
class RejectGate(_Bufferless[K]):
    """The limit of another gate, moved by that gate's law. CONNECTs beyond it get 0x89 (Server
    busy).

    It differs from flowguard only by the missing connect queue and the missing budget for
    rejections. `limit` is what flowguard's own gate finds if no CONNECT waits, from the same
    admitted CONNECTs.
    """

    def __init__(self, lender: RestartableGate[K]) -> None:
        super().__init__()
        self.cuts = lender.cuts
        self._lender = lender

    @property
    def limit(self) -> int:
        return self._lender.limit

    def offer(self, key: K, arrival: Arrival, now_s: float) -> Verdict:
        if len(self._inside) >= self._lender.limit:
            return self._refuse(Reason.GATE_LIMIT)
        if self._lender.offer(key, arrival, now_s) is not Verdict.ADMIT:
            self._lender.settle(key, now_s)
            return self._refuse(Reason.GATE_LIMIT)
        return self._admit(key)

    def settle(self, key: K, now_s: float) -> None:
        """The lender measures the time that the CONNECT took."""
        super().settle(key, now_s)
        self._lender.settle(key, now_s)

    def tick(self, sample: Sample, pressure: Pressure) -> None:
        """The lender's law moves the limit."""
        self._lender.tick(sample, pressure)

    @property
    def crowd_pressure(self) -> float:
        """0: no CONNECT waits."""
        return 0.0

    @property
    def spent_s(self) -> float:
        return self._lender.spent_s

    def peer_lost(self, now_s: float) -> None:
        """The lender's limit starts again."""
        self._lender.peer_lost(now_s)


@final
class TokenBucketGate(_Bufferless[K]):
    """One token per CONNECT. Tokens come back at `rate`, and at most `burst` are kept.

    This is the bucket of HiveMQ's connect overload protection. HiveMQ stops reading new sockets for
    a while before it disconnects them. 4.28.9 and before answered 137, and this gate does so, too.
    """

    def __init__(self, rate: float = CONNECT_RATE, burst: float = CONNECT_BURST) -> None:
        super().__init__()
        assert rate > 0
        assert burst >= 1
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._filled_s: float | None = None

    def offer(self, key: K, arrival: Arrival, now_s: float) -> Verdict:
        if self._filled_s is not None:
            since_s = max(0.0, now_s - self._filled_s)
            self._tokens = min(self._burst, self._tokens + since_s * self._rate)
        self._filled_s = now_s
        if self._tokens < 1:
            return self._refuse(Reason.GATE_RATE)
        self._tokens -= 1
        return self._admit(key)
