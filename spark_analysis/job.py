"""Job: runs in, report and tables out; all of `flowguard analyze` except its output to people."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from rich.live import Live
from rich.progress import Progress

from spark_analysis.analysis import QUESTIONS, Analysis, Asked, Tell, analyse
from spark_analysis.following import CHECKPOINT, follow, following_screen, wait
from spark_analysis.report.page import write_page
from spark_analysis.report.words import count
from spark_analysis.runs.examination import LeftOut, Run, examine, find_runs
from spark_analysis.runs.topic import RUNS, TopicPlace, keep, missing_packages
from spark_analysis.session import spark_session
from spark_analysis.tables import FOLDER, result_tables, write_tables
from spark_analysis.terminal import JobFailed, SparkOptions

LISTED_MAX: Final = 20
"""Entries left out that are named on the terminal; the tables name all."""
FOLLOW_PARTITIONS: Final = 2
"""A minute has one row per node and tick: little to shuffle, and every part is a file of state."""


@dataclass(frozen=True, slots=True)
class SparkJob:
    """Runs on Spark, with the progress on the terminal."""

    paths: Sequence[Path]
    out: Path
    options: SparkOptions
    progress: Progress

    def examined(
        self, is_wanted: Callable[[Path], bool] = lambda _: True
    ) -> tuple[list[Run], list[LeftOut]]:
        """The runs in and below `paths` that can be read, of the directories that are wanted, and
        those that cannot. Raises JobFailed: none can."""
        task = self.progress.add_task("examining runs", total=None)
        found = find_runs(self.paths)
        directories = list(filter(is_wanted, found))
        others_count = len(found) - len(directories)
        if others_count:
            words = f"examining runs, not {others_count:,} of another time"
            self.progress.update(task, description=words)
        self.progress.update(task, total=len(directories))
        runs, left_out = examine(directories, lambda: self.progress.advance(task))
        if not runs:
            words = "\n".join(reasons(left_out)) or (
                f"none began in this time, but {count(others_count, 'run')} at another time"
                if others_count
                else "there are no Parquet files; flowguard simulate --out DIR and "
                "flowguard serve --record DIR write them"
            )
            raise JobFailed(f"No run can be read in {', '.join(map(str, self.paths))}:\n{words}")
        return runs, left_out

    def on_spark(self, steps: int, ask: Callable[[SparkSession, Tell], Asked]) -> Asked:
        """The result of `ask`, which takes this number of steps; after `examined`. Raises
        JobFailed."""
        (task,) = self.progress.task_ids
        self.progress.update(task, description="starting Spark", total=steps, completed=0)

        def tell(step: str) -> None:
            self.progress.update(task, description=step, advance=1)

        master, memory_gib, partitions = self.options
        log = self.out / "spark.log"
        with spark_session(master, memory_gib=memory_gib, partitions=partitions, log=log) as spark:
            return ask(spark, tell)


@dataclass(frozen=True, slots=True)
class AnalysisResult:
    analysis: Analysis
    report: Path
    tables: Path

    def lines(self) -> list[str]:
        left_out = self.analysis.left_out
        return [
            *reasons(left_out),
            f"{count(len(self.analysis.runs), 'run')} analysed, {len(left_out)} left out.",
            f"report: {self.report}",
            f"tables: {self.tables}",
        ]


def run_job(job: SparkJob, is_wanted: Callable[[Path], bool]) -> AnalysisResult:
    """Analyse the runs whose directories are wanted. Raises JobFailed."""
    runs, left_out = job.examined(is_wanted)

    def ask(spark: SparkSession, tell: Tell) -> AnalysisResult:
        analysis = analyse(spark, runs, left_out, tell)
        tell("writing report and tables")
        write_tables(result_tables(analysis), job.out / FOLDER)
        write_page(analysis, job.out / "report.html")
        return AnalysisResult(analysis, job.out / "report.html", job.out / FOLDER)

    return job.on_spark(len(QUESTIONS) + 3, ask)


def follow_job(
    source: Path | TopicPlace,
    out: Path,
    master: str,
    properties: Mapping[str, str] | None = None,
    *,
    memory_gib: int | None,
    console: Console,
) -> None:
    """Follow a directory, or a topic, of which the runs are then below `out`, until Ctrl-C; the
    topic as a client of Kafka with `properties`. Raises JobFailed."""
    try:
        with (
            spark_session(
                master,
                memory_gib=memory_gib,
                partitions=FOLLOW_PARTITIONS,
                log=out / "spark.log",
                packages=missing_packages() if isinstance(source, TopicPlace) else "",
            ) as spark,
            Live(following_screen([]), console=console, auto_refresh=False) as live,
        ):
            # A kill leaves unfinished files. Before its first batch Spark fails if there is one.
            for path in out.glob(f"{CHECKPOINT}*/**/.*.tmp*"):
                path.unlink()
            queries = []
            directory = source
            if isinstance(directory, TopicPlace):
                queries.append(keep(spark, directory, out, properties))
                directory = out / RUNS
            shown = follow(
                spark,
                directory,
                out,
                lambda rows: live.update(following_screen(rows), refresh=True),
            )
            wait(out, *queries, shown)
    except PySparkException as failure:  # For one of the properties, as Spark sets it itself.
        raise JobFailed(str(failure).partition("\n")[0]) from failure


def reasons(left_out: Sequence[LeftOut]) -> list[str]:
    lines = [f"left out: {one.path}: {one.reason}" for one in left_out[:LISTED_MAX]]
    if len(left_out) > LISTED_MAX:
        lines.append(f"and {len(left_out) - LISTED_MAX} more: see tables/left_out.csv")
    return lines
