"""Figures of a run, and of all its seeds together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import ceil, log, sqrt
from statistics import fmean, stdev
from typing import Final

from .probe import STEP_S, Observed

Figure = Callable[[Observed], float | None]
"""None: it never happened."""

STUDENT_95: Final = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""By degrees of freedom, from 1; beyond them 2.1 will do."""


@dataclass(frozen=True)
class Figures:
    values: tuple[float | None, ...]

    @property
    def never_count(self) -> int:
        return sum(value is None for value in self.values)

    @property
    def mean(self) -> float | None:
        """None: at least once it never happened."""
        known = [value for value in self.values if value is not None]
        return fmean(known) if len(known) == len(self.values) and known else None

    @property
    def half_width(self) -> float:
        """Of the 95 % interval of the mean; 0: one seed tells nothing about it."""
        return half_width([value for value in self.values if value is not None])

    def by(self, unit: float) -> "Figures":
        """In multiples of that; of nothing there are none."""
        return Figures(
            tuple(None if value is None or not unit else value / unit for value in self.values)
        )

    def text(self, unit: str = "", digits: int = 1) -> str:
        """As a table has it."""
        if self.mean is None:
            often = f" in {self.never_count} of {len(self.values)}" if len(self.values) > 1 else ""
            return f"never{often}"
        spread = f" ± {self.half_width:,.{digits}f}" if self.half_width else ""
        return f"{self.mean:,.{digits}f}{spread}{unit}"


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of their mean; 0: a single one tells nothing about it."""
    freedom = len(values) - 1
    if freedom < 1:
        return 0.0
    factor = STUDENT_95[freedom - 1] if freedom <= len(STUDENT_95) else 2.1
    return factor * stdev(values) / sqrt(len(values))


# --- over time -------------------------------------------------------------------------------


def index_of(t_s: float) -> int:
    """Of the first value at or after it."""
    return ceil(round(t_s / STEP_S, 6))


def rate(totals: Sequence[float], from_s: float, to_s: float) -> float | None:
    """Per second, of running totals; None: the run was over before."""
    first, last = index_of(from_s), index_of(to_s)
    if last >= len(totals) or last <= first:
        return None
    return (totals[last] - totals[first]) / ((last - first) * STEP_S)


def recovery_s(
    totals: Sequence[float], before: float, end_s: float, share: float = 0.95, over_s: float = 5.0
) -> float | None:
    """From `end_s` until the rate is back at `share` of `before`: for `over_s`, and for good."""
    last_s = (len(totals) - 1) * STEP_S
    for step in range(index_of(end_s), len(totals) - index_of(over_s)):
        t_s = step * STEP_S
        soon, later = rate(totals, t_s, t_s + over_s), rate(totals, t_s, last_s)
        if soon is None or later is None:
            return None
        if min(soon, later) >= share * before:
            return max(0.0, t_s - end_s)
    return None


def cut_s(windows: Sequence[float], at_s: float, share: float = 0.5) -> float | None:
    """From `at_s` until a window is that share of what it was."""
    first = index_of(at_s)
    for step in range(first, len(windows)):
        if windows[step] <= share * windows[first - 1]:
            return max(0.0, step * STEP_S - at_s)
    return None


def within_share(values: Sequence[float], low: float, high: float) -> float:
    """Of the values, 0 to 1."""
    return sum(low <= value <= high for value in values) / len(values) if values else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that so many are at most."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else 0.0


def swing(windows: Sequence[float], turns: int = 4) -> float:
    """Largest swing, in ln W, that is kept up: the least of `turns` in a row, up and down by turns.

    A window that is moved once by a disturbance swings once; a law that rings goes on and on.
    """
    logs = [log(window) for window, _ in groupby(windows) if window > 0.0]
    turning = [b for a, b, c in zip(logs, logs[1:], logs[2:], strict=False) if (b > a) == (b > c)]
    moves = [abs(b - a) for a, b in pairwise(turning)]
    runs = [min(moves[n : n + turns]) for n in range(len(moves) - turns + 1)]
    return max(runs, default=0.0)


def settled_s(pressures: Sequence[float], from_s: float, to_s: float) -> float | None:
    """From `from_s` until pressure is between 0.5 and 2 for a second, and in 95 % of the ticks to
    `to_s`.

    Without the second, one that goes out of bounds soon after the step would count as settled at
    once, if it is back quickly. None: it is not, or only in the second half, from which nothing
    follows.
    """
    part = pressures[index_of(from_s) : index_of(to_s)]
    inside = [0.5 <= pressure <= 2.0 for pressure in part]
    for step in range(len(inside) // 2):
        rest = inside[step:]
        if all(rest[: index_of(1.0)]) and sum(rest) >= 0.95 * len(rest):
            return step * STEP_S
    return None


def first_at_least(values: Sequence[float], wanted: float, from_s: float) -> float | None:
    """From `from_s` until a series that has fallen is back at `wanted`, for good."""
    part = values[index_of(from_s) :]
    below = [step for step, value in enumerate(part) if value < wanted]
    if not below:
        return 0.0
    return (below[-1] + 1) * STEP_S if below[-1] + 1 < len(part) else None


# --- of a run --------------------------------------------------------------------------------


def connected_99_s(run: Observed) -> float | None:
    return run.summary.connected_99_s


def attempts(run: Observed) -> float:
    return run.summary.attempts_per_client


def wasted_share(run: Observed) -> float:
    """Of the CONNECTs that were served, percent."""
    connected = run.summary.connected_share * run.summary.clients
    served = run.summary.wasted_count + connected
    return 100.0 * run.summary.wasted_count / served if served else 0.0


def goodput_share(run: Observed) -> float | None:
    """Of the messages that were due, in time, percent."""
    share = run.summary.in_time_share
    return None if share is None else 100.0 * share


def acknowledged_p99_ms(population: str, run: Observed) -> float | None:
    p99_s = run.acknowledged_p99_s[population]
    return None if p99_s is None else 1e3 * p99_s


def memory_mib(run: Observed) -> float:
    return max(max(row, default=0.0) for row in run.series.memories_bytes) / 2**20


def deaths(run: Observed) -> float:
    return float(run.summary.deaths_count)


def lost(run: Observed) -> float:
    return float(run.lost_count)


def ended_s(run: Observed) -> float:
    return run.summary.ended_s
