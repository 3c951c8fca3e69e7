"""How much extra work do retries make?"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_analysis.questions.question import Better, Metric, Question, Unit


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


QUESTION: Final = Question(
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
