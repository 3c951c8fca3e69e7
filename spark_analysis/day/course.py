"""Course: what live brokers did, in steps of the clock; one row per broker and step."""

from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import PurePath
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_analysis.grains import TICK_S, exact_sum
from spark_analysis.questions.latency import percentiles
from spark_analysis.runs.examination import BROKER, Run

STEPS_S: Final = (1, 5, 10, 30, 60)
"""Steps that a minute is divided into, seconds."""
POINTS_MAX: Final = 1500
"""Steps of a course, at most."""
DAY_S: Final = 86_400
BEYOND_S: Final = 32.0
"""Longest wait that the histograms of a broker distinguish, seconds."""
CONNECT: Final = "connect"
MESSAGE: Final = "message"
CLOSED_UNREAD: Final = "closed_unread"
"""Reason of sockets that were closed before their CONNECT was read."""
_KEY: Final = ("broker", "at_s")


def brokers(runs: Sequence[Run]) -> dict[str, str]:
    """The broker of each live run: its machine, if known, and the directory that its runs are in.

    A directory of runs belongs to one broker, or to one worker.
    """
    live = [run for run in runs if run.run["source"] == BROKER]
    places = {run.run_id: PurePath(run.directory).parent for run in live}
    hosts = {run.run_id: run.run["host"] or "" for run in live}
    names = {run: place.name for run, place in places.items()}
    is_clear = len({*names.values()}) == len({*places.values()})
    shown = names if is_clear else {run: str(place) for run, place in places.items()}
    if len({*hosts.values()} - {""}) > 1:
        return {run: f"{hosts[run]} {shown[run]}".strip() for run in shown}
    return shown


class Courses:
    """The tables of live runs, with the broker and the clock of each row."""

    def __init__(
        self, tables: Mapping[str, DataFrame], runs: Sequence[Run], names: Mapping[str, str]
    ) -> None:
        """`tables`: samples, goodput, latencies, decisions and reasons; `names` as `brokers`."""
        rows = [
            (run.run_id, names[run.run_id], run.run["started_unix_s"] or 0.0)
            for run in runs
            if run.run_id in names
        ]
        spark = tables["samples"].sparkSession
        known = spark.createDataFrame(rows, "run_id string, broker string, started_s double")
        self._tables = {
            name: rows.join(F.broadcast(known), "run_id").withColumn(
                "unix_s", F.col("started_s") + F.col("t_s")
            )
            for name, rows in tables.items()
        }

    def _steps(self, name: str, step_s: int, from_s: float, until_s: float) -> DataFrame:
        """Rows of a table, of the time from `from_s` to `until_s` (Unix time), with the begin of
        their step."""
        at_s = F.floor((F.col("unix_s") - TICK_S) / step_s) * step_s
        inside = (F.col("unix_s") > from_s) & (F.col("unix_s") <= until_s)
        return self._tables[name].where(inside).withColumn("at_s", at_s.cast("long"))

    def of(self, step_s: int, from_s: float = 0.0, until_s: float = 1e12) -> DataFrame:
        """One row per broker and step."""
        time = (step_s, from_s, until_s)
        parts = (
            _nodes(self._steps("samples", *time)),
            _clients(self._steps("goodput", *time)),
            _waits(self._steps("latencies", *time)),
        )
        return reduce(lambda one, other: one.join(other, list(_KEY), "left"), parts)

    def reasons(self, step_s: int, from_s: float = 0.0, until_s: float = 1e12) -> DataFrame:
        """Rejected CONNECTs and dropped messages by reason; one row per broker, step, kind,
        reason."""
        time = (step_s, from_s, until_s)
        rows = self._steps("reasons", *time).select(*_REASON)
        samples = self._steps("samples", *time)
        # Sockets that were closed unread, and rejections of recordings without reasons.
        closed = samples.where("closed_count > 0").select(
            *_KEY, F.lit(CONNECT), F.lit(CLOSED_UNREAD), "closed_count"
        )
        told = self._tables["reasons"].select("broker").distinct().withColumn("told", F.lit(True))
        rejected = F.col("refused_count") + F.col("discarded_count")
        unknown = (
            samples.join(F.broadcast(told), "broker", "left")
            .where(F.col("told").isNull() & (rejected > 0))
            .select(*_KEY, F.lit(CONNECT), F.lit("server_busy"), rejected)
        )
        every = rows.unionAll(closed).unionAll(unknown)
        return every.groupBy(*_REASON[:-1]).agg(F.sum("count").alias("count"))

    def decisions(self, from_s: float, until_s: float) -> DataFrame:
        """The law's decisions of a time, the largest changes first."""
        size = F.abs(F.ln(F.greatest("after", F.lit(0.1)) / F.greatest("before", F.lit(0.1))))
        found = self._steps("decisions", 1, from_s, until_s)
        return found.select(
            "broker", "unix_s", "kind", "before", "after", "why", size.alias("size")
        )


_REASON: Final = (*_KEY, "kind", "reason", "count")


def _nodes(samples: DataFrame) -> DataFrame:
    ratio = F.col("pressure_ratio")

    def most(column: str) -> Column:
        return F.max(column).alias(column)

    def total(column: str) -> Column:
        return F.sum(column).alias(column)

    # While the store is slow, packets wait for it in the queue, too.
    is_store = (F.col("cause") == "queue") & (F.col("pressure_store_ratio") > 1)
    cause = F.when(is_store, "store").otherwise(F.col("cause"))
    return samples.groupBy(*_KEY).agg(
        F.count("*").alias("samples_count"),
        most("pressure_ratio"),
        F.max_by(cause, ratio).alias("cause"),
        F.avg((ratio > 1).cast("int")).alias("overload_ratio"),
        F.min("window").alias("window"),
        F.min("shadow_window").alias("shadow_window"),
        F.avg((F.col("shadow_window") < F.col("window")).cast("int")).alias("shadow_share"),
        most("shadow_paused_count"),
        F.min("connect_limit").alias("connect_limit"),
        F.avg((F.col("rung") != "buffer").cast("int")).alias("closing_ratio"),
        most("connections_count"),
        most("connects_buffered_count"),
        most("memory_bytes"),
        F.max(F.try_divide("memory_bytes", "memory_limit_bytes")).alias("memory_ratio"),
        most("commit_s"),
        most("drift_s"),
        exact_sum(F.col("busy_s")).alias("busy_s"),
        *map(total, ("accepted_count", "refused_count", "discarded_count", "closed_count")),
        *map(total, ("published_count", "delivered_count", "dropped_count")),
    )


def _clients(goodput: DataFrame) -> DataFrame:
    return goodput.groupBy(*_KEY).agg(
        F.max("connected_count").alias("connected_count"),
        F.sum("attempts_count").alias("attempts_count"),
        F.sum("declined_count").alias("declined_count"),
    )


def _waits(latencies: DataFrame) -> DataFrame:
    bound_s = F.least("bound_s", F.lit(BEYOND_S))
    return percentiles(latencies.withColumn("bound_s", bound_s), _KEY)
