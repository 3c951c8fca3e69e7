"""Charts of the questions; the same findings give the same bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spark_analysis.questions.question import Metric, Unit
from spark_analysis.report.drawing import COLOURS, DASHES, Axis, Chart, axis
from spark_analysis.report.findings import Block, MetricSummary, Row
from spark_analysis.report.markup import Content, Html, element, join
from spark_analysis.report.words import Names, ParameterSet, count, quantity

SHOWN_MAX: Final = 12
"""Parameter sets of one chart; of more, the first nine and the last three are shown."""


@dataclass(frozen=True, slots=True)
class Style:
    """A policy's colour, and a dash for each of its parameter sets."""

    colour: int
    dash: int


class Styles:
    """The styles of a page, the same in all its charts."""

    def __init__(self, sets: Sequence[ParameterSet]) -> None:
        policies = sorted({one.policy for one in sets})
        self._colours = {policy: index % COLOURS for index, policy in enumerate(policies)}
        self._dashes: dict[ParameterSet, int] = {}
        for scenario, policy in sorted({(one.scenario, one.policy) for one in sets}):
            own = [one for one in sets if (one.scenario, one.policy) == (scenario, policy)]
            for index, one in enumerate(own):
                self._dashes[one] = index % len(DASHES)

    def of(self, one: ParameterSet) -> Style:
        return Style(self._colours[one.policy], self._dashes[one])


def shown(ranked: Sequence[MetricSummary]) -> list[MetricSummary]:
    """Return the summaries that fit into a chart."""
    if len(ranked) <= SHOWN_MAX:
        return list(ranked)
    return [*ranked[:9], *ranked[-3:]]


def dots(block: Block, names: Names, styles: Styles) -> Html:
    """The first metric: a dot per run, the mean and its interval per parameter set."""
    metric = block.first
    ranked = shown(block.ranked())
    points = {one.set: block.points.get(one.set, []) for one in ranked}
    values = [point.value for own in points.values() for point in own]
    values += [end for one in ranked for end in (one.mean, one.high) if end is not None]
    across = _from_zero(metric, values)
    rows = []
    for one in ranked:
        colour = styles.of(one.set).colour
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
    return _rows(rows)


def _from_zero(metric: Metric, values: Sequence[float]) -> Axis:
    if metric.unit is Unit.INDEX:
        return Axis(0.0, 1.05, lambda value: quantity(value, metric.unit), metric.words)
    return axis([0.0, *values], lambda value: quantity(value, metric.unit), metric.words)


def _rows(rows: Sequence[tuple[Html, Chart]]) -> Html:
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


def stack(block: Block, parts: Sequence[tuple[str, str]], names: Names) -> Html:
    """Counts as parts of their sum, one bar per parameter set; `parts`: columns and words."""
    across = Axis(0.0, 1.0, lambda value: quantity(value, Unit.SHARE), "of all CONNECTs")
    rows = []
    for one in shown(block.ranked()):
        means = [_mean(block, column, one) for column, _ in parts]
        whole = sum(means) or 1.0
        chart = Chart(across, height_px=18)
        from_share = 0.0
        for number, ((_, words), mean) in enumerate(zip(parts, means, strict=True)):
            share = mean / whole
            said = f"{words}: {quantity(mean, Unit.COUNT)} ({quantity(share, Unit.SHARE)})"
            chart.band(from_share, from_share + share, f"f{number}", said)
            from_share += share
        rows.append((row_label(one, block.first.never, names), chart))
    key = legend([(number, 0, words) for number, (_, words) in enumerate(parts)])
    return join([_rows(rows), key])


def _mean(block: Block, column: str, one: MetricSummary) -> float:
    found = block.summaries.get(column, {}).get((one.set, one.population))
    return 0.0 if found is None or found.mean is None else found.mean


def lines(
    courses: Sequence[tuple[ParameterSet, Sequence[Row]]],
    column: str,
    words: str,
    styles: Styles,
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
        style = styles.of(one)
        chart.line([(row["from_s"], row[column]) for row in rows], style.colour, style.dash)
    return chart.html()


def _seconds(value: float) -> str:
    return quantity(value, Unit.SECONDS)


def _plain(value: float) -> str:
    return quantity(value, Unit.COUNT)


def legend(entries: Sequence[tuple[int, int, str]]) -> Html:
    """Colour, dash and words."""
    items = []
    for colour, dash, words in entries:
        dashes = f'stroke-dasharray="{DASHES[dash]}"'
        stroke = f'<line class="line c{colour}" x2="24" y1="5" y2="5" {dashes}/>'
        swatch = Html(f'<svg width="24" height="10">{stroke}</svg>')
        items.append(element("li", swatch, " ", words))
    return element("ul", *items, class_="legend")


def load_map(places: Sequence[Row]) -> Html:
    """Load by length of the trigger, as a table; `places` are of one scenario and policy."""
    loads = sorted({place["load_ratio"] for place in places})
    lengths = sorted({place["trigger_s"] for place in places})
    found = {(place["load_ratio"], place["trigger_s"]): place for place in places}
    head = element(
        "tr",
        element("th", "load"),
        *(element("th", _seconds(length), scope="col") for length in lengths),
    )
    rows = [
        element(
            "tr",
            element("th", quantity(load, Unit.SHARE), scope="row"),
            *(_map_cell(found.get((load, length))) for length in lengths),
        )
        for load in loads
    ]
    return element("div", element("table", head, *rows, class_="map"), class_="wide")


def _map_cell(place: Row | None) -> Html:
    if place is None:
        return element("td")
    words = f"{place['recovered_count']} of {place['runs_count']}"
    slowest = place["recovery_max_s"]
    small = [] if slowest is None else [element("small", f"at most {_seconds(slowest)}")]
    return element("td", words, *small, style=f"--share:{100 * place['recovered_ratio']:.0f}%")
