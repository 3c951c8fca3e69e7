"""Sections: one per question; each chart with its sentence and its table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from spark_analysis.grains import ALL
from spark_analysis.questions.goodput import FIRST_CONNECTIONS
from spark_analysis.questions.question import Metric, Question, Unit
from spark_analysis.report import charts
from spark_analysis.report.document import figure, long_table
from spark_analysis.report.findings import Block, MetricSummary, ReportFindings, Row, by_set
from spark_analysis.report.markup import Content, Html, element, join, table
from spark_analysis.report.sentences import conclusion, region_conclusion
from spark_analysis.report.words import NONE, ParameterSet, margin, quantity

_COURSES: Final = {
    "time_to_connect": ("connected_count", "clients connected, mean of all seeds"),
    "goodput": ("in_time_per_s", "PUBLISHes in time per second, mean of all seeds"),
    "retries": ("attempts_per_s", "attempts to connect per second, mean of all seeds"),
    "stability": ("window", "window, geometric mean of nodes and seeds"),
}
_CONNECTIONS: Final = "clients connected for the first time per second, mean of all seeds"
REGION_TITLE: Final = "From which load on does a disturbance outlive its cause?"


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A question with its results: of each scenario a sentence, charts and a table."""

    title: str
    name: str
    how: str
    results: Sequence[tuple[str, str, Sequence[Content]]]
    """Scenario, sentence, and what shows it."""

    def html(self) -> Html:
        articles = [
            element(
                "article",
                element("h3", scenario),
                element("p", sentence, class_="conclusion"),
                *contents,
            )
            for scenario, sentence, contents in self.results
        ]
        how = element("p", self.how, class_="how")
        return element("section", element("h2", self.title), how, *articles, id=f"q-{self.name}")

    def in_short(self) -> Html:
        """The sentences, with a link to the section."""
        sentences = [
            element("p", element("span", scenario, class_="scenario"), " ", sentence)
            for scenario, sentence, _ in self.results
        ]
        return element("li", element("a", self.title, href=f"#q-{self.name}"), *sentences)


def region_section(places: Sequence[Row]) -> ReportSection:
    """The maps of load and length: of each scenario that has several places."""
    results = []
    for scenario in sorted({place["scenario"] for place in places}):
        own = [place for place in places if place["scenario"] == scenario]
        lengths = sorted({place["trigger_s"] for place in own})
        found = {(one["policy"], one["load_ratio"], one["trigger_s"]): one for one in own}
        lines = sorted({key[:2] for key in found})
        if len({key[1:] for key in found}) == 1:
            continue
        rows = [
            (
                *(policy, quantity(load, Unit.SHARE)),
                *(_place(found.get((policy, load, length))) for length in lengths),
            )
            for policy, load in lines
        ]
        head = ("policy", "load", *(quantity(length, Unit.SECONDS) for length in lengths))
        results.append((scenario, region_conclusion(own), [table(head, rows)]))
    how = (
        "A row is a load, a column a length of the disturbance; its number counts the runs that "
        "returned to 95 % of their goodput and stayed there. In the others the system is "
        "metastable: the cause has ended and the collapse has not."
    )
    return ReportSection(REGION_TITLE, "region", how, results)


def _place(place: Row | None) -> str:
    if place is None:
        return NONE
    slowest = place["recovery_max_s"]
    after = "" if slowest is None else f", at most {quantity(slowest, Unit.SECONDS)}"
    return f"{place['recovered_count']} of {place['runs_count']}{after}"


class Sections:
    """Writes the sections of one report."""

    def __init__(self, findings: ReportFindings) -> None:
        self._findings = findings
        self._styles = charts.styles_of(findings.sets)

    def of(self, questions: Sequence[Question]) -> list[ReportSection]:
        """The sections of questions that have an answer."""
        found = []
        for question in questions:
            results = [
                (block.scenario, conclusion(block, self._findings.names), self._shown(block))
                for block in self._findings.blocks(question)
            ]
            found.append(ReportSection(question.title, question.name, question.how, results))
            if question.name == "recovery":
                found.append(region_section(self._findings.analysis.region.to_pylist()))
        return [section for section in found if section.results]

    def _shown(self, block: Block) -> list[Content]:
        ranked = block.ranked()
        contents: list[Content] = [element("div", *self._figures_of(block), class_="figures")]
        if len(ranked) > len(charts.shown(ranked)):
            words = f"The charts show the first nine and the last three of {len(ranked)}; "
            contents.append(element("p", words + "the table has all of them.", class_="note"))
        return [*contents, self._table(block)]

    def _figures_of(self, block: Block) -> Iterator[Html]:
        names, name = self._findings.names, block.question.name
        if sum(map(len, block.points.values())) > 1:
            words = f"{block.scenario}: {block.first.words}; a dot per run, the mean and its 95 %"
            yield figure(charts.dots(block, names, self._styles), f"{words} interval")
        if block.question is FIRST_CONNECTIONS:
            yield from self._course(block, "in_time_per_s", _CONNECTIONS)
        elif name in _COURSES:
            yield from self._course(block, *_COURSES[name])

    def _course(self, block: Block, column: str, words: str) -> Iterator[Html]:
        analysis = self._findings.analysis
        rows = (analysis.windows if column == "window" else analysis.work).to_pylist()
        found = by_set(rows, block.scenario)
        courses = [
            (one.set, found[one.set]) for one in charts.shown(block.ranked()) if one.set in found
        ]
        if all(row[column] is None for _, rows_of in courses for row in rows_of):
            return
        trigger = self._trigger(block.scenario)
        short = words.split(",")[0]
        drawn = charts.lines(
            courses, column, short, self._styles, trigger, is_log=column == "window"
        )
        name = self._findings.names.name
        entries = [(*self._styles[one], name(one)) for one, _ in courses]
        shade = "; shaded: the disturbance" if trigger else ""
        key = [charts.legend(entries)] if len(entries) > 1 else []
        yield figure(join([drawn, *key]), f"{block.scenario}: {words}{shade}")

    def _trigger(self, scenario: str) -> tuple[float, float] | None:
        """The time of the trigger, if all runs of the scenario have the same."""
        times = {
            (run["trigger_at_s"], run["trigger_until_s"])
            for run in self._findings.runs_of(scenario)
        }
        if len(times) != 1:
            return None
        from_s, until_s = times.pop()
        return None if from_s is None or until_s is None else (from_s, until_s)

    def _table(self, block: Block) -> Html:
        metrics = block.question.metrics
        rows = block.rows()
        has_populations = any(population != ALL for _, population in rows)
        head = ["policy and parameters", *(["population"] if has_populations else [])]
        head += ["runs", *(metric.words for metric in metrics)]
        cells: list[list[Content]] = []
        for one, population in rows:
            row: list[Content] = [set_name(one, self._findings)]
            if has_populations:
                row.append(population)
            found = [block.summaries.get(m.column, {}).get((one, population)) for m in metrics]
            row.append(f"{max(entry.runs for entry in found if entry is not None)}")
            row += [_cell(entry, metric) for entry, metric in zip(found, metrics, strict=True)]
            cells.append(row)
        return long_table(head, cells)


def set_name(one: ParameterSet, findings: ReportFindings) -> Html:
    """The policy, and below it the parameters that differ."""
    detail = findings.names.detail(one)
    small = [element("small", detail)] if detail else []
    return element("span", element("b", one.policy), *small, class_="set")


def _cell(entry: MetricSummary | None, metric: Metric) -> Content:
    if entry is None or entry.mean is None:
        return NONE if entry is None else metric.never or NONE
    text = margin(entry.mean, entry.high, metric.unit)
    if not entry.missing:
        return text
    missing = f"{metric.never} in {entry.missing} of {entry.runs}"
    return element("span", text, element("small", missing))
