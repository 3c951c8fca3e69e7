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
from spark_analysis.analysis import analyse
from spark_analysis.examination import examine, find_runs
from spark_analysis.report.page import write_page
from spark_analysis.session import spark_session
from spark_analysis.tables import result_tables, write_tables


@dataclass(frozen=True, slots=True)
class Measured:
    """One size."""

    rows: int
    size_bytes: int
    examined_s: float
    analysed_s: float
    written_s: float
    steps: list[tuple[str, float]]


def measure(rows: int, runs: int, memory_gib: int, partitions: int) -> tuple[Measured, int]:
    """In a new directory, and a new session; also the peak memory of Java, in bytes."""
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
            peak_bytes = _peak_bytes(int(pid))
        write_tables(result_tables(analysis), directory / "out")
        write_page(analysis, directory / "out" / "report.html")
        done_s = time.monotonic()
        ends = [at_s for _, at_s in steps[1:]] + [analysed_s]
        took = [(words, end - at_s) for (words, at_s), end in zip(steps, ends, strict=True)]
        measured = Measured(
            written,
            size,
            examined_s - started_s,
            analysed_s - begun_s,
            done_s - analysed_s,
            took,
        )
        return measured, peak_bytes
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, nargs="+", default=[1e6, 1e7])
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--memory", type=int, default=2, help="GiB of Spark's driver")
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--steps", action="store_true", help="time of every question, too")
    arguments = parser.parse_args()
    console = Console()
    table = Table(
        "rows", "files", "examined", "analysed", "written", "per 10^6 rows", "Java's peak"
    )
    for rows in arguments.rows:
        measured, peak_bytes = measure(
            int(rows), arguments.runs, arguments.memory, arguments.partitions
        )
        table.add_row(
            f"{measured.rows:,}",
            f"{measured.size_bytes / 2**20:,.0f} MiB",
            f"{measured.examined_s:.1f} s",
            f"{measured.analysed_s:.1f} s",
            f"{measured.written_s:.1f} s",
            f"{measured.analysed_s / measured.rows * 1e6:.2f} s",
            f"{peak_bytes / 2**30:.1f} GiB",
        )
        if arguments.steps:
            for words, took_s in measured.steps:
                console.print(f"  {took_s:6.1f} s  {words}", highlight=False)
    console.print(table)


if __name__ == "__main__":
    main()
