"""Scoring: a candidate's runs beside those of the defaults with the same place and seed.

A pair's score is the mean of the logarithms of its terms' ratios, each so that more is better. A
mean of logarithms is the geometric mean of ratios: it has no unit, so that seconds and messages of
different scenarios can be added, twice as good here makes up for half as good there, and what is
compared with what does not change the order. Seeds are what varies by chance, so the score of a
seed, the mean of all its places, is what intervals are made of.
"""

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spark_analysis.intervals import Interval, interval
from spark_analysis.questions.question import Better
from spark_analysis.report.words import quantity
from spark_analysis.tuner.measuring import Measures
from spark_analysis.tuner.objective import Constraint, Objective, Term
from spark_analysis.tuner.trials import ABSENT, DEFAULTS, Candidate, Place, Split, Trials, split


@dataclass(frozen=True, slots=True)
class Breach:
    """A constraint that did not hold in some runs."""

    words: str
    runs: int
    of_runs: int

    def __str__(self) -> str:
        return f"{self.words} in {self.runs} of {self.of_runs} runs"


@dataclass(frozen=True, slots=True)
class CandidateFigures:
    """A candidate beside the defaults, on a part of the seeds; logarithms of ratios."""

    by_seed: dict[int, float]
    by_scenario: dict[str, Interval]
    breaches: tuple[Breach, ...]
    worst: float | None
    """The worst value of what the objective is drawn against."""

    @property
    def score(self) -> Interval | None:
        """The score, or None if it failed and the defaults did not, or there is nothing to
        compare."""
        return _interval(self.by_seed)


@dataclass(frozen=True, slots=True)
class Judged:
    candidate: Candidate
    missing: int
    """Runs that it lacks; with one of them missing it is not judged."""
    training: CandidateFigures | None
    held_out: CandidateFigures | None
    problem: str
    """Why it cannot be chosen, from training seeds alone; empty: it can."""


class Scores:
    """Compares runs; candidates must have all runs that are asked for."""

    def __init__(self, objective: Objective, trials: Trials, measures: Measures) -> None:
        self._objective = objective
        self._trials = trials
        self._measures = measures
        self.places = tuple(trials.places)
        unseen = objective.held_out.scenarios
        self.training_places = tuple(one for one in self.places if one.scenario not in unseen)
        self.split: Split = split(self._usable_seeds(), objective.held_out.share)

    def _usable_seeds(self) -> list[int]:
        """The seeds that can be compared with: no run of the defaults ended with a violation."""
        runs, violated = self._trials.run_ids, self._measures.violated
        return [
            seed
            for seed in self._trials.seeds()
            if not any(runs[DEFAULTS, place, seed] in violated for place in self.places)
        ]

    def judged(self, candidate: Candidate) -> Judged:
        """The candidate's figures on both parts, if it has all runs; the defaults are a candidate,
        too."""
        seeds = (*self.split.training, *self.split.held_out)
        missing = self._trials.missing(candidate, seeds)
        if missing:
            of_runs = len(seeds) * len(self.places)
            problem = f"{missing} of the defaults' {of_runs} runs are missing"
            return Judged(candidate, missing, None, None, problem)
        training = self._figures(candidate, self.training_places, self.split.training)
        held_out = self._figures(candidate, self.places, self.split.held_out)
        return Judged(candidate, 0, training, held_out, self.problem(candidate, training))

    def _figures(
        self, candidate: Candidate, places: Sequence[Place], seeds: Sequence[int]
    ) -> CandidateFigures:
        by_scenario = {}
        for scenario in sorted({place.scenario for place in places}):
            of_scenario = [place for place in places if place.scenario == scenario]
            found = _interval(self._by_seed(candidate, of_scenario, seeds))
            if found is not None:
                by_scenario[scenario] = found
        return CandidateFigures(
            self._by_seed(candidate, places, seeds),
            by_scenario,
            self.breaches(candidate, places, seeds),
            self.worst(candidate, places, seeds),
        )

    def _by_seed(
        self, candidate: Candidate, places: Sequence[Place], seeds: Sequence[int]
    ) -> dict[int, float]:
        scored = {seed: self.seed(candidate, places, seed) for seed in seeds}
        return {seed: score for seed, score in scored.items() if score is not None}

    def problem(self, candidate: Candidate, figures: CandidateFigures) -> str:
        """The objection that these figures raise against it; empty: none."""
        absent = [key for key, value in candidate.limits if value == ABSENT]
        if absent:
            return f"it takes out {', '.join(absent)}, which a file of limits cannot say"
        if figures.breaches:
            return "; ".join(map(str, figures.breaches))
        if figures.score is None:
            return "it cannot be compared with the defaults"
        worst = [
            f"{percent(found.mean).lstrip('-')} worse in {scenario}"
            for scenario, found in figures.by_scenario.items()
            if found.mean < math.log(1 - self._objective.tolerance)
        ]
        return "; ".join(worst)

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
        value = self._measures.of(term, mine) if self._measures.has(term, mine) else None
        default = self._measures.of(term, theirs)
        if default is None or value is None:
            return 0.0 if default is None else -math.inf
        ratio = math.log(max(value, term.least) / max(default, term.least))
        return ratio if term.what.better is Better.MORE else -ratio

    def seed(self, candidate: Candidate, places: Sequence[Place], seed: int) -> float | None:
        """The weighted mean of a seed's scenarios, each of which is the mean of its places."""
        by_scenario: dict[str, list[float]] = {}
        for place in places:
            if (score := self.pair(candidate, place, seed)) is not None:
                by_scenario.setdefault(place.scenario, []).append(score)
        weights = [self._objective.weights.get(scenario, 1.0) for scenario in by_scenario]
        means = [math.fsum(scores) / len(scores) for scores in by_scenario.values()]
        weighted = map(operator.mul, weights, means)
        return math.fsum(weighted) / math.fsum(weights) if means else None

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
        asked = [place for place in places if against.is_asked_in(place.scenario)]
        runs = [self._trials.run_ids[candidate, place, seed] for seed in seeds for place in asked]
        found = [
            self._measures.of(against, run) for run in runs if self._measures.has(against, run)
        ]
        known = [value for value in found if value is not None]
        if not known or (len(known) < len(found) and against.what.is_worst_when_missing):
            return None
        return min(known) if against.what.better is Better.MORE else max(known)


def difference(one: CandidateFigures, other: CandidateFigures) -> Interval | None:
    """The advantage of `one`, seed by seed."""
    mine, theirs = one.by_seed, other.by_seed
    return _interval({seed: mine[seed] - theirs[seed] for seed in mine if seed in theirs})


def _interval(by_seed: dict[int, float]) -> Interval | None:
    values = list(by_seed.values())
    return interval(values) if all(map(math.isfinite, values)) else None


def percent(log_ratio: float) -> str:
    """The percentage of the logarithm of a ratio: `+2.3 %`."""
    return f"{100 * math.expm1(log_ratio):+.1f}\N{NO-BREAK SPACE}%"


def range_words(score: Interval) -> str:
    """The logarithm of a ratio with its interval: `+2.3 % (+1.0 % to +3.6 %)`."""
    return f"{percent(score.mean)} ({percent(score.low)} to {percent(score.high)})"


def bound_words(constraint: Constraint) -> str:
    """The broken bound in words: `memory left < 10 %`."""
    bound = f"{constraint.times:g} times the defaults'" if constraint.times else ""
    if constraint.bound is not None:
        bound = quantity(constraint.bound, constraint.what.unit)
    return f"{constraint.words} {'<' if constraint.is_least else '>'} {bound}"
