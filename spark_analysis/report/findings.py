"""Findings: the result by question, scenario and parameter set, in the order of the page."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, NamedTuple

from spark_analysis.analysis import Analysis
from spark_analysis.comparing import SET
from spark_analysis.grains import ALL
from spark_analysis.questions.goodput import FIRST_CONNECTIONS, GOODPUT
from spark_analysis.questions.question import Better, Metric, Question
from spark_analysis.report.words import Names, ParameterSet

Row = dict[str, Any]
_COLUMNS: Final = ("population", "runs_count", "values_count", "mean", "low", "high")
"""Columns of the summary, in the order of the fields of MetricSummary."""


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """One metric of one parameter set over its seeds."""

    set: ParameterSet
    population: str
    runs: int
    values: int
    mean: float | None
    low: float | None
    high: float | None

    @property
    def missing(self) -> int:
        return self.runs - self.values


class Point(NamedTuple):
    run_id: str
    seed: int | None
    value: float


@dataclass(slots=True)
class Block:
    """A question in one scenario: the content of one chart, one table and one sentence."""

    question: Question
    scenario: str
    summaries: dict[str, dict[tuple[ParameterSet, str], MetricSummary]] = field(
        default_factory=dict
    )
    """Summaries by metric, then by set and population."""
    points: dict[ParameterSet, list[Point]] = field(default_factory=dict)
    """Points of the first metric, all populations together."""

    @property
    def first(self) -> Metric:
        """The metric that sets are compared by: the question's first one that has a value here.

        A scenario without publishers, for example, has CONNACKs to wait for, but no PUBACKs.
        """
        metrics = self.question.metrics
        return next((one for one in metrics if self.summaries.get(one.column)), metrics[0])

    def ranked(self) -> list[MetricSummary]:
        """The first metric of all sets, by load; within a load the best first, equal ones by
        name."""
        of_metric = self.summaries.get(self.first.column, {})
        of_all = [one for one in of_metric.values() if one.population == ALL]
        return sorted(of_all, key=lambda one: (one.set.load, *_rank(one, self.first), one.set))

    def rivals(self) -> list[list[MetricSummary]]:
        """The first metric in groups of sets that had the same load, and so can be compared."""
        by_load = groupby(self.ranked(), key=lambda one: one.set.load)
        return [list(of_load) for _, of_load in by_load]

    def rows(self) -> list[tuple[ParameterSet, str]]:
        """Return sets and populations that have a value; populations only if there are several."""
        found = {key for by_key in self.summaries.values() for key in by_key}
        populations = {population for _, population in found}
        if len(populations) <= 2:
            found = {key for key in found if key[1] == ALL}
        return sorted(found, key=lambda key: (key[0], key[1] != ALL, key[1]))


def _rank(one: MetricSummary, metric: Metric) -> tuple[float, float]:
    missing = one.missing / one.runs if metric.is_worst_when_missing else 0.0
    if one.mean is None:
        return missing, 0.0
    return missing, -one.mean if metric.better is Better.MORE else one.mean


class ReportFindings:
    def __init__(self, analysis: Analysis, questions: Sequence[Question]) -> None:
        self.analysis = analysis
        self._questions = questions
        self.sets = sorted({set_of(row) for row in analysis.sets.to_pylist()})
        self.names = Names(self.sets)
        self.scenarios = sorted({one.scenario for one in self.sets})
        self._blocks = self._fill()

    def blocks(self, question: Question) -> list[Block]:
        """The blocks of the scenarios in which there is an answer, by name."""
        of_question = [self._blocks.get((question.name, scenario)) for scenario in self.scenarios]
        return [block for block in of_question if block is not None and block.ranked()]

    def runs_of(self, scenario: str) -> Iterator[Row]:
        return (run.run for run in self.analysis.runs if run.run["scenario"] == scenario)

    def _fill(self) -> dict[tuple[str, str], Block]:
        blocks: dict[tuple[str, str], Block] = {}
        silent = self._silent()
        by_name = {question.name: question for question in self._questions}
        for row in self.analysis.summary.to_pylist():
            question = by_name[row["question"]]
            if question is GOODPUT and row["scenario"] in silent:
                question = FIRST_CONNECTIONS
            key = (question.name, row["scenario"])
            block = blocks.setdefault(key, Block(question, row["scenario"]))
            one = MetricSummary(set_of(row), *(row[name] for name in _COLUMNS))
            of_metric = block.summaries.setdefault(row["metric"], {})
            of_metric[one.set, one.population] = one
        self._add_points(blocks)
        return blocks

    def _silent(self) -> set[str]:
        """Return the scenarios without any PUBLISH, wanted or sent."""
        scenarios = {row["run_id"]: row["scenario"] for row in self.analysis.sets.to_pylist()}
        spoken = {
            scenarios[row["run_id"]]
            for row in self.analysis.answers[GOODPUT.name].to_pylist()
            if row["due_count"] or row["acknowledged_count"]
        }
        return set(scenarios.values()) - spoken

    def _add_points(self, blocks: dict[tuple[str, str], Block]) -> None:
        described = {row["run_id"]: row for row in self.analysis.sets.to_pylist()}
        for question in self._questions:
            for row in self.analysis.answers[question.name].to_pylist():
                run = described[row["run_id"]]
                block = blocks.get((question.name, run["scenario"]))
                if block is None or row.get("population", ALL) != ALL:
                    continue
                value = row[block.first.column]
                if value is None:
                    continue
                point = Point(row["run_id"], run["seed"], float(value))
                block.points.setdefault(set_of(run), []).append(point)


def set_of(row: Row) -> ParameterSet:
    return ParameterSet(*(row[name] for name in SET))


def by_set(rows: Sequence[Row], scenario: str) -> dict[ParameterSet, list[Row]]:
    """A course's rows of one scenario, by set, in order of time."""
    found: dict[ParameterSet, list[Row]] = defaultdict(list)
    for row in rows:
        if row["scenario"] == scenario:
            found[set_of(row)].append(row)
    return dict(found)
