"""Sections: one per question; each chart with its sentence and its table."""

from collections.abc import Iterator, Sequence
from typing import Final

from spark_analysis.grains import ALL
from spark_analysis.questions.goodput import FIRST_CONNECTIONS
from spark_analysis.questions.question import Metric, Question
from spark_analysis.report import charts
from spark_analysis.report.document import figure
from spark_analysis.report.findings import Block, MetricSummary, ReportFindings, Row, by_set
from spark_analysis.report.markup import Content, Html, element, join, table
from spark_analysis.report.sentences import conclusion, region_conclusion
from spark_analysis.report.words import NONE, ParameterSet, count, margin, quantity

_PARTS: Final = (
    ("accepted_count", "let in"),
    ("refused_count", "refused with 137"),
    ("discarded_count", "discarded"),
    ("closed_count", "closed unread"),
)
_COURSES: Final = {
    "time_to_connect": ("connected_count", "clients connected, mean of all seeds"),
    "goodput": ("in_time_per_s", "PUBLISHes in time per second, mean of all seeds"),
    "retries": ("attempts_per_s", "attempts to connect per second, mean of all seeds"),
    "stability": ("window", "window, geometric mean of nodes and seeds"),
}
_CONNECTIONS: Final = "clients connected for the first time per second, mean of all seeds"
ROWS_OPEN: Final = 8
"""Rows up to which a table is open; a longer one opens on a click, and for printing."""
REGION_TITLE: Final = "From which load on does a disturbance outlive its cause?"


class Sections:
    """Writes the sections of one report."""

    def __init__(self, findings: ReportFindings) -> None:
        self._findings = findings
        self._styles = charts.Styles(findings.sets)

    def of_question(self, question: Question) -> Html:
        blocks = self._findings.blocks(question)
        articles = [self._article(block) for block in blocks]
        head = element("h2", question.title)
        how = element("p", question.how, class_="how")
        return element("section", head, how, *articles, id=f"q-{question.name}")

    def in_short(self, questions: Sequence[Question]) -> Html:
        """Every question with its result, in a sentence per scenario."""
        entries = []
        for question in questions:
            link = element("a", question.title, href=f"#q-{question.name}")
            entries.append(element("li", link, *self._sentences(question)))
            sentences = [
                self._sentence(scenario, region_conclusion(places))
                for scenario, places in self._regions()
            ]
            if question.name == "recovery" and sentences:
                link = element("a", REGION_TITLE, href="#q-region")
                entries.append(element("li", link, *sentences))
        return element(
            "section", element("h2", "In short"), element("ol", *entries), class_="short"
        )

    def _sentences(self, question: Question) -> list[Html]:
        return [
            self._sentence(block.scenario, conclusion(block, self._findings.names))
            for block in self._findings.blocks(question)
        ]

    def _sentence(self, scenario: str, sentence: str) -> Html:
        return element("p", element("span", scenario, class_="scenario"), " ", sentence)

    def region(self) -> Html | None:
        """The maps of load and length, if any run has a place on one."""
        articles = []
        for scenario, places in self._regions():
            policies = sorted({place["policy"] for place in places})
            figures = []
            for policy in policies:
                of_policy = [place for place in places if place["policy"] == policy]
                words = f"{scenario}, {policy}: runs that came back"
                figures.append(figure(charts.load_map(of_policy), words))
            articles.append(
                element(
                    "article",
                    element("h3", scenario),
                    element("p", region_conclusion(places), class_="conclusion"),
                    element("div", *figures, class_="figures"),
                )
            )
        if not articles:
            return None
        how = (
            "Each cell is a load and a length of the disturbance; its number counts the runs that "
            "returned to 95 % of their goodput and stayed there. In the others the system is "
            "metastable: the cause has ended and the collapse has not."
        )
        title = element("h2", REGION_TITLE)
        return element("section", title, element("p", how, class_="how"), *articles, id="q-region")

    def _regions(self) -> Iterator[tuple[str, list[Row]]]:
        """Scenarios with several places; a single one makes no map."""
        rows = self._findings.analysis.region.to_pylist()
        for scenario in sorted({row["scenario"] for row in rows}):
            places = [row for row in rows if row["scenario"] == scenario]
            if len({(place["load_ratio"], place["trigger_s"]) for place in places}) > 1:
                yield scenario, places

    def _article(self, block: Block) -> Html:
        ranked = block.ranked()
        sentence = conclusion(block, self._findings.names)
        figures = list(self._figures_of(block))
        hidden = len(ranked) - len(charts.shown(ranked))
        note = []
        if hidden:
            words = f"The charts show the first nine and the last three of {len(ranked)}; "
            note = [element("p", words + "the table has all of them.", class_="note")]
        return element(
            "article",
            element("h3", block.scenario),
            element("p", sentence, class_="conclusion"),
            element("div", *figures, class_="figures"),
            *note,
            self._table(block),
        )

    def _figures_of(self, block: Block) -> Iterator[Html]:
        names, name = self._findings.names, block.question.name
        if name == "admission":
            words = f"{block.scenario}: CONNECTs, by what became of them"
            yield figure(charts.stack(block, _PARTS, names), words)
        elif sum(map(len, block.points.values())) > 1:
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
        entries = []
        for one, _ in courses:
            style = self._styles.of(one)
            entries.append((style.colour, style.dash, self._findings.names.name(one)))
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
        if len(rows) <= ROWS_OPEN:
            return table(head, cells)
        words = element("summary", f"Table of all {count(len(rows), 'parameter set')}")
        return element("details", words, table(head, cells))


def set_name(one: ParameterSet, findings: ReportFindings) -> Html:
    """The policy, and below it the parameters that differ."""
    detail = findings.names.detail(one)
    small = [element("small", detail)] if detail else []
    return element("span", element("b", one.policy), *small, class_="set")


def _cell(entry: MetricSummary | None, metric: Metric) -> Content:
    if entry is None:
        return NONE
    if entry.mean is None:
        return metric.never or NONE
    is_alone = entry.high is None or entry.high - entry.mean < 1e-12
    high = entry.mean if entry.high is None else entry.high
    text = quantity(entry.mean, metric.unit) if is_alone else margin(entry.mean, high, metric.unit)
    if not entry.missing:
        return text
    missing = f"{metric.never} in {entry.missing} of {entry.runs}"
    return element("span", text, element("small", missing))
