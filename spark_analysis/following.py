"""Following: a running summary of a directory that a broker writes into, by structured streaming.

The broker completes a file and then gives it its name; every new file becomes part of the next
micro-batch, and is counted once, also after a restart: files read are noted in a checkpoint. The
summary is per minute, so its size grows with time and not with rows. A minute is in Spark's state
until a broker has recorded a minute that is a day later; then rows of it end the stream. A file
that is damaged or of another version ends the stream before anything of it is in the summary.
"""

import json
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from rich.table import Table
from rich.text import Text

from spark_analysis.grains import exact_sum
from spark_analysis.report.words import number
from spark_analysis.runs.contracts import SAMPLES
from spark_analysis.runs.examination import examine_file
from spark_analysis.runs.reading import READING
from spark_analysis.terminal import JobFailed

MINUTE_S: Final = 60
LATE: Final = "1 day"
"""Time of recording after which a minute is complete."""
KEY: Final = ("run_id", "minute")
POLL_S: Final = 0.3
SUMMARY: Final = "running.json"
CHECKPOINT: Final = "checkpoint"
FILES: Final = "samples-*.parquet"

Show = Callable[[list[dict[str, Any]]], None]
"""Called with all minutes, in order, after each batch."""


def minutes(samples: DataFrame) -> DataFrame:
    """One row per run and minute, from `samples`; the same for a stream and for a table.

    Counts are summed over nodes; pressure and memory are those of the worst node and sample.
    """
    alive = F.col("is_alive")
    limit_bytes = F.when(F.col("memory_limit_bytes") > 0, F.col("memory_limit_bytes"))
    sums = ("accepted", "refused", "discarded", "closed", "published", "delivered", "lost")
    minute = F.floor(F.col("t_s") / MINUTE_S).cast("int")
    # A broker's run has its start in its name. Minutes of other runs are never complete.
    name = F.regexp_extract("run_id", r"^live-(\d{8}T\d{6})Z-", 1)
    started = F.try_to_timestamp(name, F.lit("yyyyMMdd'T'HHmmss"))
    ended = started + F.make_dt_interval(mins=F.col("minute") + 1)
    timed = samples.withColumn("minute", minute).withColumn("ended", ended)
    minutes_ = timed.withWatermark("ended", LATE).groupBy("run_id", "minute", "ended")
    return minutes_.agg(
        *(F.sum(f"{name}_count").alias(f"{name}_count") for name in sums),
        F.sum("dropped_count").alias("dropped_count"),
        F.max("connections_count").alias("connections_max_count"),
        F.max("pressure_ratio").alias("pressure_max_ratio"),
        F.min(F.when(alive, F.col("window"))).alias("window_min"),
        F.max(F.col("memory_bytes") / limit_bytes).alias("memory_max_ratio"),
        exact_sum(F.col("busy_s")).alias("busy_s"),
        F.count("*").alias("samples_count"),
    ).drop("ended")


def follow(
    spark: SparkSession, directory: Path, out: Path, show: Show, *, every_s: float = 5.0
) -> StreamingQuery:
    """Start; the summary is in `out`/running.json after each batch, and given to `show`.

    `directory` is that of one recording, or holds several.
    """
    kept = _read(out / SUMMARY)
    examined: set[Path] = set()

    def take(batch: DataFrame, _number: int) -> None:
        new = set(directory.rglob(FILES)) - examined
        for path in sorted(new):
            examine_file(SAMPLES, path)
        examined.update(new)
        for row in batch.toLocalIterator():
            values = row.asDict()
            kept[values["run_id"], values["minute"]] = values
        rows = [kept[key] for key in sorted(kept)]
        _write(out / SUMMARY, rows)
        show(rows)

    samples = (
        spark.readStream.schema(SAMPLES.spark)
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", FILES)
        .options(**READING)
        .parquet(str(directory))
    )
    return (
        minutes(samples)
        .writeStream.outputMode("update")
        .trigger(processingTime=f"{every_s} seconds")
        .option("checkpointLocation", str(out / CHECKPOINT))
        .foreachBatch(take)
        .start()
    )


def wait(out: Path, *queries: StreamingQuery) -> None:
    """Wait until Ctrl-C or SIGTERM, in the main thread.

    Raises JobFailed if a stream ends by itself, or has dropped rows as too late: none is left out
    silently. Then the checkpoint is removed, so that the next start reads all rows.

    PySpark's own handler would cut a command to Java in two; here it is only noted."""
    is_asked, is_late = threading.Event(), False
    before = {
        number: signal.signal(number, lambda *_: is_asked.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        while all(one.isActive for one in queries) and not (is_late or is_asked.wait(POLL_S)):
            is_late = _has_dropped_rows(queries[-1])
    finally:
        for query in queries:
            query.stop()
        for number, handler in before.items():
            signal.signal(number, handler)
    if is_late:
        shutil.rmtree(out / CHECKPOINT)
        raise JobFailed(
            f"Rows came {LATE} after their minute, so the summary lacks them. Start the same "
            "command again: it reads everything."
        )
    for query in queries:
        failure = query.exception()
        if failure is not None:
            raise JobFailed(_reason(str(failure)))


def _has_dropped_rows(query: StreamingQuery) -> bool:
    states = [state for progress in query.recentProgress for state in progress["stateOperators"]]
    return any(state["numRowsDroppedByWatermark"] for state in states)


def _reason(said: str) -> str:
    """The part of a stack trace that names the file."""
    lines = [line.strip() for line in said.splitlines()]
    named = [line for line in lines if "Unreadable: " in line or "FAILED_READ_FILE" in line]
    return named[-1].split("Unreadable: ")[-1] if named else lines[0]


def _read(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The summary of the time before a restart."""
    if not path.exists():
        return {}
    rows = json.loads(path.read_text())["minutes"]
    return {(row["run_id"], row["minute"]): row for row in rows}


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the file atomically: readers see a whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps({"minutes": rows}, indent=1) + "\n")
    unfinished.rename(path)


SHOWN: Final = 15
"""Minutes on the screen; the file has all of them."""
NAMED: Final = 3
"""Runs that the title names."""


def following_screen(rows: Sequence[dict[str, Any]]) -> Table:
    """A table of the newest of `rows`, which are those of `following.minutes`.

    If there are several runs, their numbers stand for their names in the rows.
    """
    runs = {name: number for number, name in enumerate(sorted({row["run_id"] for row in rows}), 1)}
    are_many = len(runs) > 1
    newest = [f"{number}: {name}" if are_many else name for name, number in runs.items()][-NAMED:]
    more = f" and {len(runs) - NAMED} more" if len(runs) > NAMED else ""
    title = f"{', '.join(newest)}{more}: {len(rows)} minutes" if rows else "waiting for samples"
    table = Table(box=None, header_style="dim", title=Text(title), padding=(0, 1, 0, 0))
    table.title_justify = "left"
    names = ("minute", "let in", "refused", "published", "delivered", "lost")
    for name in (*(["run"] if are_many else []), *names, "clients", "pressure", "window", "memory"):
        table.add_column(name, justify="right")
    for row in rows[-SHOWN:]:
        table.add_row(*([str(runs[row["run_id"]])] if are_many else []), *_cells(row))
    return table


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    counts = ("accepted", "refused", "published", "delivered", "lost")
    window, memory = row["window_min"], row["memory_max_ratio"]
    return (
        str(row["minute"]),
        *(number(row[f"{name}_count"]) for name in counts),
        number(row["connections_max_count"]),
        f"{row['pressure_max_ratio']:.2f}",
        "" if window is None else f"{window:.3g}",
        "" if memory is None else f"{100 * memory:.0f} %",
    )
