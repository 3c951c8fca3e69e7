"""How long until all clients are connected?"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_analysis.questions.question import Better, Metric, Question, Unit


def time_to_connect(instants: DataFrame) -> DataFrame:
    """Return one row per run and population, from `grains.by_instant`.

    `t99_s` is the first instant at which 99 % of the clients had been connected at least once, from
    the start of the run. It is null if that never happened, or if the number of clients is unknown.
    `connected_time_ratio` is the share of all client-seconds of the run in which clients were
    connected.
    """
    # Few instants have another count than the one before.
    counts = instants.groupBy("run_id", "population", "first_connected_count").agg(
        F.min("t_s").alias("t_s"),
        F.max("clients_count").alias("clients_count"),
        F.sum("connected_count").alias("now_count"),
        F.count("*").alias("rows_count"),
    )
    whole = Window.partitionBy("run_id", "population")
    reached = (
        counts.withColumn("clients_count", F.max("clients_count").over(whole))
        .withColumn("connected_count", F.max("first_connected_count").over(whole))
        .withColumn("share", F.try_divide("first_connected_count", "clients_count"))
    )
    return reached.groupBy("run_id", "population").agg(
        F.max("clients_count").alias("clients_count"),
        F.max("connected_count").alias("connected_count"),
        F.try_divide(F.sum("now_count"), F.sum("rows_count") * F.max("clients_count")).alias(
            "connected_time_ratio"
        ),
        F.max(F.try_divide("connected_count", "clients_count")).alias("connected_ratio"),
        _first(0.5).alias("t50_s"),
        _first(0.99).alias("t99_s"),
        _first(1.0).alias("t100_s"),
    )


def _first(share: float) -> Column:
    return F.min(F.when(F.col("share") >= share, F.col("t_s")))


QUESTION: Final = Question(
    "time_to_connect",
    "How long until all clients are connected?",
    "From the start of the run until 50, 99 and 100 % of the clients had been connected at least "
    "once, to a tenth of a second.",
    (
        Metric(
            "t99_s",
            "until 99 % were connected",
            Unit.SECONDS,
            Better.LESS,
            "never",
            "clients_count",
        ),
        Metric("t50_s", "until 50 %", Unit.SECONDS, Better.LESS, "never", "clients_count"),
        Metric("t100_s", "until all", Unit.SECONDS, Better.LESS, "never", "clients_count"),
        Metric("connected_ratio", "connected at least once", Unit.SHARE, Better.MORE),
        Metric("connected_time_ratio", "of the time connected", Unit.SHARE, Better.MORE),
    ),
    lambda inputs: time_to_connect(inputs.instants),
)
