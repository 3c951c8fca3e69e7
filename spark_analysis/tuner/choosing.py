"""Choosing: the best limits on one part of the seeds, judged on the other.

The best of many is partly the luckiest of many, so its score on the seeds it was chosen by is never
reported as a result. Only the seeds that were held out show its worth, and they judge one candidate
only. If that one does not hold, nothing is recommended.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spark_analysis.tuner.measuring import Measures
from spark_analysis.tuner.objective import Objective
from spark_analysis.tuner.scoring import Judged, Scores, difference, percent
from spark_analysis.tuner.trials import DEFAULTS, Place, Split, Trials

_NAMED_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Choice:
    objective: Objective
    split: Split
    places: tuple[Place, ...]
    training_places: tuple[Place, ...]
    """The places without those of scenarios that are held out."""
    judged: tuple[Judged, ...]
    """The defaults first, then by number of changes."""
    best: Judged | None
    """The candidate that was judged on the held-out seeds; recommended, if there is no refusal."""
    refusal: str
    """Why nothing is recommended, in a sentence; empty: `best` is."""

    @property
    def chosen(self) -> Judged | None:
        return None if self.refusal else self.best


class _Refused(Exception):
    """Nothing is recommended; the text is the reason."""


def choose(objective: Objective, trials: Trials, measures: Measures) -> Choice:
    """Pick limits, or explain why none can be recommended. Equal trials give equal choices."""
    scores = Scores(objective, trials, measures)
    judged: tuple[Judged, ...] = ()
    best, refusal = None, ""
    try:
        _check_trials(objective, trials, scores)
        _check_measures(objective, trials, measures, scores)
        judged = tuple(map(scores.judged, trials.candidates))
        best = simplest(_feasible(judged))
        _validate(best, objective, scores)
    except _Refused as refused:
        refusal = str(refused)
    places = scores.places, scores.training_places
    return Choice(objective, scores.split, *places, judged, best, refusal)


def _check_trials(objective: Objective, trials: Trials, scores: Scores) -> None:
    """Whether there is anything to choose from, and enough to choose by."""
    if not scores.places:
        raise _Refused(
            "There is no run with the defaults, so nothing can be said to be better: run the "
            "same scenarios and seeds without any flow. parameter. Recorded runs of a broker have "
            "no seeds: flowguard tune --like RUN simulates the load of one."
        )
    if len(trials.candidates) == 1:
        raise _Refused("All runs have the defaults: there is nothing to choose from.")
    least, split = objective.held_out.seeds_min, scores.split
    training, held_out = len(split.training), len(split.held_out)
    if min(training, held_out) < least:
        raise _Refused(
            f"There are too few seeds: {training} to choose with and {held_out} to judge by, and "
            f"{least} of each are the least. Only seeds with which the defaults ran in every "
            "scenario, without a violation, count. Run everything with more seeds, or lower "
            "held_out.seeds_min in the objective."
        )


def _check_measures(
    objective: Objective, trials: Trials, measures: Measures, scores: Scores
) -> None:
    """Whether some run of the defaults measures each objective and each constraint."""
    named = {*objective.held_out.scenarios, *objective.weights}
    unknown = sorted(named - {place.scenario for place in scores.places})
    if unknown:
        raise _Refused(
            f"The objective names {', '.join(unknown)}, and the defaults never ran there."
        )
    if not scores.training_places:
        raise _Refused("All scenarios are held out: there is nothing to choose with.")
    seeds = (*scores.split.training, *scores.split.held_out)
    for what in (*objective.objectives, *objective.constraints):
        is_constraint = what in objective.constraints
        if not any(
            what.is_asked_in(place.scenario)
            and measures.has(what, trials.run_ids[DEFAULTS, place, seed])
            for place in (scores.places if is_constraint else scores.training_places)
            for seed in seeds
        ):
            words = "constraint" if is_constraint else "objective"
            raise _Refused(
                f"The {words} {what.metric} of population {what.population} is measured in no "
                "run, so no limits can be judged by it."
            )


def _feasible(judged: Sequence[Judged]) -> list[Judged]:
    defaults, *others = judged
    feasible = [one for one in others if not one.problem]
    if feasible:
        return feasible
    named = [f"{one.candidate.name}: {one.problem}" for one in others[:_NAMED_MAX]]
    if len(others) > _NAMED_MAX:
        named.append(f"and {len(others) - _NAMED_MAX} more")
    refusal = f"No candidate of {len(others)} keeps all constraints ({'; '.join(named)})."
    if defaults.training is not None and defaults.training.breaches:
        broken = "; ".join(map(str, defaults.training.breaches))
        refusal += f" The defaults do not either: {broken}."
    raise _Refused(refusal)


def _validate(best: Judged, objective: Objective, scores: Scores) -> None:
    """Whether the best one is surely better on the held-out seeds, too."""
    figures = best.held_out
    assert figures is not None
    score, problem = figures.score, scores.problem(best.candidate, figures)
    if score is None or problem:
        raise _Refused(
            f"The best on the seeds to choose with, {best.candidate.name}, fails on the seeds "
            f"that were held out: {problem or 'it cannot be compared with the defaults'}."
        )
    least = math.log1p(objective.least_improvement)
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
    if objective.least_improvement and score.high > 0:
        found += f"; {percent(least)} is the least that is worth a change"
    more = " With more seeds it may be surely better." if score.mean > least else ""
    raise _Refused(f"{words} ({found}).{more}")


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
    assert best.training is not None
    assert other.training is not None
    differences = difference(best.training, other.training)
    return differences is not None and differences.mean <= differences.standard_error
