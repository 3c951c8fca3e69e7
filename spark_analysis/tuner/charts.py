"""Charts: the gain against its cost, and the effect of each limit; on held-out seeds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from spark_analysis.intervals import Interval
from spark_analysis.questions.question import Better, Unit
from spark_analysis.report.axes import FAINT, GRID, INK, TICKS, Figure, bare, safe, short, title
from spark_analysis.report.words import quantity
from spark_analysis.tuner.choosing import Choice
from spark_analysis.tuner.evidence import in_size
from spark_analysis.tuner.judging import Judged, percent
from spark_analysis.tuner.trials import DEFAULTS

_BLUE: Final = "#0072b2"
_ORANGE: Final = "#d55e00"
_GREEN: Final = "#009e73"
_GREY: Final = "#8a96a3"
_OPEN: Final = {"symbol": "circle-open", "size": 8}
_DIAMOND: Final = {"symbol": "diamond", "size": 12}
_STAR: Final = {"symbol": "star", "size": 15}
_HEIGHT_PX: Final = 320
_NAMED_MAX: Final = 6
"""Values up to which a limit has a dot for each; with more it has an axis of numbers."""
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


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure, and its legend: colour, dash and words of every trace."""

    figure: Figure
    legend: list[tuple[str, str, str]]


_Point = tuple[float | str, Interval, str]
"""Position on the horizontal axis, score, and text on a touch."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """Points that are drawn in the same style."""

    words: str
    colour: str
    points: Sequence[_Point]
    marker: dict[str, Any] | None = None
    """The style of dots; None: a line."""
    has_intervals: bool = False

    def trace(self) -> Figure:
        found: Figure = {
            "type": "scatter",
            "mode": "lines" if self.marker is None else "markers",
            "x": [x for x, _, _ in self.points],
            "y": [_percent(score.mean) for _, score, _ in self.points],
            "cliponaxis": False,
            "text": [text for _, _, text in self.points],
            "hoverinfo": "text",
        }
        if self.marker is None:
            found["line"] = {"color": self.colour, "dash": "dash", "width": 2}
        else:
            found["marker"] = {"color": self.colour, **self.marker}
        if self.has_intervals:
            found["error_y"] = _error([score for _, score, _ in self.points], self.colour)
        return found


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


def trade_off(choice: Choice) -> Drawing:
    """The objective against the other axis, with the front."""
    against = choice.objective.against
    scale = 100.0 if against.what.unit is Unit.SHARE else 1.0

    def points(found: Sequence[Dot]) -> list[_Point]:
        return [
            (
                short(scale * dot.worst),
                dot.score,
                f"{_text(dot.judged, dot.score)}<br>{safe(against.words)}: "
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
    layers = [
        _Layer("breaks a constraint, or is worse in one scenario", _GREY, points(unable), _OPEN),
        _Layer("keeps all constraints", _BLUE, points(able), {"size": 8}),
        _Layer("no candidate is better in both", _GREEN, points(front(choice))),
        _Layer("the defaults", INK, points(origin), _DIAMOND),
        _Layer(_best_words(choice), _ORANGE, points(best), _STAR, has_intervals=True),
    ]
    drawn = [one for one in layers if one.marker is not None or len(one.points) > 1]
    layout = _layout(f"{against.words}, worst run", against.what.unit)
    layout["shapes"] = [_bound_line(scale * bound) for bound in bounds(choice)]
    return _drawing(drawn, layout)


def bounds(choice: Choice) -> list[float]:
    """The limits that constraints set to what the objective is drawn against."""
    against = choice.objective.against
    found = [one for one in choice.objective.constraints if one.metric == against.metric]
    same = [one for one in found if one.population == against.population]
    return sorted({one.bound for one in same if one.bound is not None})


def _bound_line(x: float) -> Figure:
    return {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        "x0": short(x),
        "x1": short(x),
        "y0": 0,
        "y1": 1,
        "line": {"color": _ORANGE, "dash": "dot", "width": 1.5},
        "layer": "below",
    }


def limits_tried(choice: Choice) -> list[str]:
    return sorted({key for one in choice.judged for key, _ in one.candidate.limits})


def effect(choice: Choice, key: str, default: str) -> Drawing:
    """The effect of a limit: every candidate that changes it, alone or with others."""
    scored = [
        (one, one.held_out.score, value)
        for one in choice.judged
        if one.held_out is not None and one.held_out.score is not None
        if (value := dict(one.candidate.limits).get(key, default if _is_default(one) else None))
    ]
    axis = _value_axis([value for *_, value in scored])
    is_category = axis["type"] == "category"

    def points(found: Sequence[tuple[Judged, Interval, str]]) -> list[_Point]:
        return [
            (value if is_category else float(value), score, _text(one, score))
            for one, score, value in found
        ]

    others = [one for one in scored if one[0] is not choice.best and not _is_default(one[0])]
    alone = [one for one in others if len(one[0].candidate.limits) == 1]
    together = [one for one in others if len(one[0].candidate.limits) > 1]
    best = [one for one in scored if one[0] is choice.best]
    origin = [one for one in scored if _is_default(one[0])]
    layers = [
        _Layer("with other limits", _GREY, points(together), _OPEN),
        _Layer("only this limit", _BLUE, points(alone), {"size": 9}, has_intervals=True),
        _Layer("the defaults", INK, points(origin), _DIAMOND),
        _Layer(_best_words(choice), _ORANGE, points(best), _STAR, has_intervals=True),
    ]
    layout = _layout(key, Unit.COUNT)
    layout["xaxis"] |= axis
    return _drawing(layers, layout)


def _value_axis(values: Sequence[str]) -> Figure:
    """Return an axis with a mark for each value if there are few, or words; else a numeric one."""
    in_order = sorted(set(values), key=in_size)
    numbers = [in_size(value)[0] for value in in_order]
    if len(in_order) <= _NAMED_MAX or not all(map(math.isfinite, numbers)):
        return {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": in_order,
            "range": [-0.5, len(in_order) - 0.5],
        }
    is_wide = numbers[0] > 0 and numbers[-1] / numbers[0] >= _LOG_RATIO
    return {"type": "log", "dtick": "D2"} if is_wide else {"type": "linear"}


def _drawing(layers: Sequence[_Layer], layout: Figure) -> Drawing:
    drawn = [layer for layer in layers if layer.points]
    legend = [
        (layer.colour, "dash" if layer.marker is None else "solid", layer.words) for layer in drawn
    ]
    return Drawing({"data": [layer.trace() for layer in drawn], "layout": layout}, legend)


def _layout(words: str, unit: Unit) -> Figure:
    layout = bare(_HEIGHT_PX)
    layout["margin"] |= {"l": 52, "t": 16}
    layout["hovermode"] = "closest"
    layout["xaxis"] |= {"title": title(words, unit)}
    layout["yaxis"] = {
        "title": title("beside the defaults", Unit.SHARE),
        "gridcolor": GRID,
        "zeroline": True,
        "zerolinecolor": FAINT,
        "automargin": True,
        **TICKS,
    }
    return layout


def _error(scores: Sequence[Interval], colour: str) -> Figure:
    return {
        "type": "data",
        "symmetric": False,
        "array": [short(_percent(score.high) - _percent(score.mean)) for score in scores],
        "arrayminus": [short(_percent(score.mean) - _percent(score.low)) for score in scores],
        "color": colour,
        "thickness": 1.5,
        "width": 5,
    }


def _percent(log_ratio: float) -> float:
    return short(100 * math.expm1(log_ratio))


def _text(one: Judged, score: Interval) -> str:
    ends = f"{percent(score.low)} to {percent(score.high)}"
    return f"{safe(one.candidate.name)}<br>{percent(score.mean)} ({ends})"


def _best_words(choice: Choice) -> str:
    return "recommended" if choice.chosen else "best found, not recommended"


def _is_default(one: Judged) -> bool:
    return one.candidate == DEFAULTS


def _breaks(one: Judged) -> bool:
    return bool(one.problem) or one.held_out is None or bool(one.held_out.breaches)
