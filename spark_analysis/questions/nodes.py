"""Questions about nodes, from `grains.by_node`: admission, cascade, memory, loss, survival."""

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


ADMISSION: Final = Question(
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
    count, first_s = F.size("fallen"), F.try_element_at("fallen", F.lit(1))["fell_s"]
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
            first_s.alias("first_fell_s"),
            (F.try_element_at("fallen", F.lit(-1))["fell_s"] - first_s).alias("spread_s"),
            F.array_join(order, " > ").alias("order"),
        )
    )


_NO_NODE_FELL: Final = ("no node fell", "nodes_count")
CASCADE: Final = Question(
    "cascade",
    "Does one node take others with it?",
    "Nodes that died, or went over their memory limit, after the first one; the order is in the "
    "table.",
    (
        Metric("depth_count", "nodes that fell after the first", Unit.COUNT, Better.LESS),
        Metric("fallen_count", "nodes that fell", Unit.COUNT, Better.LESS),
        Metric("over_memory_count", "nodes over their memory", Unit.COUNT, Better.LESS),
        Metric("first_fell_s", "first one fell after", Unit.SECONDS, Better.MORE, *_NO_NODE_FELL),
    ),
    lambda inputs: cascade(inputs.nodes),
)


def memory(nodes: DataFrame) -> DataFrame:
    """Return one row per run, from `grains.by_node`: the headroom of the node nearest to its limit.

    It is negative if a node exceeded its limit, and null if there is no limit.
    """
    return nodes.groupBy("run_id").agg(
        (1.0 - F.max("memory_max_ratio")).alias("headroom_ratio"),
        F.max("unfinished_max_bytes").alias("unfinished_max_bytes"),
        F.max("buffered_max_bytes").alias("buffered_max_bytes"),
    )


MEMORY: Final = Question(
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


LOSS: Final = Question(
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


def survival(runs: DataFrame) -> DataFrame:
    """Return one row per run: processes that died of memory, without those that the scenario
    kills."""
    return runs.select("run_id", "deaths_count")


SURVIVAL: Final = Question(
    "survival",
    "Does every process live?",
    "Processes that died of memory. Processes that the scenario itself kills do not count: if it "
    "kills one of N, no other may die.",
    (Metric("deaths_count", "processes that died of memory", Unit.COUNT, Better.LESS),),
    lambda inputs: survival(inputs.runs),
)
