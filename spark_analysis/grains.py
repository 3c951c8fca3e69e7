"""Grains: the inputs of questions: one row per node, per instant, per second.

Samples are read once into one row per node; questions about refusals and about deaths share
them. Times are rounded to the writer's step, sums of seconds are made of decimals: the order in
which Spark adds must not show in the result.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

ALL: Final = "all"
"""Name of the population that holds all populations."""
TICK_S: Final = 1e-6
"""Times that are closer are equal."""
EXACT: Final = "decimal(28,9)"
"""Sums of these do not depend on their order."""


def exact_sum(column: Column) -> Column:
    """The sum of real numbers, the same in any order."""
    return F.sum(column.cast(EXACT)).cast("double")


def by_node(samples: DataFrame) -> DataFrame:
    """One row per run and node, from `samples`."""
    alive = F.col("is_alive")
    seen_alive_s = F.min(F.when(alive, F.col("t_s")))
    seen_dead_s = F.min(F.when(~alive, F.col("t_s")))
    over = F.col("memory_bytes") > F.col("memory_limit_bytes")
    limit_bytes = F.when(F.col("memory_limit_bytes") > 0, F.col("memory_limit_bytes"))
    sums = [
        F.sum(f"{name}_count").alias(f"{name}_count")
        for name in (
            *("accepted", "refused", "discarded", "closed"),
            *("published", "delivered", "lost", "dropped"),
        )
    ]
    return samples.groupBy("run_id", "node").agg(
        F.count("*").alias("samples_count"),
        F.count(F.when(alive, 1)).alias("alive_count"),
        F.count(F.when(alive & (F.col("rung") != "buffer"), 1)).alias("closing_count"),
        *sums,
        exact_sum(F.col("busy_s")).alias("busy_s"),
        exact_sum(F.col("refusing_s")).alias("refusing_s"),
        F.max("connects_buffered_count").alias("buffered_max_count"),
        F.max("connects_buffered_bytes").alias("buffered_max_bytes"),
        F.max("unfinished_bytes").alias("unfinished_max_bytes"),
        F.max(F.col("memory_bytes") / limit_bytes).alias("memory_max_ratio"),
        # A node that is not there from the start has not died.
        F.when(seen_dead_s > seen_alive_s, seen_dead_s).alias("died_s"),
        F.min(F.when(alive & over, F.col("t_s"))).alias("over_memory_s"),
    )


def with_all(rows: DataFrame) -> DataFrame:
    """All rows, and each a second time as one of population `all`."""
    populations = F.array_distinct(F.array(F.col("population"), F.lit(ALL)))
    return rows.withColumn("population", F.explode(populations))


def by_instant(goodput: DataFrame) -> DataFrame:
    """`goodput` with population `all`, the sum of all populations, beside each of them."""
    counts = [name for name in goodput.columns if name.endswith("_count")]
    return (
        with_all(goodput)
        .groupBy("run_id", "population", "t_s")
        .agg(*(F.sum(name).alias(name) for name in counts))
    )


def is_whole() -> Column:
    """Whether the run lasted until the end of this second (columns `second`, `ended_s`)."""
    return F.col("second") + 1 <= F.col("ended_s") + TICK_S


def by_second(instants: DataFrame) -> DataFrame:
    """Events per second, from `by_instant`; second 0 is the time from 0 to 1.

    `served_count` counts messages acknowledged in time, or acknowledged at all if the deadline
    is unknown; for clients that never publish, first connections, or null if a recording does not
    count them. `steps_count` is the number of rows.
    """
    second = F.greatest(F.ceil(F.col("t_s") - TICK_S) - 1, F.lit(0)).cast("int")
    events = ("attempts_count", "declined_count", "due_count", "acknowledged_count")
    served = F.coalesce("in_time_count", "acknowledged_count")
    seconds = (
        instants.withColumn("second", second)
        .groupBy("run_id", "population", "second")
        .agg(
            *(F.sum(name).alias(name) for name in events),
            F.sum(served).alias("served_count"),
            F.max("connected_count").alias("connected_count"),
            F.max("first_connected_count").alias("first_connected_count"),
            F.count("*").alias("steps_count"),
        )
    )
    run = Window.partitionBy("run_id", "population")
    published = F.sum(F.col("served_count") + F.coalesce("due_count", F.lit(0))).over(run)
    before = F.lag("first_connected_count", 1, 0).over(run.orderBy("second"))
    connected = F.col("first_connected_count") - before
    return seconds.withColumn(
        "served_count", F.when(published > 0, F.col("served_count")).otherwise(connected)
    )
