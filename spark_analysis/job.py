"""Job: runs in, report and tables out; all of `flowguard analyze` except its output to people."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from rich.console import Console
from rich.live import Live
from rich.progress import Progress, TaskID

from spark_analysis.analysis import QUESTIONS, AllDamaged, Analysis, analyse
from spark_analysis.following import CHECKPOINT, FollowingFailed, follow, following_screen, wait
from spark_analysis.report.page import write_page
from spark_analysis.report.words import count
from spark_analysis.runs.examination import LeftOut, Run, examine, find_runs
from spark_analysis.runs.topic import CONNECTOR, RUNS, TopicPlace, keep
from spark_analysis.session import SessionFailed, spark_session
from spark_analysis.tables import FOLDER, result_tables, write_tables

LISTED_MAX: Final = 20
"""Entries left out that are named on the terminal; the tables name all."""
FOLLOW_PARTITIONS: Final = 2
"""A minute has one row per node and tick: little to shuffle, and every part is a file of state."""
_STEPS: Final = len(QUESTIONS) + 3


class JobFailed(Exception):
    """There is no result; the text has the reason."""


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


def run_job(
    paths: Sequence[Path],
    out: Path,
    master: str,
    *,
    memory_gib: int | None,
    partitions: int,
    progress: Progress,
    is_wanted: Callable[[Path], bool] = lambda _: True,
) -> AnalysisResult:
    """Analyse the runs in `paths` whose directories are wanted. Raises JobFailed, JavaMissing."""
    task = progress.add_task("examining runs", total=None)
    runs, left_out = examined(paths, progress, task, is_wanted)
    progress.update(task, description="starting Spark", total=_STEPS, completed=0)

    def tell(step: str) -> None:
        progress.update(task, description=step, advance=1)

    try:
        with spark_session(
            master, memory_gib=memory_gib, partitions=partitions, log=out / "spark.log"
        ) as spark:
            analysis = analyse(spark, runs, left_out, tell)
    except (AllDamaged, SessionFailed) as failure:
        raise JobFailed(str(failure)) from failure
    tell("writing report and tables")
    write_tables(result_tables(analysis), out / FOLDER)
    write_page(analysis, out / "report.html")
    return AnalysisResult(analysis, out / "report.html", out / FOLDER)


def examined(
    paths: Sequence[Path],
    progress: Progress,
    task: TaskID,
    is_wanted: Callable[[Path], bool] = lambda _: True,
) -> tuple[list[Run], list[LeftOut]]:
    """The runs in and below `paths` that can be read, and those that cannot. Raises JobFailed: none
    can."""
    found = find_runs(paths)
    directories = list(filter(is_wanted, found))
    others_count = len(found) - len(directories)
    if others_count:
        progress.update(task, description=f"examining runs, not {others_count:,} of another time")
    progress.update(task, total=len(directories))
    runs, left_out = examine(directories, lambda: progress.advance(task))
    if not runs:
        words = "\n".join(reasons(left_out)) or (
            f"none began in this time, but {count(others_count, 'run')} at another time"
            if others_count
            else "there are no Parquet files; flowguard simulate --out DIR and "
            "flowguard serve --record DIR write them"
        )
        raise JobFailed(f"No run can be read in {', '.join(map(str, paths))}:\n{words}")
    return runs, left_out


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
    topic as a client of Kafka with `properties`. Raises FollowingFailed, JobFailed, JavaMissing."""
    try:
        with (
            spark_session(
                master,
                memory_gib=memory_gib,
                partitions=FOLLOW_PARTITIONS,
                log=out / "spark.log",
                packages=CONNECTOR if isinstance(source, TopicPlace) else "",
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
            wait(*queries, shown)
    except FollowingFailed as failure:
        if failure.lacks_rows:
            shutil.rmtree(out / CHECKPOINT)
        raise
    except SessionFailed as failure:
        raise JobFailed(str(failure)) from failure
    except PySparkException as failure:  # For one of the properties, as Spark sets it itself.
        raise JobFailed(str(failure).partition("\n")[0]) from failure


def reasons(left_out: Sequence[LeftOut]) -> list[str]:
    lines = [f"left out: {one.path}: {one.reason}" for one in left_out[:LISTED_MAX]]
    if len(left_out) > LISTED_MAX:
        lines.append(f"and {len(left_out) - LISTED_MAX} more: see tables/left_out.csv")
    return lines
