"""Do all clients get the same share?"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_analysis.grains import with_all
from spark_analysis.questions.question import Better, Metric, Question, Unit

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


QUESTION: Final = Question(
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
