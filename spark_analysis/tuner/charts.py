"""Charts: the gain against its cost, and the effect of each limit; on held-out seeds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spark_analysis.intervals import Interval
from spark_analysis.questions.question import Better, Unit
from spark_analysis.report.charts import legend
from spark_analysis.report.drawing import Axis, Chart, axis
from spark_analysis.report.markup import Html, join
from spark_analysis.report.words import quantity
from spark_analysis.tuner.choosing import Choice
from spark_analysis.tuner.evidence import in_size
from spark_analysis.tuner.judging import Judged, percent
from spark_analysis.tuner.trials import DEFAULTS

_BLUE: Final = 0
_ORANGE: Final = 1
_GREEN: Final = 2
_GREY: Final = 7
_INK: Final = 8
_HEIGHT_PX: Final = 300
_NAMED_MAX: Final = 6
"""Values up to which a limit has a mark for each; with more it has an axis of numbers."""
_LOG_RATIO: Final = 8.0
"""Quotient of largest and smallest value from which on the axis is logarithmic."""


@dataclass(frozen=True, slots=True)
class Dot:
    """A candidate in the trade-off."""

    judged: Judged
    score: Interval
    """The mean of logarithms of ratios, with its interval."""
    worst: float
    """The worst value of what the objective is drawn against."""


_Point = tuple[float, Interval, str]
"""Position across, score, and text on a touch."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """Points that are drawn in the same style."""

    words: str
    colour: int
    points: Sequence[_Point]
    size: float = 4
    is_line: bool = False
    has_intervals: bool = False

    def draw(self, chart: Chart) -> None:
        if self.is_line:
            chart.line([(x, _percent(score.mean)) for x, score, _ in self.points], self.colour, 1)
            return
        for x, score, words in self.points:
            if self.has_intervals and math.isfinite(score.half):
                ends = (x, _percent(score.low)), (x, _percent(score.high))
                chart.span(*ends, self.colour)
            chart.dot(x, _percent(score.mean), f"f{self.colour}", self.size, words)


def dots(choice: Choice) -> list[Dot]:
    """Candidates with a score and a value to draw it against, on held-out seeds."""
    return [
        Dot(one, one.held_out.score, one.held_out.worst)
        for one in choice.judged
        if one.held_out is not None
        if one.held_out.score is not None and one.held_out.worst is not None
    ]


def front(choice: Choice) -> list[Dot]:
    """The Pareto front of dots that keep all constraints: no other is as good in both and better in
    one."""
    is_less = choice.objective.against.what.better is Better.LESS
    able = [dot for dot in dots(choice) if not _breaks(dot.judged)]

    def beats(other: Dot, dot: Dot) -> bool:
        gain = other.score.mean - dot.score.mean
        spared = dot.worst - other.worst if is_less else other.worst - dot.worst
        return gain >= 0 and spared >= 0 and (gain > 0 or spared > 0)

    found = [dot for dot in able if not any(beats(other, dot) for other in able)]
    return sorted(found, key=lambda dot: (dot.worst, dot.judged.candidate))


def trade_off(choice: Choice) -> Html:
    """The objective against the other axis, with the front."""
    against = choice.objective.against

    def points(found: Sequence[Dot]) -> list[_Point]:
        return [
            (
                dot.worst,
                dot.score,
                f"{_text(dot.judged, dot.score)}; {against.words}: "
                f"{quantity(dot.worst, against.what.unit)}",
            )
            for dot in found
        ]

    found = dots(choice)
    others = [d for d in found if d.judged is not choice.best and not _is_default(d.judged)]
    able = [dot for dot in others if not _breaks(dot.judged)]
    unable = [dot for dot in others if _breaks(dot.judged)]
    origin = [dot for dot in found if _is_default(dot.judged)]
    best = [dot for dot in found if dot.judged is choice.best]
    line = front(choice)
    layers = [
        _Layer("breaks a constraint, or is worse in one scenario", _GREY, points(unable), 3),
        _Layer("keeps all constraints", _BLUE, points(able)),
        _Layer(
            "no candidate is better in both",
            _GREEN,
            points(line if len(line) > 1 else ()),
            is_line=True,
        ),
        _Layer("the defaults", _INK, points(origin), 6),
        _Layer(_best_words(choice), _ORANGE, points(best), 7, has_intervals=True),
    ]
    limits = bounds(choice)

    def label(value: float) -> str:
        return quantity(value, against.what.unit)

    values = [*(dot.worst for dot in found), *limits]
    across = axis(values, label, f"{against.words}, worst run", is_from_zero=False)
    return _drawing(layers, across, limits)


def bounds(choice: Choice) -> list[float]:
    """The limits that constraints set to what the objective is drawn against."""
    against = choice.objective.against
    found = [one for one in choice.objective.constraints if one.metric == against.metric]
    same = [one for one in found if one.population == against.population]
    return sorted({one.bound for one in same if one.bound is not None})


def limits_tried(choice: Choice) -> list[str]:
    return sorted({key for one in choice.judged for key, _ in one.candidate.limits})


def effect(choice: Choice, key: str, default: str) -> Html | None:
    """The effect of a limit: every candidate that changes it, alone or with others."""
    scored = [
        (one, one.held_out.score, value)
        for one in choice.judged
        if one.held_out is not None and one.held_out.score is not None
        if (value := dict(one.candidate.limits).get(key, default if _is_default(one) else None))
    ]
    if not scored:
        return None
    across, places = value_axis([value for *_, value in scored], key)

    def points(found: Sequence[tuple[Judged, Interval, str]]) -> list[_Point]:
        return [(places[value], score, _text(one, score)) for one, score, value in found]

    others = [one for one in scored if one[0] is not choice.best and not _is_default(one[0])]
    alone = [one for one in others if len(one[0].candidate.limits) == 1]
    together = [one for one in others if len(one[0].candidate.limits) > 1]
    best = [one for one in scored if one[0] is choice.best]
    origin = [one for one in scored if _is_default(one[0])]
    layers = [
        _Layer("with other limits", _GREY, points(together), 3),
        _Layer("only this limit", _BLUE, points(alone), has_intervals=True),
        _Layer("the defaults", _INK, points(origin), 6),
        _Layer(_best_words(choice), _ORANGE, points(best), 7, has_intervals=True),
    ]
    return _drawing(layers, across)


def value_axis(values: Sequence[str], key: str) -> tuple[Axis, dict[str, float]]:
    """An axis with a mark for each value if there are few, or words; else of numbers. And the
    place of each value on it."""
    in_order = sorted(set(values), key=in_size)
    numbers = [in_size(value)[0] for value in in_order]
    if len(in_order) <= _NAMED_MAX or not all(map(math.isfinite, numbers)):
        marks = tuple(map(float, range(len(in_order))))
        named = Axis(-0.5, len(in_order) - 0.5, lambda at: in_order[round(at)], key, marks=marks)
        return named, dict(zip(in_order, marks, strict=True))
    is_wide = numbers[0] > 0 and numbers[-1] / numbers[0] >= _LOG_RATIO
    across = axis(
        numbers, lambda value: quantity(value, Unit.COUNT), key, is_log=is_wide, is_from_zero=False
    )
    return across, dict(zip(in_order, numbers, strict=True))


def _drawing(layers: Sequence[_Layer], across: Axis, limits: Sequence[float] = ()) -> Html:
    drawn = [layer for layer in layers if layer.points]
    scores = [score for layer in drawn for _, score, _ in layer.points]
    known = [_percent(score.mean) for score in scores]
    known += [
        _percent(end)
        for layer in drawn
        if layer.has_intervals
        for _, score, _ in layer.points
        for end in (score.low, score.high)
        if math.isfinite(end)
    ]
    up = axis(
        [0.0, *known], lambda value: f"{value:+g} %", "beside the defaults", is_from_zero=False
    )
    chart = Chart(across, up, height_px=_HEIGHT_PX)
    chart.level(0.0, "rule")
    for bound in limits:
        chart.rule(bound, "limit")
    for layer in drawn:
        layer.draw(chart)
    key = legend([(one.colour, int(one.is_line), one.words) for one in drawn])
    return join([chart.html(), key])


def _percent(log_ratio: float) -> float:
    return 100 * math.expm1(log_ratio)


def _text(one: Judged, score: Interval) -> str:
    ends = f"{percent(score.low)} to {percent(score.high)}"
    return f"{one.candidate.name}: {percent(score.mean)} ({ends})"


def _best_words(choice: Choice) -> str:
    return "recommended" if choice.chosen else "best found, not recommended"


def _is_default(one: Judged) -> bool:
    return one.candidate == DEFAULTS


def _breaks(one: Judged) -> bool:
    return bool(one.problem) or one.held_out is None or bool(one.held_out.breaches)
