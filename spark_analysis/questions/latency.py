"""How long do clients wait?"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_analysis.grains import with_all
from spark_analysis.questions.question import Better, Metric, Question, Unit

KINDS: Final = ("acknowledgement", "connect", "delivery")
SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}


def latency(latencies: DataFrame) -> DataFrame:
    """One row per run and population, with `percentiles`."""
    bucket = ("run_id", "population", "kind", "bound_s")
    buckets = latencies.groupBy(*bucket).agg(F.sum("count").alias("count"))
    return percentiles(with_all(buckets), bucket[:2])


def percentiles(latencies: DataFrame, key: Sequence[str]) -> DataFrame:
    """One row per key; columns `connect_count`, `connect_p50_s`, ... per kind.

    A percentile is the upper bound of the bucket in which the observation of that rank lies (rank:
    the share of the count, rounded up), so it is never less than the true one; null if that is the
    bucket beyond all bounds, or if there is no observation.
    """
    histogram = [*key, "kind"]
    upwards = Window.partitionBy(*histogram).orderBy("bound_s")
    ranked = (
        latencies.groupBy(*histogram, "bound_s")
        .agg(F.sum("count").alias("count"))
        .withColumn("until_count", F.sum("count").over(upwards))
        .withColumn("all_count", F.sum("count").over(Window.partitionBy(*histogram)))
    )
    return (
        ranked.groupBy(*key)
        .pivot("kind", list(KINDS))
        .agg(
            F.sum("count").alias("count"),
            *(_percentile(share).alias(f"{name}_s") for name, share in SHARES.items()),
        )
    )


def _percentile(share: float) -> Column:
    rank = F.expr(f"(all_count * {round(share * 1000)} + 999) div 1000")  # no binary fractions
    bound = F.min(F.when(F.col("until_count") >= rank, F.col("bound_s")))
    return F.when(bound < float("inf"), bound)


def _metric(kind: str, words: str, name: str, share: str) -> Metric:
    column, of = f"{kind}_{name}_s", f"{words}, {share} %"
    return Metric(column, of, Unit.SECONDS, Better.LESS, "beyond all bounds", f"{kind}_count")


LATENCY: Final = Question(
    "latency",
    "How long do clients wait?",
    "From histograms: a percentile is the upper bound of its bucket, so the true one is not "
    "larger. From PUBLISH to PUBACK or PUBREC, from CONNECT to CONNACK, from PUBLISH to the "
    "subscriber. A broker that recorded itself counts from decoding a PUBLISH: what it waited in a "
    "socket before, only its client can tell.",
    tuple(
        _metric(kind, words, name, share)
        for kind, words in zip(KINDS, ("PUBACK", "CONNACK", "delivery"), strict=True)
        for name, share in (("p99", "99"), ("p50", "50"), ("p999", "99.9"))
    ),
    lambda inputs: latency(inputs.latencies),
)
