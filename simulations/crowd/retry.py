"""Retry: when a client tries again after a failure; as `loadgen.storm.RetryPolicy`."""

from typing import final

from simulations.draws import Draws
from simulations.scenario import RetryPlan

DOUBLINGS_MAX = 30


@final
class Retry:
    def __init__(self, plan: RetryPlan, seed: int, population: str) -> None:
        self._plan = plan
        self._jitters = Draws(seed, f"{population}: retry")
        self._obedience = Draws(seed, f"{population}: obedience")

    def delay_s(
        self, client: int, failures: int, attempt: int, hint_s: float | None
    ) -> float | None:
        """Return how long a client waits after its `failures`-th failure in a row, or None if it
        gives up."""
        plan = self._plan
        if plan.kind == "none" or (plan.tries is not None and failures >= plan.tries):
            return None
        if hint_s is not None and self._obedience.uniform(client) < plan.obedient:
            return hint_s
        if plan.kind == "fixed":
            return plan.first_s
        doubled_s: float = plan.first_s * 2.0 ** min(failures - 1, DOUBLINGS_MAX)
        return min(plan.max_s, doubled_s * (0.5 + self._jitters.uniform(client, attempt)))
