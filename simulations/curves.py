"""Curve: how many have come by each instant, as evenly as possible between the points of a
trace."""

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import final

from simulations.scenario import TracePlan


@final
class Curve:
    """The running total of a trace; linear between its points."""

    __slots__ = ("_sums", "_times_s", "total")

    def __init__(self, plan: TracePlan) -> None:
        times_s = [t_s for t_s, _ in plan.points]
        step_s = times_s[-1] - times_s[-2] if len(times_s) > 1 else 1.0
        self._times_s = [t_s / plan.squeeze for t_s in (*times_s, times_s[-1] + step_s)]
        self._sums = list(accumulate((plan.scale * n for _, n in plan.points), initial=0.0))
        self.total = self._sums[-1]
        """The total of all that ever come."""

    def by(self, t_s: float) -> float:
        """How many have come by then."""
        times_s, sums = self._times_s, self._sums
        if t_s <= times_s[0]:
            return 0.0
        if t_s >= times_s[-1]:
            return self.total
        i = bisect_right(times_s, t_s) - 1
        share = (t_s - times_s[i]) / (times_s[i + 1] - times_s[i])
        return sums[i] + share * (sums[i + 1] - sums[i])

    def when(self, number: float) -> float | None:
        """The instant at which so many have come; None: never."""
        times_s, sums = self._times_s, self._sums
        if number > self.total:
            return None
        i = max(1, bisect_left(sums, number))
        share = (number - sums[i - 1]) / ((sums[i] - sums[i - 1]) or 1.0)
        return times_s[i - 1] + share * (times_s[i] - times_s[i - 1])
