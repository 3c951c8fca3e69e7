"""Rejecting is work, too: its budget, and when rejected clients should connect again.

While CONNECTs wait, or memory rejects all of them, accepting and rejecting take at most a share of
the loop's time. A storm of retries then leaves time for the connected clients (`RefusalBudget`).
`Outlook` estimates how fast the crowd drains (docs/explain/overload.md, "CONNECT").
"""

from math import exp, inf
from typing import Final, final

from flowguard.flow.load.signals import TICK_S

RATE_MEMORY_S: Final = 1.0
"""Time constant of the completion rate, seconds."""
CROWD_MIN_S: Final = 0.3
"""Recent time with a waiting client from which there is a rate, seconds."""

RATE_DECAY_S: Final = 10.0
"""Time constant for forgetting a rate, seconds."""
REFUSED_DECAY_S: Final = 20.0
"""Time constant for expecting a rejected client back, seconds."""
LATE_MEMORY_S: Final = 10.0
"""Time after a late CONNECT in which others are rejected because they would be late, seconds."""
RETRY_MIN_S: Final = 1.0
RETRY_MAX_S: Final = 40.0
"""Bounds before the jitter, so that it survives them: hints are between 0.5 s and 60 s."""
JITTER_MIN: Final = 0.5


LEFT_MIN: Final = 0.2
"""Minimum share of the loop that counts as left by messages, so that rejections stay possible."""
LEFT_MEMORY_S: Final = 0.5


@final
class Smoothed:
    """A value that follows what is observed: the weight of an observation falls to 1/e within
    `memory_s` seconds."""

    __slots__ = ("_memory_s", "value")

    def __init__(self, value: float, memory_s: float) -> None:
        assert memory_s > 0
        self._memory_s: Final = memory_s
        self.value = value

    def observe(self, value: float, elapsed_s: float) -> None:
        """It was `value` for the last `elapsed_s` seconds."""
        self.value += (value - self.value) * (1.0 - exp(-elapsed_s / self._memory_s))


@final
class RefusalBudget:
    """Seconds of the loop that accepting and rejecting may take: a token bucket.

    In any T seconds the work is at most `share` * (T + `TICK_S`) plus the unit that overdraws it
    (invariant 16 of docs/explain/overload.md), if the caller asks `allows` before each unit of work
    and reports its cost. The budget is a share of the time that messages leave (`observe`): if they
    need most of the loop, rejections would otherwise take all of the rest. If the loop has a
    processor for a tenth of the time, it is that share of a tenth, because rejections would
    otherwise take all of it.
    """

    __slots__ = ("_at_s", "_balance_s", "_burst_s", "_left", "_share", "running_share")

    def __init__(self, share: float) -> None:
        self._left = Smoothed(1.0, LEFT_MEMORY_S)
        """Share of the loop that messages leave."""
        self.running_share = 1.0
        """Share of the time in which the loop has work and a processor."""
        self.use(share)
        self._balance_s = self._burst_s
        self._at_s = -inf

    def use(self, share: float) -> None:
        """Use this share from now on."""
        self._share = share
        self._burst_s = share * TICK_S

    @property
    def share(self) -> float:
        """Share of the loop for accepting and rejecting now."""
        return self._share * self._left.value * self.running_share

    def observe(self, messages_share: float, elapsed_s: float) -> None:
        """Messages took `messages_share` of the loop in the `elapsed_s` since the last call."""
        self._left.observe(max(LEFT_MIN, 1.0 - messages_share), elapsed_s)

    def allows(self, now_s: float) -> bool:
        """Return True if one more unit of work may be started."""
        self._refill(now_s)
        return self._balance_s > 0.0

    def spend(self, cost_s: float, now_s: float) -> None:
        """A unit of work took `cost_s`. Work that was not allowed leaves a debt."""
        self._refill(now_s)
        self._balance_s -= cost_s

    def _refill(self, now_s: float) -> None:
        balance_s = self._balance_s + self.share * (now_s - self._at_s)
        self._balance_s = min(self._burst_s, balance_s)
        self._at_s = now_s


@final
class Outlook:
    """How fast the crowd drains, from recently completed CONNECTs.

    Only time with a waiting client counts. Otherwise a node with one CONNECT per second would seem
    to serve no more than that, and reject the first small crowd.
    """

    __slots__ = (
        "_at_s",
        "_best_rate",
        "_completed",
        "_crowd_s",
        "_late_s",
        "_refused",
        "patience_s",
    )

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        """Connect timeout of clients."""
        self._at_s = -inf
        self._crowd_s = 0.0
        self._completed = 0.0
        self._refused = 0.0
        self._late_s = -inf
        self._best_rate = 0.0
        """The completion rate, which falls slowly: one second without completions changes it
        little."""

    def advance(self, now_s: float, *, crowded: bool) -> None:
        """Advance the time. `crowded` is True if a client has been waiting since the last call."""
        elapsed_s = now_s - self._at_s
        self._at_s = now_s
        if elapsed_s:
            self._refused *= exp(-elapsed_s / REFUSED_DECAY_S)
            self._best_rate *= exp(-elapsed_s / RATE_DECAY_S)
            kept = exp(-elapsed_s / RATE_MEMORY_S)
            self._completed *= kept
            self._crowd_s *= kept
        if crowded:
            self._crowd_s += elapsed_s
        self._best_rate = max(self._best_rate, self.completion_rate)

    def completed(self) -> None:
        """A CONNECT left its slot while another one waited for a slot."""
        self._completed += 1.0

    def was_late(self) -> None:
        """A client was rejected because it had waited for too long."""
        self._late_s = self._at_s

    def refused(self) -> None:
        """A CONNECT was rejected, and its client will try again."""
        self._refused += 1.0

    @property
    def completion_rate(self) -> float:
        """CONNECTs completed per second while a client waits; 0 if unknown."""
        return self._completed / self._crowd_s if self._crowd_s >= CROWD_MIN_S else 0.0

    def is_too_long(self, ahead: int, waited_s: float = 0.0) -> bool:
        """Return True if a client would time out at the best recent rate, as others have lately.

        It is behind `ahead` others, and has waited for `waited_s`. Without others or a recent
        timeout, the result is False.
        """
        rate = self._best_rate if self._at_s - self._late_s < LATE_MEMORY_S else 0.0
        return rate > 0.0 and ahead > 0 and ahead + 1 > rate * (self.patience_s - waited_s)

    def completed_in(self, time_s: float) -> float:
        """Return how many CONNECTs the best recent rate completes; 0 if it is unknown."""
        return self._best_rate * time_s

    def retry_after_s(self, draw: float, waiting: int, outside_s: float = 0.0) -> float:
        """Return the retry-after time: that of serving the waiting clients and those rejected
        lately, plus `outside_s` for those outside; times U(0.5, 1.5) by `draw`."""
        rate = self._best_rate
        drain_s = (waiting + self._refused) / rate if rate > 0.0 else self.patience_s
        return (JITTER_MIN + draw) * min(RETRY_MAX_S, max(RETRY_MIN_S, drain_s + outside_s))
