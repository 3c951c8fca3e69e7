"""Retry: when a client tries again after a failure; as `flowguard.storm.RetryPolicy`."""

from typing import final

from simulations.draws import Draws
from simulations.scenario import RetryPlan

DOUBLINGS_MAX = 30


@final
class Retry:
    """The retry behaviour of a population's clients."""

    __slots__ = ("_first_s", "_jitters", "_kind", "_max_s", "_obedience", "_obedient", "_tries")

    def __init__(self, plan: RetryPlan, seed: int, population: str) -> None:
        self._kind = plan.kind
        self._first_s = plan.first_s
        self._max_s = plan.max_s
        self._obedient = plan.obedient
        self._tries = plan.tries
        self._jitters = Draws(seed, f"{population}: retry")
        self._obedience = Draws(seed, f"{population}: obedience")

    def delay_s(
        self, client: int, failures: int, attempt: int, hint_s: float | None
    ) -> float | None:
        """Time that a client waits after its `failures`-th failure in a row; None: it gives up."""
        if self._kind == "none" or (self._tries is not None and failures >= self._tries):
            return None
        if hint_s is not None and self._obedience.uniform(client) < self._obedient:
            return hint_s
        if self._kind == "fixed":
            return self._first_s
        doubled_s: float = self._first_s * 2.0 ** min(failures - 1, DOUBLINGS_MAX)
        return min(self._max_s, doubled_s * (0.5 + self._jitters.uniform(client, attempt)))
