"""Choosing: the best limits on one part of the seeds, judged on the other.

The best of many is partly the luckiest of many, so its score on the seeds it was chosen by is never
reported as a result. Only the seeds that were held out show its worth, and they judge one candidate
only. If that one does not hold, nothing is recommended.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from spark_analysis.tuner.judging import Judge, Judged, difference, percent
from spark_analysis.tuner.measuring import Measures
from spark_analysis.tuner.objective import Measured, Objective
from spark_analysis.tuner.trials import DEFAULTS, Place, Split, Trials, split

_NAMED_MAX: Final = 3


class Refusal(StrEnum):
    NO_DEFAULTS = "no defaults"
    NO_CANDIDATE = "no candidate"
    TOO_FEW_SEEDS = "too few seeds"
    UNMEASURED = "not measured"
    NONE_FEASIBLE = "none feasible"
    NOT_BETTER = "not better"
    FAILED_HELD_OUT = "failed held-out seeds"


@dataclass(frozen=True, slots=True)
class Choice:
    objective: Objective
    split: Split
    places: tuple[Place, ...]
    training_places: tuple[Place, ...]
    judged: tuple[Judged, ...]
    """The defaults first, then by number of changes."""
    best: Judged | None
    """The candidate that was judged on the held-out seeds; recommended, if there is no refusal."""
    reason: Refusal | None
    refusal: str
    """Why nothing is recommended, in a sentence; empty: `best` is."""

    @property
    def chosen(self) -> Judged | None:
        return None if self.refusal else self.best

    @property
    def defaults(self) -> Judged | None:
        """The defaults, with which every candidate is compared."""
        found = [one for one in self.judged if one.candidate == DEFAULTS]
        return found[0] if found else None


def choose(objective: Objective, trials: Trials, measures: Measures) -> Choice:
    """Pick limits, or explain why none can be recommended. Equal trials give equal choices."""
    return _Choosing(objective, trials, measures).choose()


class _Refused(Exception):
    def __init__(self, reason: Refusal, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class _Choosing:
    def __init__(self, objective: Objective, trials: Trials, measures: Measures) -> None:
        self._objective = objective
        self._trials = trials
        self._measures = measures
        self._places = tuple(trials.places)
        unseen = objective.held_out.scenarios
        self._training_places = tuple(p for p in self._places if p.scenario not in unseen)
        self._split = split(self._usable_seeds(), objective.held_out.share)
        self._judge = Judge(
            objective, trials, measures, self._places, self._training_places, self._split
        )
        self._judged: list[Judged] = []
        self._best: Judged | None = None

    def choose(self) -> Choice:
        reason, refusal = None, ""
        try:
            self._look()
            self._judged = [self._judge.judged(candidate) for candidate in self._trials.candidates]
            self._best = simplest(self._feasible())
            self._validate(self._best)
        except _Refused as refused:
            reason, refusal = refused.reason, str(refused)
        return Choice(
            self._objective,
            self._split,
            self._places,
            self._training_places,
            tuple(self._judged),
            self._best,
            reason,
            refusal,
        )

    def _usable_seeds(self) -> list[int]:
        """The seeds that can be compared with: no run of the defaults ended with a violation."""
        return [
            seed
            for seed in self._trials.seeds()
            if not any(
                self._trials.run_ids[DEFAULTS, place, seed] in self._measures.violated
                for place in self._places
            )
        ]

    def _look(self) -> None:
        """Whether there is anything to choose from, and enough to choose by."""
        if not self._places:
            raise _Refused(
                Refusal.NO_DEFAULTS,
                "There is no run with the defaults, so nothing can be said to be better: run the "
                "same scenarios and seeds without any flow. parameter.",
            )
        if len(self._trials.candidates) == 1:
            raise _Refused(
                Refusal.NO_CANDIDATE,
                "All runs have the defaults: there is nothing to choose from.",
            )
        least, split_ = self._objective.held_out.seeds_min, self._split
        if min(len(split_.training), len(split_.held_out)) < least:
            raise _Refused(
                Refusal.TOO_FEW_SEEDS,
                f"There are too few seeds: {len(split_.training)} to choose with and "
                f"{len(split_.held_out)} to judge by, and {least} of each are the least. Only "
                "seeds with which the defaults ran in every scenario, without a violation, count. "
                "Run everything with more seeds, or lower held_out.seeds_min in the objective.",
            )
        self._look_at_measures()

    def _look_at_measures(self) -> None:
        named = {*self._objective.held_out.scenarios, *self._objective.weights}
        unknown = sorted(named - {place.scenario for place in self._places})
        if unknown:
            raise _Refused(
                Refusal.UNMEASURED,
                f"The objective names {', '.join(unknown)}, and the defaults never ran there.",
            )
        if not self._training_places:
            raise _Refused(
                Refusal.UNMEASURED,
                "All scenarios are held out: there is nothing to choose with.",
            )
        for what in (*self._objective.objectives, *self._objective.constraints):
            is_constraint = what in self._objective.constraints
            places = self._places if is_constraint else self._training_places
            if not any(self._is_measured(what, place) for place in places):
                words = "constraint" if is_constraint else "objective"
                raise _Refused(
                    Refusal.UNMEASURED,
                    f"The {words} {what.metric} of population {what.population} is measured in no "
                    "run, so no limits can be judged by it.",
                )

    def _is_measured(self, what: Measured, place: Place) -> bool:
        seeds = (*self._split.training, *self._split.held_out)
        return what.is_asked_in(place.scenario) and any(
            self._measures.has(what, self._trials.run_ids[DEFAULTS, place, seed]) for seed in seeds
        )

    def _feasible(self) -> list[Judged]:
        others = [one for one in self._judged if one.candidate != DEFAULTS]
        feasible = [one for one in others if not one.problem]
        if feasible:
            return feasible
        reasons = "; ".join(
            f"{one.candidate.name}: {one.problem}" for one in others[:_NAMED_MAX]
        ) + (f"; and {len(others) - _NAMED_MAX} more" if len(others) > _NAMED_MAX else "")
        raise _Refused(
            Refusal.NONE_FEASIBLE,
            f"No candidate of {len(others)} keeps all constraints ({reasons})."
            f"{self._defaults_words()}",
        )

    def _defaults_words(self) -> str:
        (training,) = (one.training for one in self._judged if one.candidate == DEFAULTS)
        broken = () if training is None else training.breaches
        return f" The defaults do not either: {'; '.join(map(str, broken))}." if broken else ""

    def _validate(self, best: Judged) -> None:
        figures = best.held_out
        assert figures is not None
        problem = self._judge.problem(best.candidate, figures)
        if figures.score is None or problem:
            raise _Refused(
                Refusal.FAILED_HELD_OUT,
                f"The best on the seeds to choose with, {best.candidate.name}, fails on the seeds "
                f"that were held out: {problem or 'it cannot be compared with the defaults'}.",
            )
        score = figures.score
        least = math.log1p(self._objective.least_improvement)
        if score.low > least:
            return
        found = f"{best.candidate.name}: {percent(score.mean)}, 95 % interval "
        found += f"{percent(score.low)} to {percent(score.high)}, "
        found += f"on {score.count} held-out seeds"
        if score.high <= 0:
            words = "No limits that were tried are better than the defaults"
        elif not math.isfinite(score.high):
            words = "It is unknown how far the defaults are from the best found"
        else:
            words = f"The defaults are within {percent(score.high).lstrip('+')} of the best found"
        if self._objective.least_improvement and score.high > 0:
            found += f"; {percent(least)} is the least that is worth a change"
        more = " With more seeds it may be surely better." if score.mean > least else ""
        raise _Refused(Refusal.NOT_BETTER, f"{words} ({found}).{more}")


def simplest(feasible: Sequence[Judged]) -> Judged:
    """The simplest candidate within noise of the best one on training seeds: the fewest changes.

    Within noise: the mean of the differences, seed by seed, is not more than its standard error.
    Among equally simple ones the best, then the first by name.
    """

    def score(one: Judged) -> float:
        assert one.training is not None
        assert one.training.score is not None
        return one.training.score.mean

    best = min(feasible, key=lambda one: (-score(one), len(one.candidate.limits), one.candidate))
    near = [one for one in feasible if one is best or _is_within_noise(best, one)]
    return min(near, key=lambda one: (len(one.candidate.limits), -score(one), one.candidate))


def _is_within_noise(best: Judged, other: Judged) -> bool:
    differences = difference(best.training_seeds, other.training_seeds)
    return differences is not None and differences.mean <= differences.standard_error
