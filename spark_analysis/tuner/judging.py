"""Judging: a candidate beside the defaults, on the seeds to choose with and on those held out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spark_analysis.intervals import Interval, interval
from spark_analysis.tuner.measuring import Measures
from spark_analysis.tuner.objective import Objective
from spark_analysis.tuner.scoring import Breach, Scores
from spark_analysis.tuner.trials import ABSENT, Candidate, Place, Split, Trials


@dataclass(frozen=True, slots=True)
class CandidateFigures:
    """A candidate beside the defaults, on a part of the seeds; logarithms of ratios."""

    score: Interval | None
    """The score, or None if it failed and the defaults did not, or there is nothing to compare."""
    by_scenario: dict[str, Interval]
    breaches: tuple[Breach, ...]
    worst: float | None
    """The worst value of what the objective is drawn against."""


@dataclass(frozen=True, slots=True)
class Judged:
    candidate: Candidate
    missing: int
    """Runs that it lacks; with one of them missing it is not judged."""
    training: CandidateFigures | None
    held_out: CandidateFigures | None
    seeds: dict[int, float]
    training_seeds: dict[int, float]
    problem: str
    """Why it cannot be chosen, from training seeds alone; empty: it can."""


class Judge:
    def __init__(
        self,
        objective: Objective,
        trials: Trials,
        measures: Measures,
        places: Sequence[Place],
        training_places: Sequence[Place],
        split: Split,
    ) -> None:
        self._objective = objective
        self._trials = trials
        self._scores = Scores(objective, trials, measures)
        self._places = places
        self._training_places = training_places
        self._split = split

    def judged(self, candidate: Candidate) -> Judged:
        """The candidate's figures on both parts, if it has all runs; the defaults are a candidate,
        too."""
        seeds = (*self._split.training, *self._split.held_out)
        missing = self._trials.missing(candidate, seeds)
        if missing:
            problem = (
                f"{missing} of the defaults' {len(seeds) * len(self._places)} runs are missing"
            )
            return Judged(candidate, missing, None, None, {}, {}, problem)
        training = self._figures(candidate, self._training_places, self._split.training)
        held_out = self._figures(candidate, self._places, self._split.held_out)
        return Judged(
            candidate,
            0,
            training,
            held_out,
            self._by_seed(candidate, self._places, self._split.held_out),
            self._by_seed(candidate, self._training_places, self._split.training),
            self.problem(candidate, training),
        )

    def _figures(
        self, candidate: Candidate, places: Sequence[Place], seeds: Sequence[int]
    ) -> CandidateFigures:
        scenarios = sorted({place.scenario for place in places})
        by_scenario = {}
        for scenario in scenarios:
            of_scenario = [place for place in places if place.scenario == scenario]
            found = _interval(self._by_seed(candidate, of_scenario, seeds))
            if found is not None:
                by_scenario[scenario] = found
        return CandidateFigures(
            _interval(self._by_seed(candidate, places, seeds)),
            by_scenario,
            self._scores.breaches(candidate, places, seeds),
            self._scores.worst(candidate, places, seeds),
        )

    def _by_seed(
        self, candidate: Candidate, places: Sequence[Place], seeds: Sequence[int]
    ) -> dict[int, float]:
        scored = {seed: self._scores.seed(candidate, places, seed) for seed in seeds}
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
            f"{ratio_words(found.mean)} in {scenario}"
            for scenario, found in figures.by_scenario.items()
            if found.mean < math.log(1 - self._objective.tolerance)
        ]
        return "; ".join(worst)


def difference(one: dict[int, float], other: dict[int, float]) -> Interval | None:
    """The advantage of `one`, seed by seed."""
    return _interval({seed: one[seed] - other[seed] for seed in one if seed in other})


def _interval(by_seed: dict[int, float]) -> Interval | None:
    values = list(by_seed.values())
    return interval(values) if all(map(math.isfinite, values)) else None


def percent(log_ratio: float) -> str:
    """The percentage of the logarithm of a ratio: `+2.3 %`."""
    return f"{100 * math.expm1(log_ratio):+.1f}\N{NO-BREAK SPACE}%"


def ratio_words(log_ratio: float) -> str:
    """The logarithm of a ratio in words: `2.3 % better`."""
    change = 100 * math.expm1(log_ratio)
    if abs(change) < 0.05:
        return "as good"
    return f"{abs(change):.1f}\N{NO-BREAK SPACE}% {'better' if change > 0 else 'worse'}"
