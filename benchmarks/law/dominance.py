"""The rule: a policy dominates another if it is clearly better in something and worse in nothing.

Better by more than a tenth in one figure at least, worse by more than 3 % in none; means over the
seeds. A figure that never happened is worse than any that did.
"""

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from statistics import fmean

from benchmarks.checks import Check, Grid, Report
from benchmarks.experiments.figures import half_width
from flowguard.config import PolicyName

from .cases import CASES
from .figures import Row, kind_of

OURS: PolicyName = "flowguard"
BETTER, WORSE = 0.10, 0.03
Rows = Mapping[tuple[str, PolicyName], Sequence[Row]]
"""The runs of every case and policy, one per seed."""


def mean_of(rows: Sequence[Row]) -> Row:
    """The mean of each figure; infinite where it never happened in one of them."""
    return {name: fmean(row[name] for row in rows) for name in rows[0]}


def gains(ours: Row, theirs: Row) -> dict[str, float]:
    """Figures in which theirs differ for the better, by the smaller of both; negative: worse."""
    found = {}
    for name, mine in ours.items():
        other, kind = theirs[name], kind_of(name)
        if mine == other or abs(mine - other) < kind.least:
            continue
        least = min(abs(mine), abs(other))
        size = abs(mine - other) / least if least and isfinite(mine - other) else inf
        is_better = (other > mine) is kind.more_is_better
        found[name] = size if is_better else -size
    return found


def dominates(ours: Row, theirs: Row) -> dict[str, float]:
    """What theirs are better in, if they dominate; empty: they do not."""
    found = gains(ours, theirs)
    if min(found.values(), default=0.0) < -WORSE:
        return {}
    return {name: gain for name, gain in found.items() if gain > BETTER}


def report(rows: Rows, violations: Mapping[tuple[str, PolicyName], str], seeds: int) -> Report:
    """A check and a table for every case."""
    checks, grids = [], []
    for case in dict.fromkeys(case for case, _ in rows):
        checks.append(_check(case, rows))
        grids.append(_grid(case, rows))
    notes = [f"{case}, {policy}: {what}" for (case, policy), what in violations.items()]
    notes += [
        f"{name}: not scaled: {case.unscaled}"
        for name, case in CASES.items()
        if case.unscaled and (name, OURS) in rows
    ]
    return Report(
        "law",
        "The law and all others, in every case",
        "Dominated: another policy is better by more than 10 % in one figure and worse by more "
        f"than 3 % in none; means of {seeds} seeds with their 95 % intervals. ∞: it never "
        "happened, in one seed at least. Waiting for an acknowledgement is judged where messages "
        "come whether or not others are acknowledged. t50, t99: until so many were connected; "
        "declined: attempts that failed, per 100 clients. A run that violates an invariant ends "
        "there, and is named below.",
        tuple(checks),
        tuple(grids),
        tuple(notes),
    )


def _check(case: str, rows: Rows) -> Check:
    ours = mean_of(rows[case, OURS])
    by = []
    for (other_case, policy), theirs in rows.items():
        found = dominates(ours, mean_of(theirs)) if other_case == case else {}
        if found and policy != OURS:
            by.append(
                f"{policy} ({', '.join(f'{name} {_percent(found[name])}' for name in found)})"
            )
    return Check(f"{case}: dominated by", "; ".join(by) or "nobody", "nobody", not by)


def _percent(gain: float) -> str:
    return f"+{100 * gain:.0f} %" if isfinite(gain) else "∞"


def _grid(case: str, rows: Rows) -> Grid:
    names = list(rows[case, OURS][0])
    lines = [
        (policy, *(_cell([row[name] for row in runs]) for name in names))
        for (other_case, policy), runs in rows.items()
        if other_case == case
    ]
    return Grid((case, *names), tuple(lines))


def _cell(values: Sequence[float]) -> str:
    mean = fmean(values)
    if not isfinite(mean):
        return "∞"
    if len(set(values)) == 1:
        return f"{mean:.3g}"
    return f"{mean:.3g} ± {half_width(values):.2g}"
