"""Charts of the questions; the same findings give the same bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Final

from spark_analysis.questions.question import Unit
from spark_analysis.report.drawing import COLOURS, DASHES, Axis, Chart, axis
from spark_analysis.report.findings import Block, MetricSummary, Row
from spark_analysis.report.markup import Content, Html, element
from spark_analysis.report.words import Names, ParameterSet, count, quantity

_seconds: Final = partial(quantity, unit=Unit.SECONDS)
_plain: Final = partial(quantity, unit=Unit.COUNT)
SHOWN_MAX: Final = 12
"""Parameter sets of one chart; of more, the first nine and the last three are shown."""

Style = tuple[int, int]
"""Colour and dash."""


def styles_of(sets: Sequence[ParameterSet]) -> dict[ParameterSet, Style]:
    """The styles of a page, the same in all charts of a scenario."""
    found = {}
    for _, own in groupby(sorted(sets), key=lambda one: one.scenario):
        for index, one in enumerate(own):
            found[one] = (index % COLOURS, index // COLOURS % len(DASHES))
    return found


def shown(ranked: Sequence[MetricSummary]) -> list[MetricSummary]:
    """Return the summaries that fit into a chart."""
    if len(ranked) <= SHOWN_MAX:
        return list(ranked)
    return [*ranked[:9], *ranked[-3:]]


def dots(block: Block, names: Names, styles: Mapping[ParameterSet, Style]) -> Html:
    """The first metric: a dot per run, the mean and its interval per parameter set."""
    metric = block.first
    ranked = shown(block.ranked())
    points = {one.set: block.points.get(one.set, []) for one in ranked}
    values = [point.value for own in points.values() for point in own]
    values += [end for one in ranked for end in (one.mean, one.high) if end is not None]
    across = axis([0.0, *values], partial(quantity, unit=metric.unit), metric.words)
    if metric.unit is Unit.INDEX:
        across = replace(across, low=0.0, high=1.05)
    rows = []
    for one in ranked:
        colour, _ = styles[one.set]
        chart = Chart(across, height_px=26)
        for index, point in enumerate(points[one.set]):
            words = f"{quantity(point.value, metric.unit)}, seed {point.seed}, {point.run_id}"
            chart.dot(point.value, 0.5 + (index % 5 - 2) * 0.12, f"faint f{colour}", 3.5, words)
        if one.mean is not None:
            if one.low is not None and one.high is not None:
                low, high = max(one.low, across.low), min(one.high, across.high)
                chart.span((low, 0.5), (high, 0.5), colour)
            words = (
                f"mean {quantity(one.mean, metric.unit)}, {one.values} of {count(one.runs, 'run')}"
            )
            chart.dot(one.mean, 0.5, f"f{colour}", 6, words)
        rows.append((row_label(one, metric.never, names), chart))
    return chart_rows(rows)


def chart_rows(rows: Sequence[tuple[Html, Chart]]) -> Html:
    """A row per parameter set, its label above it; the last one has the labels of the axis."""
    last = len(rows) - 1
    parts: list[Content] = []
    for place, (label, chart) in enumerate(rows):
        parts += [label, chart.html(has_ticks=place == last)]
    return element("div", *parts, class_="rows")


def row_label(one: MetricSummary, never: str, names: Names) -> Html:
    parts: list[Content] = [element("b", one.set.policy)]
    if one.missing:
        parts += [" ", element("i", f"{never} in {one.missing} of {one.runs}")]
    detail = names.detail(one.set)
    if detail:
        parts.append(element("small", detail))
    return element("p", *parts, class_="label")


def lines(
    courses: Sequence[tuple[ParameterSet, Sequence[Row]]],
    column: str,
    words: str,
    styles: Mapping[ParameterSet, Style],
    trigger: tuple[float, float] | None,
    *,
    is_log: bool = False,
) -> Html:
    """A course over time, one line per parameter set; the time of the trigger is shaded."""
    times = [row["from_s"] for _, rows in courses for row in rows]
    values = [row[column] for _, rows in courses for row in rows if row[column] is not None]
    across = Axis(0.0, max([*times, *(trigger or ()), 1.0]), _seconds, "time since the start")
    up = axis(values if is_log else [0.0, *values], _plain, words, is_log=is_log)
    chart = Chart(across, up, height_px=230)
    if trigger is not None:
        chart.band(*trigger, "mark crowd", "the disturbance")
    for one, rows in courses:
        chart.line([(row["from_s"], row[column]) for row in rows], *styles[one])
    return chart.html()


def legend(entries: Sequence[tuple[int, int, str]]) -> Html:
    """Colour, dash and words."""
    items = []
    for colour, dash, words in entries:
        dashes = f'stroke-dasharray="{DASHES[dash]}"'
        stroke = f'<line class="line c{colour}" x2="24" y1="5" y2="5" {dashes}/>'
        swatch = Html(f'<svg width="24" height="10">{stroke}</svg>')
        items.append(element("li", swatch, " ", words))
    return element("ul", *items, class_="legend")
