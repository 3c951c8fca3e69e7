"""Analysis: all questions asked of all runs; the results are small and lie on the driver."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_analysis.comparing import (
    SET,
    outliers,
    parameter_sets,
    summary,
    values,
    window_course,
    work_course,
)
from spark_analysis.day.day import Day, the_day
from spark_analysis.grains import by_instant, by_node, by_second, by_slice, in_order
from spark_analysis.loads import loads
from spark_analysis.questions.clients import FAIRNESS, RETRIES, TIME_TO_CONNECT
from spark_analysis.questions.goodput import GOODPUT
from spark_analysis.questions.latency import LATENCY
from spark_analysis.questions.nodes import ADMISSION, CASCADE, LOSS, MEMORY
from spark_analysis.questions.question import Inputs, Question
from spark_analysis.questions.recovery import MAP_KEY, RECOVERY, region
from spark_analysis.questions.stability import STABILITY
from spark_analysis.runs import contracts
from spark_analysis.runs.examination import LeftOut, Run, read_through
from spark_analysis.runs.reading import read_runs, read_table
from spark_analysis.terminal import JobFailed

QUESTIONS: Final[tuple[Question, ...]] = (
    *(ADMISSION, TIME_TO_CONNECT, GOODPUT, LATENCY, RECOVERY, CASCADE),
    *(RETRIES, STABILITY, FAIRNESS, MEMORY, LOSS),
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

    `runs` are not empty. Raises JobFailed if none of them can be read.
    """

    def ask(whole: Sequence[Run], not_read: Sequence[LeftOut]) -> Analysis:
        return _analysed(spark, whole, not_read, tell)

    return with_whole_runs(spark, runs, left_out, ask, tell)


def with_whole_runs(
    spark: SparkSession,
    runs: Sequence[Run],
    left_out: Sequence[LeftOut],
    ask: Callable[[Sequence[Run], Sequence[LeftOut]], Asked],
    tell: Tell,
) -> Asked:
    """The result of `ask`; if Spark cannot read a run after all, it is asked again without that
    run.

    Raises JobFailed if none of them can be read."""
    try:
        return ask(runs, left_out)
    except (PySparkException, Py4JError):
        tell("something could not be read: reading every file through, to name it")
        whole, damaged = read_through(runs)
        if not damaged:
            raise
        if not whole:
            raise JobFailed("; ".join(f"{one.path}: {one.reason}" for one in damaged)) from None
        return ask(whole, [*left_out, *damaged])
    finally:
        spark.catalog.clearCache()


def _analysed(
    spark: SparkSession, runs: Sequence[Run], left_out: Sequence[LeftOut], tell: Tell
) -> Analysis:
    inputs = read_inputs(spark, runs)
    sets = parameter_sets(runs, loads(runs, inputs.seconds))
    answers = {}
    for question in QUESTIONS:
        tell(question.title)
        answers[question.name] = answer(question, inputs)
    tell("the day of live runs")
    day = the_day(spark, runs)
    tell("comparing policies and parameter sets")
    found = [one for each in QUESTIONS for one in values(answers[each.name], each)]
    firsts = {(each.name, each.metrics[0].column) for each in QUESTIONS}
    of_sets = spark.createDataFrame(sets)
    places = region(spark.createDataFrame(answers["recovery"]), inputs.runs)
    violations = read_table(spark, runs, contracts.VIOLATIONS)
    key = contracts.VIOLATIONS.key
    return Analysis(
        runs=tuple(runs),
        left_out=tuple(sorted(left_out, key=lambda one: (one.path, one.reason))),
        sets=sets,
        answers=answers,
        region=in_order(places, *MAP_KEY),
        summary=summary(found, sets),
        outliers=outliers([one for one in found if (one.question, one.metric) in firsts], sets),
        work=in_order(work_course(inputs.seconds, of_sets, inputs.runs), *SET, "from_s"),
        windows=in_order(window_course(inputs.slices, of_sets), *SET, "from_s"),
        violations=in_order(violations.orderBy(*key).limit(VIOLATIONS_MAX), *key),
        day=day,
    )


def answer(question: Question, inputs: Inputs) -> pa.Table:
    """The answer to a question, in the order of runs and populations."""
    found = question.answer(inputs)
    key = ["run_id", "population"] if "population" in found.columns else ["run_id"]
    return in_order(found, *key)


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
