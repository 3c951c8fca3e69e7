"""Evidence: the effect of each chosen limit, and other values that are as good."""

import math
from dataclasses import dataclass

from spark_analysis.intervals import Interval
from spark_analysis.tuner.choosing import Choice
from spark_analysis.tuner.judging import Judged, difference
from spark_analysis.tuner.trials import Candidate


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of one chosen limit, on held-out seeds; logarithms of ratios."""

    key: str
    value: str
    interval: Interval
    """The improvement over the choice without it, or that of all limits together if that was not
    tried."""
    other: Candidate | None
    """The candidate without this limit, with which it is compared, or None if that was not
    tried."""
    as_good: tuple[str, ...]
    """Other values of it, all else the same, that are not surely worse, sorted."""


def effects(choice: Choice) -> list[Effect]:
    """One per limit that is recommended; none if nothing is."""
    chosen = choice.chosen
    if chosen is None:
        return []
    by_candidate = {one.candidate: one for one in choice.judged if one.held_out is not None}
    assert chosen.held_out is not None
    assert chosen.held_out.score is not None
    found = []
    for key, value in chosen.candidate.limits:
        without = by_candidate.get(chosen.candidate.without(key))
        alone = None if without is None else difference(chosen.seeds, without.seeds)
        found.append(
            Effect(
                key,
                value,
                chosen.held_out.score if alone is None else alone,
                None if alone is None or without is None else without.candidate,
                _as_good(chosen, key, choice),
            )
        )
    return found


def _as_good(chosen: Judged, key: str, choice: Choice) -> tuple[str, ...]:
    """Other values of the limit; not the default, which would leave it out."""
    without = chosen.candidate.without(key)
    found = []
    for one in choice.judged:
        values = dict(one.candidate.limits)
        if one is chosen or key not in values or one.candidate.without(key) != without:
            continue
        if one.problem or one.held_out is None or one.held_out.breaches:
            continue
        lead = difference(chosen.seeds, one.seeds)
        if lead is not None and lead.low <= 0:
            found.append(values[key])
    return tuple(sorted(found, key=in_size))


def in_size(value: str) -> tuple[float, str]:
    """A sort key: numbers by their size, then words."""
    try:
        return float(value), ""
    except ValueError:
        return math.inf, value
