"""Charts: figures for plotly.js, as plain records; the same findings give the same figure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from spark_analysis.questions.question import Unit
from spark_analysis.report.axes import FAINT, GRID, INK, TICKS, Figure, bare, safe, short, title
from spark_analysis.report.findings import Block, MetricSummary, Row
from spark_analysis.report.words import Names, ParameterSet, quantity

COLOURS: Final = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7"),
    *("#56b4e9", "#e69f00", "#6a3d9a", "#7f7f7f"),
)
"""The colours of Okabe and Ito, which most eyes can distinguish."""
SHOWN_MAX: Final = 12
"""Parameter sets of one chart; of more, the first nine and the last three are shown."""
_DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_DETAIL_MAX: Final = 46
_ROW_PX: Final = 62


@dataclass(frozen=True, slots=True)
class Style:
    """A policy's colour, and a dash for each of its parameter sets."""

    colour: str
    dash: str


class Styles:
    """The styles of a page, the same in all its charts."""

    def __init__(self, sets: Sequence[ParameterSet]) -> None:
        policies = sorted({one.policy for one in sets})
        self._colours = {
            policy: COLOURS[index % len(COLOURS)] for index, policy in enumerate(policies)
        }
        self._dashes: dict[ParameterSet, str] = {}
        for scenario, policy in sorted({(one.scenario, one.policy) for one in sets}):
            own = [one for one in sets if (one.scenario, one.policy) == (scenario, policy)]
            for index, one in enumerate(own):
                self._dashes[one] = _DASHES[index % len(_DASHES)]

    def of(self, one: ParameterSet) -> Style:
        return Style(self._colours[one.policy], self._dashes[one])


def shown(ranked: Sequence[MetricSummary]) -> list[MetricSummary]:
    """Return the summaries that fit into a chart."""
    if len(ranked) <= SHOWN_MAX:
        return list(ranked)
    return [*ranked[:9], *ranked[-3:]]


def dots(block: Block, names: Names, styles: Styles) -> Figure:
    """The first metric: a dot per run, the mean and its interval per parameter set."""
    metric = block.first
    scale = 100.0 if metric.unit is Unit.SHARE else 1.0
    rows = shown(block.ranked())
    traces: list[Figure] = []
    labels: list[Figure] = []
    for place, one in enumerate(reversed(rows)):
        colour = styles.of(one.set).colour
        labels.append(_row_label(place, one, metric.never, names))
        points = block.points.get(one.set, [])
        if points:
            traces.append(_runs_trace(points, place, colour, scale, metric.unit))
        if one.mean is not None:
            traces.append(_mean_trace(one, place, colour, scale, metric.unit))
    layout = _rows_layout(len(rows))
    layout["annotations"] = labels
    layout["xaxis"] |= {"title": title(metric.words, metric.unit), "rangemode": "tozero"}
    if metric.unit is Unit.INDEX:
        layout["xaxis"]["range"] = [0, 1.05]
    return {"data": traces, "layout": layout}


def _rows_layout(rows_count: int) -> Figure:
    """The layout of a chart with a row per parameter set, from 0 upwards, and the row's label above
    it."""
    layout = bare(_ROW_PX * rows_count + 62)
    layout["yaxis"] = {
        "range": [-0.45, rows_count - 0.15],
        "showgrid": False,
        "showticklabels": False,
        "zeroline": False,
        "fixedrange": True,
    }
    layout["hovermode"] = "closest"
    return layout


def _row_label(place: int, one: MetricSummary, never: str, names: Names) -> Figure:
    text = f"<b>{safe(one.set.policy)}</b>"
    if one.missing:
        text += f" <i>{never} in {one.missing} of {one.runs}</i>"
    detail = names.detail(one.set)
    if detail:
        cut = detail if len(detail) <= _DETAIL_MAX else f"{detail[: _DETAIL_MAX - 1]}…"
        text += f'<br><span style="font-size:11px;color:{FAINT}">{safe(cut)}</span>'
    return {
        "text": text,
        "x": 0,
        "xref": "paper",
        "xanchor": "left",
        "y": place + 0.18,
        "yanchor": "bottom",
        "align": "left",
        "showarrow": False,
        "font": {"size": 12, "color": INK},
        "borderpad": 0,
    }


def _runs_trace(points: Sequence[Any], place: int, colour: str, scale: float, unit: Unit) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [short(point.value * scale) for point in points],
        "y": [short(place + (index % 5 - 2) * 0.035) for index in range(len(points))],
        "marker": {"size": 7, "color": colour, "opacity": 0.35},
        "cliponaxis": False,
        "text": [
            f"{quantity(point.value, unit)}<br>seed {point.seed}<br>{safe(point.run_id)}"
            for point in points
        ],
        "hoverinfo": "text",
    }


def _mean_trace(one: MetricSummary, place: int, colour: str, scale: float, unit: Unit) -> Figure:
    assert one.mean is not None
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [short(one.mean * scale)],
        "y": [place],
        "marker": {"size": 12, "symbol": "diamond", "color": colour},
        "cliponaxis": False,
        "text": [f"mean {quantity(one.mean, unit)}<br>{one.values} of {one.runs} runs"],
        "hoverinfo": "text",
    }
    if one.high is not None and one.low is not None:
        trace["error_x"] = {
            "type": "data",
            "symmetric": True,
            "array": [short((one.high - one.mean) * scale)],
            "color": colour,
            "thickness": 2,
            "width": 6,
        }
    return trace


def stack(block: Block, parts: Sequence[tuple[str, str]], names: Names) -> Figure:
    """Counts as parts of their sum, one bar per parameter set; `parts`: columns and words."""
    rows = shown(block.ranked())
    places = list(range(len(rows)))[::-1]
    means = [[_mean(block, column, one) for column, _ in parts] for one in rows]
    traces = []
    for index, (_, words) in enumerate(parts):
        shares = [100 * mean[index] / (sum(mean) or 1.0) for mean in means]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": words,
                "x": [short(share) for share in shares],
                "y": places,
                "width": 0.3,
                "marker": {"color": COLOURS[(0, 5, 3, 7)[index]]},
                "text": [
                    f"{words}: {quantity(mean[index], Unit.COUNT)} ({share:.1f} %)"
                    for mean, share in zip(means, shares, strict=True)
                ],
                "textposition": "none",
                "hoverinfo": "text",
            }
        )
    layout = _rows_layout(len(rows))
    layout["barmode"] = "stack"
    layout["annotations"] = [
        _row_label(place, one, block.first.never, names)
        for place, one in zip(places, rows, strict=True)
    ]
    layout["xaxis"] |= {"range": [0, 100], "title": title("of all CONNECTs", Unit.SHARE)}
    return {"data": traces, "layout": layout}


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
) -> Figure:
    """A course over time, one line per parameter set; the time of the trigger is shaded."""
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers" if _has_lone_point(rows, column) else "lines",
            "x": [row["from_s"] for row in rows],
            "y": [None if row[column] is None else short(row[column]) for row in rows],
            "line": {"color": styles.of(one).colour, "dash": styles.of(one).dash, "width": 2},
            "hovertemplate": f"{safe(one.policy)}: %{{y}}<extra></extra>",
        }
        for one, rows in courses
    ]
    layout = bare(290)
    layout["margin"] |= {"l": 52, "t": 12}
    layout["xaxis"] |= {"title": title("time since the start", Unit.SECONDS)}
    layout["yaxis"] = {
        "title": title(words, Unit.COUNT),
        "gridcolor": GRID,
        "zeroline": False,
        "automargin": True,
        "rangemode": "tozero",
        **TICKS,
    }
    if is_log:
        layout["yaxis"] |= {"type": "log", "dtick": "D2"}
    layout["hovermode"] = "x unified"
    if trigger is not None:
        layout["shapes"] = [_shade(*trigger)]
    return {"data": traces, "layout": layout}


def _has_lone_point(rows: Sequence[Row], column: str) -> bool:
    """Whether a value has none beside it, so that no line shows it."""
    has_value = [False, *(row[column] is not None for row in rows), False]
    return any(
        here and not before and not after
        for before, here, after in zip(has_value, has_value[1:], has_value[2:], strict=False)
    )


def _shade(from_s: float, until_s: float) -> Figure:
    return {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": from_s,
        "x1": until_s,
        "y0": 0,
        "y1": 1,
        "fillcolor": "#e69f00",
        "opacity": 0.14,
        "line": {"width": 0},
        "layer": "below",
    }


def heat_map(places: Sequence[Row]) -> Figure:
    """Load by length of the trigger; `places` are the rows of one scenario and policy."""
    loads = sorted({place["load_ratio"] for place in places})
    lengths = sorted({place["trigger_s"] for place in places})
    found = {(place["load_ratio"], place["trigger_s"]): place for place in places}
    grid = [[found.get((load, length)) for length in lengths] for load in loads]
    layout = bare(64 * len(loads) + 84)
    layout["margin"] |= {"l": 58, "t": 12}
    layout["xaxis"] |= {
        "type": "category",
        "title": title("length of the disturbance", Unit.SECONDS),
        "showgrid": False,
        "fixedrange": True,
    }
    layout["yaxis"] = {
        "type": "category",
        "title": title("load", Unit.SHARE),
        "automargin": True,
        "fixedrange": True,
        **TICKS,
    }
    return {
        "data": [
            {
                "type": "heatmap",
                "x": [f"{length:g}" for length in lengths],
                "y": [f"{100 * load:g}" for load in loads],
                "z": [
                    [None if place is None else place["recovered_ratio"] for place in row]
                    for row in grid
                ],
                "zmin": 0,
                "zmax": 1,
                "xgap": 3,
                "ygap": 3,
                "showscale": False,
                "colorscale": [[0, "#d55e00"], [0.5, "#f2dfc4"], [1, "#5aa7d1"]],
                "text": [
                    [
                        ""
                        if place is None
                        else f"{place['recovered_count']} of {place['runs_count']}"
                        for place in row
                    ]
                    for row in grid
                ],
                "texttemplate": "%{text}",
                "textfont": {"size": 12, "color": INK},
                "hovertemplate": "load %{y} %, %{x} s: %{text} came back<extra></extra>",
            }
        ],
        "layout": layout,
    }
