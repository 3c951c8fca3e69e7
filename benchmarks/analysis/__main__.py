"""`make bench-analysis`: 10^6 and 10^7 rows of samples, and more if asked for."""

import argparse
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.analysis.runs import write_runs
from benchmarks.checks import Columns
from benchmarks.machine import peak_resident_kib
from spark_analysis.analysis import analyse
from spark_analysis.report.page import write_page
from spark_analysis.runs.examination import examine, find_runs
from spark_analysis.session import spark_session
from spark_analysis.tables import result_tables, write_tables


@dataclass(frozen=True, slots=True)
class Measured:
    rows: int
    size_bytes: int
    examined_s: float
    analysed_s: float
    written_s: float
    steps: list[tuple[str, float]]
    peak_kib: int
    """The most that Java had."""


COLUMNS: Columns[Measured] = {
    "rows": lambda measured: f"{measured.rows:,}",
    "files": lambda measured: f"{measured.size_bytes / 2**20:,.0f} MiB",
    "examined": lambda measured: f"{measured.examined_s:.1f} s",
    "analysed": lambda measured: f"{measured.analysed_s:.1f} s",
    "written": lambda measured: f"{measured.written_s:.1f} s",
    "per 10^6 rows": lambda measured: f"{measured.analysed_s / measured.rows * 1e6:.2f} s",
    "Java's peak": lambda measured: f"{measured.peak_kib / 2**20:.1f} GiB",
}


def measure(rows: int, runs: int, memory_gib: int, partitions: int) -> Measured:
    """In a new directory, and a new session."""
    directory = Path(tempfile.mkdtemp(prefix="flowguard-analysis-"))
    try:
        written = write_runs(directory / "runs", rows, runs)
        size = sum(path.stat().st_size for path in directory.rglob("*.parquet"))
        started_s = time.monotonic()
        found, left_out = examine(find_runs([directory / "runs"]))
        assert not left_out, left_out
        examined_s = time.monotonic()
        steps: list[tuple[str, float]] = []
        with spark_session(
            memory_gib=memory_gib, partitions=partitions, log=directory / "spark.log"
        ) as spark:
            begun_s = time.monotonic()
            analysis = analyse(
                spark, found, left_out, lambda words: steps.append((words, time.monotonic()))
            )
            analysed_s = time.monotonic()
            jvm = spark.sparkContext._jvm
            assert jvm is not None
            pid = jvm.java.lang.ProcessHandle.current().pid()
            peak_kib = peak_resident_kib(int(pid))
        write_tables(result_tables(analysis), directory / "out")
        write_page(analysis, directory / "out" / "report.html")
        done_s = time.monotonic()
        ends = [at_s for _, at_s in steps[1:]] + [analysed_s]
        took = [(words, end - at_s) for (words, at_s), end in zip(steps, ends, strict=True)]
        times_s = examined_s - started_s, analysed_s - begun_s, done_s - analysed_s
        return Measured(written, size, *times_s, took, peak_kib)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, nargs="+", default=[1e6, 1e7])
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--memory", type=int, default=2, help="GiB of Spark's driver")
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--steps", action="store_true", help="time of every question, too")
    arguments = parser.parse_args()
    console = Console()
    table = Table(*COLUMNS)
    for rows in arguments.rows:
        measured = measure(int(rows), arguments.runs, arguments.memory, arguments.partitions)
        table.add_row(*(cell(measured) for cell in COLUMNS.values()))
        if arguments.steps:
            for words, took_s in measured.steps:
                console.print(f"  {took_s:6.1f} s  {words}", highlight=False)
    console.print(table)


if __name__ == "__main__":
    main()
