"""Grains: the inputs of questions: one row per slice of a node's time, node, instant and second.

Samples are read once into slices, which all questions about nodes share. Sums of real numbers are
sums of whole billionths, because the order in which Spark adds must not show in the result.
"""

from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

ALL: Final = "all"
"""Name of the population that holds all populations."""
TICK_S: Final = 1e-6
"""Times that are closer are equal."""
POINTS: Final = 240
"""Slices of a node's time, and points of a line, at most."""
BILLION: Final = 1e9


def billionths(column: Column) -> Column:
    """Real numbers as whole billionths: their sum is the same in any order.

    A sum may reach 9e9, such as the seconds of 290 years.
    """
    return F.rint(column * BILLION).cast("bigint")


def exact_sum(column: Column) -> Column:
    """The sum of real numbers, the same in any order."""
    return F.sum(billionths(column)) / BILLION


def steps(runs: DataFrame) -> DataFrame:
    """The end of each run, `ended_s`, and the length of its slices, `step_s`: a whole number of
    seconds, the same for all runs of a scenario."""
    longest_s = F.max("ended_s").over(Window.partitionBy("scenario"))
    step_s = F.greatest(F.ceil(longest_s / POINTS), F.lit(1)).alias("step_s")
    return runs.select("run_id", "ended_s", step_s)


def slice_start(t_s: Column) -> Column:
    """The begin of the slice, seconds, of rows with column `step_s`."""
    return (F.floor(t_s / F.col("step_s")) * F.col("step_s")).cast("int")


_COUNTS: Final = (
    *("accepted", "refused", "discarded", "closed"),
    *("published", "delivered", "lost", "dropped"),
)


def by_slice(samples: DataFrame, runs: DataFrame) -> DataFrame:
    """One row per run, node and slice, from `samples`.

    The key is a hash of 64 bits, because hashing and comparing texts takes as long as everything
    else here. Two of 10,000 runs have the same one with a probability of 3e-12.
    """
    run = F.xxhash64("run_id")
    known = F.broadcast(steps(runs).select(run.alias("run"), "run_id", "step_s"))
    alive = F.col("is_alive")
    over = F.col("memory_bytes") > F.col("memory_limit_bytes")
    limit_bytes = F.when(F.col("memory_limit_bytes") > 0, F.col("memory_limit_bytes"))
    has_window = alive & (F.col("window") > 0)
    start = slice_start(F.col("t_s") + TICK_S)
    rows = samples.withColumn("run", run).join(known.drop("run_id"), "run")
    slices = rows.groupBy("run", "node", start.alias("from_s")).agg(
        F.count("*").alias("samples_count"),
        F.count(F.when(alive, 1)).alias("alive_count"),
        F.count(F.when(alive & (F.col("rung") != "buffer"), 1)).alias("closing_count"),
        *(F.sum(f"{name}_count").alias(f"{name}_count") for name in _COUNTS),
        F.sum(billionths(F.col("busy_s"))).alias("busy_s"),
        F.sum(billionths(F.col("refusing_s"))).alias("refusing_s"),
        F.max("connects_buffered_count").alias("buffered_max_count"),
        F.max("connects_buffered_bytes").alias("buffered_max_bytes"),
        F.max("unfinished_bytes").alias("unfinished_max_bytes"),
        F.max(F.col("memory_bytes") / limit_bytes).alias("memory_max_ratio"),
        F.min(F.when(alive, F.col("t_s"))).alias("seen_alive_s"),
        F.min(F.when(~alive, F.col("t_s"))).alias("seen_dead_s"),
        F.min(F.when(alive & over, F.col("t_s"))).alias("over_memory_s"),
        F.count(F.when(has_window, 1)).alias("windows_count"),
        F.sum(F.when(has_window, billionths(F.ln("window")))).alias("ln_window"),
    )
    return slices.join(known.drop("step_s"), "run").drop("run")


def by_node(slices: DataFrame) -> DataFrame:
    """One row per run and node, from `by_slice`."""
    sums = ("samples_count", "alive_count", "closing_count", *(f"{one}_count" for one in _COUNTS))
    tops = ("buffered_max_count", "buffered_max_bytes", "unfinished_max_bytes", "memory_max_ratio")
    alive_s, dead_s = F.min("seen_alive_s"), F.min("seen_dead_s")
    return slices.groupBy("run_id", "node").agg(
        *(F.sum(name).alias(name) for name in sums),
        *((F.sum(name) / BILLION).alias(name) for name in ("busy_s", "refusing_s")),
        *(F.max(name).alias(name) for name in tops),
        # A node that is not there from the start has not died.
        F.when(dead_s > alive_s, dead_s).alias("died_s"),
        F.min("over_memory_s").alias("over_memory_s"),
    )


def with_all(rows: DataFrame) -> DataFrame:
    """All rows, and each a second time as one of population `all`."""
    populations = F.array_distinct(F.array(F.col("population"), F.lit(ALL)))
    return rows.withColumn("population", F.explode(populations))


def by_instant(goodput: DataFrame) -> DataFrame:
    """`goodput` with population `all`, the sum of all populations, beside each of them.

    A broker records population `all` only, so its rows need no sums.
    """
    columns = goodput.columns
    counts = [name for name in columns if name.endswith("_count")]
    sums = (
        goodput.where(F.col("population") != ALL)
        .groupBy("run_id", "t_s")
        .agg(*(F.sum(name).alias(name) for name in counts))
        .withColumn("population", F.lit(ALL))
    )
    return goodput.unionByName(sums.select(columns))


def is_whole() -> Column:
    """Whether the run lasted until the end of this second (columns `second`, `ended_s`)."""
    return F.col("second") + 1 <= F.col("ended_s") + TICK_S


def by_second(instants: DataFrame) -> DataFrame:
    """Events per second, from `by_instant`; second 0 is the time from 0 to 1.

    `served_count` counts messages acknowledged in time, or acknowledged at all if the deadline
    is unknown; for clients that never publish, first connections, or null if a recording does not
    count them.
    """
    second = F.greatest(F.ceil(F.col("t_s") - TICK_S) - 1, F.lit(0)).cast("int")
    events = ("attempts", "declined", "wasted", "due", "acknowledged")
    served = F.coalesce("in_time_count", "acknowledged_count")
    seconds = (
        instants.withColumn("second", second)
        .groupBy("run_id", "population", "second")
        .agg(
            *(F.sum(f"{name}_count").alias(f"{name}_count") for name in events),
            F.sum(served).alias("served_count"),
            F.max("clients_count").alias("clients_count"),
            F.max("connected_count").alias("connected_count"),
            F.max("first_connected_count").alias("first_connected_count"),
        )
    )
    run = Window.partitionBy("run_id", "population")
    published = F.sum(F.col("served_count") + F.coalesce("due_count", F.lit(0))).over(run)
    before = F.lag("first_connected_count", 1, 0).over(run.orderBy("second"))
    connected = F.col("first_connected_count") - before
    return seconds.withColumn(
        "served_count", F.when(published > 0, F.col("served_count")).otherwise(connected)
    )


def in_order(rows: DataFrame, *key: str) -> pa.Table:
    """Rows collected to the driver and sorted; for results only, which have a row per run at
    most, or per step."""
    table = rows.toArrow().replace_schema_metadata(None)
    return table.sort_by([(name, "ascending") for name in key]).combine_chunks()
