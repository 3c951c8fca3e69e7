"""Job: a sweep on Spark, one task per run; all of `flowguard sweep` except its output to people."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import AccumulatorParam
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_analysis.session import spark_session
from spark_analysis.terminal import JobFailed
from spark_sweep.folder import SweepFolder
from spark_sweep.plan import PlannedRun
from spark_sweep.task import RunOutcome, run_apart

DRIVER_GIB: Final = 1
"""Memory of Spark's driver, which only hands out runs: they live in processes of their own."""
LOOK_S: Final = 0.2
"""Pause between two looks at the finished tasks."""

Tell = Callable[[int, int], None]
"""Called with the number of runs done so far, and of those that failed."""


def run_job(
    missing: Sequence[PlannedRun], folder: SweepFolder, master: str, tell: Tell
) -> list[RunOutcome]:
    """Run what is missing; finished runs stay in any case. Raises JobFailed."""
    outcomes: list[RunOutcome] = []
    try:
        if missing:
            log = folder.path / "spark.log"
            with spark_session(master, memory_gib=DRIVER_GIB, log=log) as spark:
                _run_all(spark, missing, folder, outcomes, tell)
    except (PySparkException, Py4JError) as failure:
        raise JobFailed(
            f"Spark gave up: {_words(failure)}; see {folder.path / 'spark.log'}. "
            f"{len(outcomes)} of {len(missing)} runs were done; the same command goes on there."
        ) from failure
    finally:
        folder.report_failures(missing, outcomes)
    return outcomes


def _words(failure: Exception) -> str:
    """Java's own message, without its stack trace."""
    said = str(failure)
    if isinstance(failure, Py4JJavaError):
        said = failure.java_exception.getMessage() or said
    return said.strip().splitlines()[0]


class _Outcomes(AccumulatorParam[list[RunOutcome]]):
    """The outcomes so far; Spark adds those of a task when it ends, and each task once."""

    def zero(self, value: list[RunOutcome]) -> list[RunOutcome]:
        return []

    def addInPlace(self, value1: list[RunOutcome], value2: list[RunOutcome]) -> list[RunOutcome]:
        value1 += value2
        return value1


def _run_all(
    spark: SparkSession,
    missing: Sequence[PlannedRun],
    folder: SweepFolder,
    outcomes: list[RunOutcome],
    tell: Tell,
) -> None:
    """Run a task for each run, in this order as processors become free; `outcomes` grow
    meanwhile."""
    context = spark.sparkContext
    told = context.accumulator(outcomes, _Outcomes())
    runs, unfinished = folder.runs, folder.unfinished

    def work(run: PlannedRun) -> None:
        told.add([run_apart(run, runs, unfinished)])

    with ThreadPoolExecutor(1) as threads:
        job = threads.submit(context.parallelize(missing, len(missing)).foreach, work)
        try:
            while wait([job], LOOK_S).not_done:
                tell(len(outcomes), sum(one.error is not None for one in outcomes))
        except BaseException:
            # Again and again: it may not have come to Spark yet.
            while not job.done():
                context.cancelAllJobs()
                wait([job], LOOK_S)
            raise
        job.result()
