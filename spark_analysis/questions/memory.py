"""How much memory was left?"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_analysis.questions.question import Better, Metric, Question, Unit


def memory(nodes: DataFrame) -> DataFrame:
    """Return one row per run, from `grains.by_node`: the headroom of the node nearest to its limit.

    It is negative if a node exceeded its limit, and null if there is no limit.
    """
    return nodes.groupBy("run_id").agg(
        (1.0 - F.max("memory_max_ratio")).alias("headroom_ratio"),
        F.max("unfinished_max_bytes").alias("unfinished_max_bytes"),
        F.max("buffered_max_bytes").alias("buffered_max_bytes"),
    )


QUESTION: Final = Question(
    "memory",
    "How much memory was left?",
    "The sample of any node that was nearest to its memory limit. Beyond it a process dies.",
    (
        Metric("headroom_ratio", "memory left", Unit.SHARE, Better.MORE),
        Metric("unfinished_max_bytes", "largest unfinished payloads", Unit.BYTES, Better.LESS),
        Metric("buffered_max_bytes", "largest CONNECT buffer", Unit.BYTES, Better.LESS),
    ),
    lambda inputs: memory(inputs.nodes),
)
