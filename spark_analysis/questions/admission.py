"""How many clients were let in, and what became of the others?"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_analysis.grains import exact_sum
from spark_analysis.questions.question import Better, Metric, Question, Unit


def admission(nodes: DataFrame) -> DataFrame:
    """Return one row per run, from `grains.by_node`; shares are null if no client sent a
    CONNECT."""
    asked = F.col("accepted_count") + F.col("refused_count")
    asked = asked + F.col("discarded_count") + F.col("closed_count")
    answered = ("accepted_count", "refused_count", "discarded_count", "closed_count")
    return (
        nodes.groupBy("run_id")
        .agg(
            *(F.sum(name).alias(name) for name in answered),
            F.max("buffered_max_count").alias("buffered_max_count"),
            exact_sum(F.col("refusing_s")).alias("refusing_s"),
            exact_sum(F.col("busy_s")).alias("busy_s"),
            F.sum("closing_count").alias("closing_count"),
            F.sum("alive_count").alias("alive_count"),
        )
        .select(
            "run_id",
            *answered,
            F.try_divide("accepted_count", asked).alias("accepted_ratio"),
            F.try_divide("refused_count", asked).alias("refused_ratio"),
            F.try_divide("refusing_s", "busy_s").alias("refusing_ratio"),
            F.try_divide("closing_count", "alive_count").alias("closing_ratio"),
            "buffered_max_count",
        )
    )


QUESTION: Final = Question(
    "admission",
    "Which CONNECTs were admitted, and what happened to the others?",
    "CONNECTs as the nodes answered them: success, 0x89 (rejected), no answer because the client "
    "had left (discarded), socket closed unread. Also the share of the loop's work for rejecting.",
    (
        Metric("accepted_ratio", "let in, of all CONNECTs", Unit.SHARE, Better.MORE),
        Metric("accepted_count", "let in", Unit.COUNT, Better.NEITHER),
        Metric("refused_count", "refused with 137", Unit.COUNT, Better.LESS),
        Metric("discarded_count", "discarded", Unit.COUNT, Better.LESS),
        Metric("closed_count", "closed unread", Unit.COUNT, Better.LESS),
        Metric("refusing_ratio", "work for refusing", Unit.SHARE, Better.LESS),
        Metric("closing_ratio", "time in which new sockets were closed", Unit.SHARE, Better.LESS),
        Metric("buffered_max_count", "largest buffer", Unit.COUNT, Better.LESS),
    ),
    lambda inputs: admission(inputs.nodes),
)
