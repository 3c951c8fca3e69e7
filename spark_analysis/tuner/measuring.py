"""Measuring: the metrics of every run that an objective needs; only those questions are asked."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from spark_analysis.analysis import Tell, answer, read_inputs
from spark_analysis.comparing import values
from spark_analysis.grains import in_order
from spark_analysis.questions.question import Question
from spark_analysis.runs import contracts
from spark_analysis.runs.examination import Run
from spark_analysis.runs.reading import read_table
from spark_analysis.tuner.objective import ASKED, Measured, Objective

Value = float | None
"""A metric's value, or None with the meaning of a missing one, such as never."""


@dataclass(frozen=True, slots=True)
class Measures:
    values: dict[tuple[str, str, str], Value]
    """Values by metric, population and run; a run in which the metric has no meaning is not
    there."""
    violated: frozenset[str]

    def has(self, what: Measured, run_id: str) -> bool:
        return (what.metric, what.population, run_id) in self.values

    def of(self, what: Measured, run_id: str) -> Value:
        return self.values[what.metric, what.population, run_id]


def asked(objective: Objective) -> list[Question]:
    """The questions that an objective needs."""
    metrics = {what.metric.partition(".")[0] for what in objective.measured}
    return [question for question in ASKED if question.name in metrics]


def measure(spark: SparkSession, runs: Sequence[Run], objective: Objective, tell: Tell) -> Measures:
    """Ask Spark; what comes back has a row per run and metric."""
    inputs = read_inputs(spark, runs)
    wanted = {(what.metric, what.population) for what in objective.measured}
    found: dict[tuple[str, str, str], Value] = {}
    for question in asked(objective):
        tell(question.title)
        for one in values(answer(question, inputs), question):
            name = f"{question.name}.{one.metric}"
            if (name, one.population) in wanted:
                found[name, one.population, one.run_id] = one.value
    tell("looking for violations")
    violations = read_table(spark, runs, contracts.VIOLATIONS).select("run_id").distinct()
    violated = set(in_order(violations, "run_id")["run_id"].to_pylist())
    violated |= {run.run_id for run in runs if run.end["ended_by"] == "violation"}
    return Measures(found, frozenset(violated))
