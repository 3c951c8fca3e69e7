"""Scoring: a candidate's run beside that of the defaults with the same place and seed.

A pair's score is the mean of the logarithms of its terms' ratios, each so that more is better. A
mean of logarithms is the geometric mean of ratios: it has no unit, so that seconds and messages of
different scenarios can be added, twice as good here makes up for half as good there, and what is
compared with what does not change the order. Seeds are what varies by chance, so the score of a
seed, the mean of all its places, is what intervals are made of.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spark_analysis.questions.question import Better
from spark_analysis.report.words import quantity
from spark_analysis.tuner.measuring import Measures
from spark_analysis.tuner.objective import Constraint, Objective, Term
from spark_analysis.tuner.trials import DEFAULTS, Candidate, Place, Trials


@dataclass(frozen=True, slots=True)
class Breach:
    """A constraint that did not hold in some runs."""

    words: str
    runs: int
    of_runs: int

    def __str__(self) -> str:
        return f"{self.words} in {self.runs} of {self.of_runs} runs"


class Scores:
    """Compares runs; candidates must have all runs that are asked for."""

    def __init__(self, objective: Objective, trials: Trials, measures: Measures) -> None:
        self._objective = objective
        self._trials = trials
        self._measures = measures

    def pair(self, candidate: Candidate, place: Place, seed: int) -> float | None:
        """Return the mean log ratio of the candidate's run to the defaults', or None without a
        term.

        A value that the candidate never has makes it -infinity; one that the defaults never have is
        no credit to it.
        """
        weighted, weights = [], []
        for term in self._objective.objectives:
            if (score := self.term(term, candidate, place, seed)) is not None:
                weighted.append(term.weight * score)
                weights.append(term.weight)
        return math.fsum(weighted) / math.fsum(weights) if weights else None

    def term(self, term: Term, candidate: Candidate, place: Place, seed: int) -> float | None:
        """Return the log ratio of one term, or None if it is not measured."""
        mine = self._trials.run_ids[candidate, place, seed]
        theirs = self._trials.run_ids[DEFAULTS, place, seed]
        if not term.is_asked_in(place.scenario) or not self._measures.has(term, theirs):
            return None
        return self._log_ratio(term, mine, theirs)

    def _log_ratio(self, term: Term, mine: str, theirs: str) -> float:
        value = self._measures.of(term, mine) if self._measures.has(term, mine) else None
        default = self._measures.of(term, theirs)
        if default is None or value is None:
            return 0.0 if default is None else -math.inf
        ratio = math.log(max(value, term.least) / max(default, term.least))
        return ratio if term.what.better is Better.MORE else -ratio

    def seed(self, candidate: Candidate, places: Sequence[Place], seed: int) -> float | None:
        """The weighted mean of a seed's places; scenarios weigh what the objective says."""
        scored = [(place, self.pair(candidate, place, seed)) for place in places]
        known = [(place, score) for place, score in scored if score is not None]
        if not known:
            return None
        weights = [self._weight(place, [other for other, _ in known]) for place, _ in known]
        weighted = [weight * score for weight, (_, score) in zip(weights, known, strict=True)]
        return math.fsum(weighted) / math.fsum(weights)

    def _weight(self, place: Place, places: Sequence[Place]) -> float:
        """The weight of a place: all places of a scenario together weigh as much as the
        scenario."""
        same = sum(other.scenario == place.scenario for other in places)
        return self._objective.weights.get(place.scenario, 1.0) / same

    def breaches(
        self, candidate: Candidate, places: Sequence[Place], seeds: Iterable[int]
    ) -> tuple[Breach, ...]:
        """The constraints broken in these runs; invariants come first."""
        pairs = [(place, seed) for seed in seeds for place in places]
        runs = [self._trials.run_ids[candidate, place, seed] for place, seed in pairs]
        violated = sum(run_id in self._measures.violated for run_id in runs)
        found = [Breach("an invariant is violated", violated, len(runs))] if violated else []
        for constraint in self._objective.constraints:
            asked = [pair for pair in pairs if constraint.is_asked_in(pair[0].scenario)]
            kept = [self._keeps(constraint, candidate, place, seed) for place, seed in asked]
            broken = kept.count(False)
            if broken:
                found.append(Breach(bound_words(constraint), broken, broken + kept.count(True)))
        return tuple(found + self._never(candidate, pairs))

    def _never(self, candidate: Candidate, runs: Sequence[tuple[Place, int]]) -> list[Breach]:
        """Terms for which the defaults have a value, and the candidate's run has none."""
        found = []
        for term in self._objective.objectives:
            scored = [self.term(term, candidate, place, seed) for place, seed in runs]
            missing = scored.count(-math.inf)
            if missing:
                words = f"{term.words}: {term.what.never or 'unknown'}"
                found.append(Breach(words, missing, len(scored) - scored.count(None)))
        return found

    def _keeps(
        self, constraint: Constraint, candidate: Candidate, place: Place, seed: int
    ) -> bool | None:
        """Return True if its run keeps the constraint, or None if that has no meaning."""
        mine = self._trials.run_ids[candidate, place, seed]
        theirs = self._trials.run_ids[DEFAULTS, place, seed]
        if not self._measures.has(constraint, mine):
            return None
        value = self._measures.of(constraint, mine)
        is_known = self._measures.has(constraint, theirs)
        default = self._measures.of(constraint, theirs) if is_known else None
        if value is not None:
            return constraint.holds(value, default)
        return not constraint.what.is_worst_when_missing or (
            constraint.bound is None and default is None
        )

    def worst(
        self, candidate: Candidate, places: Sequence[Place], seeds: Iterable[int]
    ) -> float | None:
        """Return the worst value of the metric `against`, or None if it was never reached or
        measured."""
        against = self._objective.against
        seeds = list(seeds)
        found = [
            self._measures.of(against, run_id)
            for place in places
            if against.is_asked_in(place.scenario)
            for seed in seeds
            if self._measures.has(against, run_id := self._trials.run_ids[candidate, place, seed])
        ]
        known = [value for value in found if value is not None]
        if not known or (len(known) < len(found) and against.what.is_worst_when_missing):
            return None
        return min(known) if against.what.better is Better.MORE else max(known)


def bound_words(constraint: Constraint) -> str:
    """The broken bound in words: `memory left < 10 %`."""
    unit = constraint.what.unit
    for sign, bound in (("<", constraint.at_least), (">", constraint.at_most)):
        if bound is not None:
            return f"{constraint.words} {sign} {quantity(bound, unit)}"
    times, sign = constraint.at_least_of_defaults, "<"
    if times is None:
        times, sign = constraint.at_most_of_defaults, ">"
    assert times is not None
    return f"{constraint.words} {sign} {times:g} times the defaults'"
