"""Charts: the gain of each candidate, and the gain against its cost; on held-out seeds."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Final

from spark_analysis.intervals import Interval
from spark_analysis.questions.question import Better
from spark_analysis.report.charts import SHOWN_MAX, chart_rows, legend
from spark_analysis.report.drawing import Chart, axis
from spark_analysis.report.markup import Html, element, join
from spark_analysis.report.words import quantity
from spark_analysis.tuner.choosing import Choice
from spark_analysis.tuner.scoring import Judged, range_words
from spark_analysis.tuner.trials import DEFAULTS

_BLUE: Final = 0
_ORANGE: Final = 1
_GREEN: Final = 2
_GREY: Final = 7
_INK: Final = 8


def gains(choice: Choice) -> Html | None:
    """Return a dot and an interval per candidate, the best one first, or None without any."""
    scored = [
        (one, one.held_out.score)
        for one in choice.judged
        if one.candidate.limits and one.held_out is not None and one.held_out.score is not None
    ]
    if not scored:
        return None
    scored.sort(key=lambda pair: (pair[0] is not choice.best, -pair[1].mean))
    shown = scored[:SHOWN_MAX]
    values = [_percent(end) for _, score in shown for end in (score.mean, score.low, score.high)]
    across = axis([0.0, *values], "{:+g} %".format, "beside the defaults", is_from_zero=False)
    rows = []
    for one, score in shown:
        colour, words = _style(one, choice)
        chart = Chart(across, height_px=26)
        chart.rule(0.0, "rule")
        if math.isfinite(score.half):
            ends = (_percent(score.low), 0.5), (_percent(score.high), 0.5)
            chart.span(*ends, colour)
        chart.dot(_percent(score.mean), 0.5, f"f{colour}", 6, range_words(score))
        small = [element("small", words)] if words else []
        label = element("p", element("b", one.candidate.name), *small, class_="label")
        rows.append((label, chart))
    return chart_rows(rows)


@dataclass(frozen=True, slots=True)
class Dot:
    """A candidate in the trade-off."""

    judged: Judged
    score: Interval
    """The mean of logarithms of ratios, with its interval."""
    worst: float
    """The worst value of what the objective is drawn against."""


def dots(choice: Choice) -> list[Dot]:
    """Candidates with a score and a value to draw it against, the best one last."""
    found = [
        Dot(one, one.held_out.score, one.held_out.worst)
        for one in choice.judged
        if one.held_out is not None
        if one.held_out.score is not None and one.held_out.worst is not None
    ]
    return sorted(found, key=lambda dot: dot.judged is choice.best)


def front(choice: Choice) -> list[Dot]:
    """The Pareto front of dots that keep all constraints: no other is better in both."""
    sign = 1 if choice.objective.against.what.better is Better.LESS else -1
    able = [dot for dot in dots(choice) if not _is_unable(dot.judged)]
    found: list[Dot] = []
    for dot in sorted(able, key=lambda dot: (sign * dot.worst, -dot.score.mean)):
        if not found or dot.score.mean > found[-1].score.mean:
            found.append(dot)
    return found


def trade_off(choice: Choice) -> Html | None:
    """Return the objective against the other axis, with the front, or None without candidates."""
    found, against = dots(choice), choice.objective.against
    if not found:
        return None
    bounds = [
        one.bound
        for one in choice.objective.constraints
        if (one.metric, one.population) == (against.metric, against.population)
        if one.bound is not None
    ]
    label = partial(quantity, unit=against.what.unit)
    values, title = [*(dot.worst for dot in found), *bounds], f"{against.words}, worst run"
    across = axis(values, label, title, is_from_zero=False)
    gains = [0.0, *(_percent(dot.score.mean) for dot in found)]
    up = axis(gains, "{:+g} %".format, "beside the defaults", is_from_zero=False)
    chart = Chart(across, up, height_px=300)
    chart.level(0.0, "rule")
    for bound in bounds:
        chart.rule(bound, "limit")
    chart.line([(dot.worst, _percent(dot.score.mean)) for dot in front(choice)], _GREEN, 1)
    entries = {(_GREEN, 1, "no candidate is better in both")}
    for dot in found:
        colour, words = _style(dot.judged, choice)
        entries.add((colour, 0, words or "keeps all constraints"))
        words = f"{dot.judged.candidate.name}: {range_words(dot.score)}; {label(dot.worst)}"
        chart.dot(dot.worst, _percent(dot.score.mean), f"f{colour}", 5, words)
    return join([chart.html(), legend(sorted(entries))])


def _style(one: Judged, choice: Choice) -> tuple[int, str]:
    """The colour of a candidate, and words on it."""
    if one.candidate == DEFAULTS:
        return _INK, "the defaults"
    if one is choice.best:
        return _ORANGE, "recommended" if choice.chosen else "best found, not recommended"
    words = "breaks a constraint, or is worse in one scenario"
    return (_GREY, words) if _is_unable(one) else (_BLUE, "")


def _is_unable(one: Judged) -> bool:
    return bool(one.problem) or one.held_out is None or bool(one.held_out.breaches)


def _percent(log_ratio: float) -> float:
    return 100 * math.expm1(log_ratio)
