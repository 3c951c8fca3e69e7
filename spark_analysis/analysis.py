"""Analysis: all questions asked of all runs; the results are small and lie on the driver."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_analysis.comparing import (
    SET,
    VALUE,
    outliers,
    parameter_sets,
    summary,
    values,
    window_course,
    work_course,
)
from spark_analysis.day.day import Day, the_day
from spark_analysis.grains import by_instant, by_node, by_second, by_slice
from spark_analysis.loads import loads
from spark_analysis.questions import (
    admission,
    cascade,
    fairness,
    goodput,
    latency,
    loss,
    memory,
    recovery,
    retries,
    stability,
    time_to_connect,
)
from spark_analysis.questions.question import Inputs, Question
from spark_analysis.questions.region import MAP_KEY, region
from spark_analysis.runs import contracts
from spark_analysis.runs.examination import BROKER, LeftOut, Run, read_through
from spark_analysis.runs.reading import read_runs, read_table

QUESTIONS: Final[tuple[Question, ...]] = (
    admission.QUESTION,
    time_to_connect.QUESTION,
    goodput.QUESTION,
    latency.QUESTION,
    recovery.QUESTION,
    cascade.QUESTION,
    retries.QUESTION,
    stability.QUESTION,
    fairness.QUESTION,
    memory.QUESTION,
    loss.QUESTION,
)
VIOLATIONS_MAX: Final = 1000
"""Rows of table `violations` that are reported; a run has one at most."""

Tell = Callable[[str], None]
"""Called with a description of the current step."""
Asked = TypeVar("Asked")


@dataclass(frozen=True, slots=True)
class Analysis:
    """The results; every table in its own order."""

    runs: tuple[Run, ...]
    left_out: tuple[LeftOut, ...]
    sets: pa.Table
    """The parameter set, seed and command of each run."""
    answers: dict[str, pa.Table]
    """The answer to each question: one row per run, or per run and population."""
    region: pa.Table
    summary: pa.Table
    outliers: pa.Table
    work: pa.Table
    windows: pa.Table
    violations: pa.Table
    day: Day | None
    """The day of the live runs, or None if there are none."""


def analyse(
    spark: SparkSession,
    runs: Sequence[Run],
    left_out: Sequence[LeftOut],
    tell: Tell = lambda _: None,
) -> Analysis:
    """Answer all questions. If Spark cannot read a run after all, leave it out and start again.

    `runs` are not empty. Raises AllDamaged if none of them can be read.
    """
    return with_whole_runs(
        spark, runs, left_out, lambda whole, out: _Analysing(spark, whole, tell).analyse(out), tell
    )


def with_whole_runs(
    spark: SparkSession,
    runs: Sequence[Run],
    left_out: Sequence[LeftOut],
    ask: Callable[[Sequence[Run], Sequence[LeftOut]], Asked],
    tell: Tell,
) -> Asked:
    """The result of `ask`; if Spark cannot read a run after all, it is asked again without that
    run.

    Raises AllDamaged if none of them can be read."""
    try:
        return ask(runs, left_out)
    except (PySparkException, Py4JError):
        tell("something could not be read: reading every file through, to name it")
        whole, damaged = read_through(runs)
        if not damaged:
            raise
        if not whole:
            raise AllDamaged("; ".join(f"{one.path}: {one.reason}" for one in damaged)) from None
        return ask(whole, [*left_out, *damaged])
    finally:
        spark.catalog.clearCache()


class AllDamaged(Exception):
    """No run could be read; the text has the reason."""


class _Analysing:
    def __init__(self, spark: SparkSession, runs: Sequence[Run], tell: Tell) -> None:
        self._spark = spark
        self._runs = tuple(runs)
        self._tell = tell
        self._inputs = read_inputs(spark, runs)
        is_live = any(run.run["source"] == BROKER for run in self._runs)
        inputs = self._inputs
        found = loads(inputs.runs, inputs.seconds) if is_live else None
        self._sets = parameter_sets(inputs.runs, found)

    def analyse(self, left_out: Sequence[LeftOut]) -> Analysis:
        inputs = self._inputs
        answers = {question.name: self._answer(question) for question in QUESTIONS}
        self._tell("comparing policies and parameter sets")
        found = self._values(answers)
        # Runs are compared by the first metric of each answer.
        first = found.where(found["metric"].isin([one.metrics[0].column for one in QUESTIONS]))
        recovered = self._local(answers["recovery"])
        return Analysis(
            runs=self._runs,
            left_out=tuple(sorted(left_out, key=lambda one: (one.path, one.reason))),
            sets=in_order(self._sets, "run_id"),
            answers=answers,
            region=in_order(region(recovered, inputs.runs), *MAP_KEY),
            summary=in_order(summary(found, self._sets), *VALUE),
            outliers=in_order(outliers(first, self._sets), *VALUE, "run_id"),
            work=in_order(work_course(inputs.seconds, self._sets, inputs.runs), *SET, "from_s"),
            windows=in_order(window_course(inputs.slices, self._sets), *SET, "from_s"),
            violations=self._violations(),
            day=self._day(),
        )

    def _answer(self, question: Question) -> pa.Table:
        self._tell(question.title)
        answer = question.answer(self._inputs)
        key = ["run_id", "population"] if "population" in answer.columns else ["run_id"]
        return in_order(answer, *key)

    def _values(self, answers: dict[str, pa.Table]) -> DataFrame:
        each = [values(self._local(answers[one.name]), one) for one in QUESTIONS]
        found = reduce(DataFrame.unionAll, each)
        return self._local(in_order(found, *found.columns))

    def _local(self, table: pa.Table) -> DataFrame:
        """A result that was collected, as a DataFrame again."""
        return self._spark.createDataFrame(table)

    def _day(self) -> Day | None:
        self._tell("the day of live runs")
        return the_day(self._spark, self._runs)

    def _violations(self) -> pa.Table:
        rows = read_table(self._spark, self._runs, contracts.VIOLATIONS)
        key = contracts.VIOLATIONS.key
        return in_order(rows.orderBy(*key).limit(VIOLATIONS_MAX), *key)


def read_inputs(spark: SparkSession, runs: Sequence[Run]) -> Inputs:
    """The inputs of the questions; those that several of them need are cached."""

    def read(table: contracts.TableContract) -> DataFrame:
        return read_table(spark, runs, table)

    described = read_runs(spark, runs)
    samples = read(contracts.SAMPLES)
    slices = by_slice(samples, described).persist(StorageLevel.MEMORY_AND_DISK)
    instants = by_instant(read(contracts.GOODPUT))
    return Inputs(
        runs=described,
        samples=samples,
        slices=slices,
        latencies=read(contracts.LATENCIES),
        clients=read(contracts.CLIENTS),
        nodes=by_node(slices),
        instants=instants,
        seconds=by_second(instants).persist(StorageLevel.DISK_ONLY),
    )


def in_order(rows: DataFrame, *key: str) -> pa.Table:
    """Rows collected to the driver and sorted; for results only, which have a row per run at
    most."""
    table = rows.toArrow().replace_schema_metadata(None)
    return table.sort_by([(name, "ascending") for name in key]).combine_chunks()
