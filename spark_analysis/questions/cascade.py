"""Does one node take others with it?"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_analysis.questions.question import Better, Metric, Question, Unit


def cascade(nodes: DataFrame) -> DataFrame:
    """One row per run, from `grains.by_node`: which nodes fell, in which order.

    A node falls when it dies or its memory passes its limit, whichever is first; depth is how many
    fell after the first one. Nodes that fall in the same sample are ordered by number.
    """
    fell_s = F.least("died_s", "over_memory_s")
    fallen = F.array_sort(
        F.collect_list(
            F.when(F.col("fell_s").isNotNull(), F.struct("fell_s", F.col("node").alias("node")))
        )
    )
    order = F.transform("fallen", lambda one: one["node"].cast("string"))
    count = F.size("fallen")
    return (
        nodes.withColumn("fell_s", fell_s)
        .groupBy("run_id")
        .agg(
            F.count("*").alias("nodes_count"),
            F.count("over_memory_s").alias("over_memory_count"),
            fallen.alias("fallen"),
        )
        .select(
            "run_id",
            "nodes_count",
            "over_memory_count",
            count.alias("fallen_count"),
            F.greatest(count - 1, F.lit(0)).alias("depth_count"),
            F.try_element_at("fallen", F.lit(1))["fell_s"].alias("first_fell_s"),
            (
                F.try_element_at("fallen", F.lit(-1))["fell_s"]
                - F.try_element_at("fallen", F.lit(1))["fell_s"]
            ).alias("spread_s"),
            F.array_join(order, " > ").alias("order"),
        )
    )


QUESTION: Final = Question(
    "cascade",
    "Does one node take others with it?",
    "Nodes that died, or went over their memory limit, after the first one; the order is in the "
    "table.",
    (
        Metric("depth_count", "nodes that fell after the first", Unit.COUNT, Better.LESS),
        Metric("fallen_count", "nodes that fell", Unit.COUNT, Better.LESS),
        Metric("over_memory_count", "nodes over their memory", Unit.COUNT, Better.LESS),
        Metric(
            "first_fell_s",
            "first one fell after",
            Unit.SECONDS,
            Better.MORE,
            "no node fell",
            "nodes_count",
        ),
    ),
    lambda inputs: cascade(inputs.nodes),
)
