"""Courses: how things go over time, per parameter set, in few enough points to draw."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_analysis.comparing import SET
from spark_analysis.grains import ALL, TICK_S, exact_sum

POINTS: Final = 240
"""Points of a line, at most."""


def work_course(seconds: DataFrame, sets: DataFrame, step_s: int) -> DataFrame:
    """Goodput and connected clients as means over seeds, in steps of `step_s`, of `by_second`."""
    start = (F.floor(F.col("second") / step_s) * step_s).cast("int")
    return (
        seconds.where(F.col("population") == ALL)
        .join(F.broadcast(sets), "run_id")
        .groupBy(*SET, start.alias("from_s"))
        .agg(
            (F.sum("served_count") / F.count("*")).alias("in_time_per_s"),
            (F.sum("due_count") / F.count("*")).alias("due_per_s"),
            (F.sum("connected_count") / F.count("*")).alias("connected_count"),
            (F.sum("attempts_count") / F.count("*")).alias("attempts_per_s"),
        )
    )


def window_course(samples: DataFrame, sets: DataFrame, step_s: int) -> DataFrame:
    """The window as geometric mean over nodes alive and seeds, in steps of `step_s`."""
    start = (F.floor((F.col("t_s") + TICK_S) / step_s) * step_s).cast("int")
    mean = F.exp(exact_sum(F.ln("window")) / F.count("*"))
    return (
        samples.where(F.col("is_alive") & (F.col("window") > 0))
        .join(F.broadcast(sets), "run_id")
        .groupBy(*SET, start.alias("from_s"))
        .agg(mean.alias("window"), F.max("pressure_ratio").alias("pressure_max_ratio"))
    )
