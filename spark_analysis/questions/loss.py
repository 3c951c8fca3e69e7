"""Was anything lost that had been acknowledged?"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_analysis.questions.question import Better, Metric, Question, Unit


def loss(nodes: DataFrame) -> DataFrame:
    """Return one row per run, from `grains.by_node`; `dropped_count` is null if it was not
    counted."""
    return (
        nodes.groupBy("run_id")
        .agg(
            F.sum("published_count").alias("published_count"),
            F.sum("lost_count").alias("lost_count"),
            F.sum("dropped_count").alias("dropped_count"),
        )
        .select("*", F.try_divide("lost_count", "published_count").alias("lost_ratio"))
    )


QUESTION: Final = Question(
    "loss",
    "Was anything lost that had been acknowledged?",
    "Lost: acknowledged, and no longer to be delivered. Dropped: not delivered because a "
    "subscriber's queue was full, which its operator allowed.",
    (
        Metric("lost_count", "acknowledged and lost", Unit.COUNT, Better.LESS),
        Metric("lost_ratio", "of what was acknowledged", Unit.SHARE, Better.LESS),
        Metric("dropped_count", "dropped at full queues", Unit.COUNT, Better.LESS),
    ),
    lambda inputs: loss(inputs.nodes),
)
