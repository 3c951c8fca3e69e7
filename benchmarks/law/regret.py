"""Regret: how far a policy stays behind the best one of each load, on a utility by classes.

A utility is the weighted mean of a load's parts, each from 0 to 1 (`runs.Parts`). For publishers
without end a part is the share of the most that any policy got acknowledged there. Copies of
flowguard are measured against the same best policies, but are none of them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from random import Random
from statistics import fmean
from typing import Final, NamedTuple

from .dominance import OURS, dominates, mean_of
from .figures import Row
from .runs import CLASSES, POLICIES, WITHOUT_END, Parts, Run

Key = tuple[int, int]
"""Numbers of a load and of a run."""
Weights = Mapping[str, float]
"""By class; those of the classes that a load has count by their sum."""
HEADLINE: Final[Weights] = dict(zip(CLASSES, (0.35, 0.35, 0.1, 0.2), strict=True))
WEIGHTINGS: Final = 1_000
RESAMPLES: Final = 2_000
NOTICED: Final = 0.5
"""Points of utility below which two policies are equal on a load."""


def weighted_mean(parts: Parts, weights: Weights) -> float:
    whole = sum(weights[name] for name in parts)
    return sum(weights[name] * part for name, part in parts.items()) / whole


class Interval(NamedTuple):
    """A mean with its 95 % bootstrap interval over loads."""

    mean: float
    low: float
    high: float

    def text(self, sign: str = "") -> str:
        return f"{self.mean:{sign}.1f} [{self.low:{sign}.1f}, {self.high:{sign}.1f}]"


def interval(values: Sequence[float]) -> Interval:
    random = Random(1)
    means = sorted(fmean(random.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return Interval(fmean(values), means[RESAMPLES // 40], means[-(RESAMPLES // 40) - 1])


@dataclass(frozen=True)
class Standing:
    """A policy on a load, over all runs."""

    parts: Parts
    figures: Row
    deaths: float
    violations: tuple[str, ...]

    def utility(self, weights: Weights) -> float:
        """In points, 0 to 100."""
        return 100.0 * weighted_mean(self.parts, weights)


@dataclass(frozen=True)
class Comparison:
    """All policies on all loads."""

    standings: Mapping[str, Mapping[int, Standing]]
    """By policy and load."""
    copies: tuple[str, ...]
    before: tuple[str, ...]
    """Flowguard at other commits."""

    @property
    def loads(self) -> list[int]:
        return list(self.standings[OURS])

    @property
    def policies(self) -> list[str]:
        """Those of which the best is the reference: all but copies."""
        return [policy for policy in self.standings if policy not in self.copies]

    @property
    def rivals(self) -> list[str]:
        return [policy for policy in self.policies if policy != OURS and policy not in self.before]

    def of(self, is_one: Callable[[int], bool]) -> "Comparison":
        """Return the comparison of some of the loads."""
        kept = {
            policy: {load: one for load, one in row.items() if is_one(load)}
            for policy, row in self.standings.items()
        }
        return Comparison(kept, self.copies, self.before)

    def utilities(self, policy: str, weights: Weights = HEADLINE) -> list[float]:
        return [one.utility(weights) for one in self.standings[policy].values()]

    def regrets(self, policy: str) -> list[float]:
        """In points, load by load; below 0 for a copy that is better than all policies."""
        best = map(max, zip(*map(self.utilities, self.policies), strict=True))
        return [most - own for most, own in zip(best, self.utilities(policy), strict=True)]

    def gains(self, policy: str, other: str) -> list[float]:
        """Points by which `policy` is better than `other`, load by load."""
        pairs = zip(self.utilities(policy), self.utilities(other), strict=True)
        return [own - theirs for own, theirs in pairs]

    @property
    def best_rivals(self) -> list[str]:
        """The rivals by their mean regret, the least first."""
        return sorted(self.rivals, key=lambda policy: fmean(self.regrets(policy)))

    def won_shares(self) -> dict[str, float]:
        """The share of random weightings under which each policy has the least mean regret."""
        kinds = defaultdict(list)
        for load, one in self.standings[OURS].items():
            kinds[tuple(one.parts)].append(load)
        sums = {
            policy: [
                {name: sum(row[load].parts[name] for load in loads) for name in names}
                for names, loads in kinds.items()
            ]
            for policy, row in self.standings.items()
            if policy not in self.copies
        }
        won = dict.fromkeys(sums, 0.0)
        for weights in weightings():
            best = max(
                sums,
                key=lambda policy: sum(weighted_mean(parts, weights) for parts in sums[policy]),
            )
            won[best] += 1.0 / WEIGHTINGS
        return won

    def dominated(self, policy: str, others: Iterable[str]) -> list[int]:
        """The loads in which one of the others dominates the policy."""
        rows = [self.standings[other] for other in others if other != policy]
        return [
            load
            for load, one in self.standings[policy].items()
            if any(dominates(one.figures, row[load].figures) for row in rows)
        ]

    def died(self, policy: str) -> list[int]:
        """The loads in which a node died under the policy, and under another policy none did."""
        rows = [self.standings[other] for other in self.policies]
        return [
            load
            for load, one in self.standings[policy].items()
            if one.deaths and not all(row[load].deaths for row in rows)
        ]


def weightings() -> Iterator[Weights]:
    """Uniform over all weightings of the classes (Dirichlet), the same in every call."""
    random = Random(1)
    for _ in range(WEIGHTINGS):
        yield {name: random.expovariate(1.0) for name in CLASSES}


def compare(runs: Iterable[Run], before: Iterable[Run] = ()) -> Comparison:
    """Compare all policies on the runs of loads that all of them have.

    `before`: runs of an earlier commit. The flowguard of that commit is a policy of its own. The
    other policies stand for those that were not run again.
    """
    found: dict[str, dict[Key, Run]] = defaultdict(dict)
    laws = set()
    for one in before:
        name = one.policy
        if name == OURS:
            name = f"law of {one.commit[:7]}"
            laws.add(name)
        found[name][one.load, one.run] = one
    again: dict[str, dict[Key, Run]] = defaultdict(dict)
    for one in runs:
        again[one.policy][one.load, one.run] = one
    found |= again
    policies = sorted(found, key=_rank)
    keys = sorted(set.intersection(*(set(row) for row in found.values())))
    copies = tuple(policy for policy in policies if policy.startswith(f"{OURS}, copy"))
    standings: dict[str, dict[int, Standing]] = {policy: {} for policy in policies}
    for load, group in groupby(keys, key=itemgetter(0)):
        numbers = list(group)
        rows = {policy: [found[policy][key] for key in numbers] for policy in policies}
        most = max(
            fmean(one.parts[WITHOUT_END] for one in row)
            for policy, row in rows.items()
            if policy not in copies
        )
        for policy, row in rows.items():
            standings[policy][load] = _standing(row, most)
    return Comparison(standings, copies, tuple(sorted(laws)))


def _rank(policy: str) -> tuple[bool, bool, int]:
    """Flowguard, its copies and earlier laws, then the other policies."""
    is_known = policy in POLICIES
    return policy != OURS, is_known, POLICIES.index(policy) if is_known else 0


def _standing(runs: Sequence[Run], most: float) -> Standing:
    """`most`: what publishers without end got acknowledged under the best policy."""
    parts = mean_of([one.parts for one in runs])
    parts[WITHOUT_END] = min(1.0, parts[WITHOUT_END] / most) if most else 1.0
    return Standing(
        parts,
        mean_of([one.figures for one in runs]),
        sum(one.figures["deaths"] for one in runs),
        tuple(one.violation for one in runs if one.violation is not None),
    )
