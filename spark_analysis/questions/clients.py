"""Questions about clients: time to connect, retries, fairness."""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_analysis.grains import with_all
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


_NEVER: Final = ("never", "clients_count")
TIME_TO_CONNECT: Final = Question(
    "time_to_connect",
    "How long until all clients are connected?",
    "From the start of the run until 50, 99 and 100 % of the clients had been connected at least "
    "once, to a tenth of a second.",
    (
        Metric("t99_s", "until 99 % were connected", Unit.SECONDS, Better.LESS, *_NEVER),
        Metric("t50_s", "until 50 %", Unit.SECONDS, Better.LESS, *_NEVER),
        Metric("t100_s", "until all", Unit.SECONDS, Better.LESS, *_NEVER),
        Metric("connected_ratio", "connected at least once", Unit.SHARE, Better.MORE),
        Metric("connected_time_ratio", "of the time connected", Unit.SHARE, Better.MORE),
    ),
    lambda inputs: time_to_connect(inputs.instants),
)


def retries(seconds: DataFrame) -> DataFrame:
    """One row per run and population, from `grains.by_second`; ratios of nothing are null."""
    return (
        seconds.groupBy("run_id", "population")
        .agg(
            F.max("clients_count").alias("clients_count"),
            F.max("first_connected_count").alias("connected_count"),
            F.sum("attempts_count").alias("attempts_count"),
            F.sum("declined_count").alias("declined_count"),
            F.sum("wasted_count").alias("wasted_count"),
        )
        .select(
            "*",
            F.try_divide("attempts_count", "clients_count").alias("attempts_per_client"),
            F.try_divide("declined_count", "connected_count").alias("declined_per_connected"),
            F.try_divide("wasted_count", "attempts_count").alias("wasted_ratio"),
        )
    )


RETRIES: Final = Question(
    "retries",
    "How much extra work do retries make?",
    "Attempts to connect per client (one is ideal), attempts that failed per client that got in, "
    "and CONNECTs that were served for a client that had gone.",
    (
        Metric("attempts_per_client", "attempts per client", Unit.RATIO, Better.LESS),
        Metric("declined_per_connected", "failed per connected", Unit.RATIO, Better.LESS),
        Metric("wasted_ratio", "served for nobody", Unit.SHARE, Better.LESS),
    ),
    lambda inputs: retries(inputs.seconds),
)


_COST: Final = "decimal(18,6)"
"""Exact sums, of squares too: the order of clients does not show."""


def fairness(clients: DataFrame) -> DataFrame:
    """Return one row per run and population: Jain's index, (sum x)^2 / (n sum x^2).

    It is 1 if all clients cost the broker the same, 1/n if one client causes all cost, and null if
    no client cost anything.
    """
    in_time = F.col("in_time_count").cast(_COST)
    return (
        with_all(clients)
        .groupBy("run_id", "population")
        .agg(
            F.count("*").alias("clients_count"),
            _jain(F.col("cost_units").cast(_COST)).alias("jain_cost_index"),
            _jain(in_time).alias("jain_in_time_index"),
            F.count(F.when(F.col("in_time_count") == 0, 1)).alias("without_count"),
        )
    )


def _jain(share: Column) -> Column:
    total = F.sum(share).cast("double")
    squares = F.sum(share * share).cast("double")
    return F.try_divide(total * total, F.count(share) * squares)


FAIRNESS: Final = Question(
    "fairness",
    "Do all clients get the same share?",
    "Jain's index over what each client cost the broker, and over what each got done in time: 1 if "
    "all are equal, 1/n if one of n has everything.",
    (
        Metric("jain_cost_index", "Jain's index of cost", Unit.INDEX, Better.MORE),
        Metric("jain_in_time_index", "of work in time", Unit.INDEX, Better.MORE),
        Metric("without_count", "clients without any goodput", Unit.COUNT, Better.LESS),
    ),
    lambda inputs: fairness(inputs.clients),
)
