"""Is the window at rest when the load is?"""

import math
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_analysis.questions.question import Better, Metric, Question, Unit
from spark_analysis.segments import FINAL_S, STILL, segments

SETTLED_RATIO: Final = 1.25
"""Within this factor of its final value a window has settled."""


def stability(samples: DataFrame, runs: DataFrame) -> DataFrame:
    """One row per run: of its nodes, the one that is least at rest.

    A reversal is a change of the sign of the change of ln W; samples in which W stays do not count.
    Settling counts from the end of the trigger (or its beginning, or the start of the run) until
    the last sample outside 1.25 times the final value; null if there is one in the last 10 s.
    """
    of_node = Window.partitionBy("run_id", "node")
    kept = (
        _with_reversals(segments(samples))
        .select("run_id", "node", "reversals", F.posexplode(F.arrays_zip("t_s", "ln_window")))
        .select(
            "run_id",
            "node",
            "col.*",
            F.when(F.col("pos") == 0, F.col("reversals")).alias("reversals"),
        )
        .withColumn("end_s", F.max("t_s").over(of_node))
    )
    is_final = F.col("t_s") > F.col("end_s") - FINAL_S
    final = F.avg(F.when(is_final, F.col("ln_window").cast("decimal(28,9)"))).over(of_node)
    is_outside = F.abs(F.col("ln_window") - F.col("ln_final")) > math.log(SETTLED_RATIO)
    per_node = (
        kept.withColumn("ln_final", final.cast("double"))
        .groupBy("run_id", "node")
        .agg(
            F.sum("reversals").alias("reversals_count"),
            F.max(F.when(is_outside, F.col("t_s"))).alias("outside_s"),
            F.max("end_s").alias("end_s"),
            (F.max("t_s") - F.min("t_s")).alias("seen_s"),
            F.exp(F.max("ln_window") - F.min("ln_window")).alias("span_ratio"),
            F.exp(
                F.max(F.when(is_final, F.col("ln_window")))
                - F.min(F.when(is_final, F.col("ln_window")))
            ).alias("final_span_ratio"),
        )
    )
    return _per_run(per_node, runs)


def _with_reversals(found: DataFrame) -> DataFrame:
    """The segments with the reversals in each, at its begin, and between it and the one before."""
    in_time = Window.partitionBy("run_id", "node").orderBy("from_s")
    until_now = in_time.rowsBetween(Window.unboundedPreceding, -1)
    change = F.col("first") - F.lag("last").over(in_time)
    before = F.last(F.coalesce("last_direction", "between"), ignorenulls=True).over(until_now)
    is_reversed = F.col("between") != F.col("before")
    is_first_reversed = F.col("first_direction") != F.coalesce("between", "before")
    turns = [F.coalesce(each.cast("int"), F.lit(0)) for each in (is_reversed, is_first_reversed)]
    return (
        found.withColumn("between", F.when(F.abs(change) > STILL, F.signum(change)))
        .withColumn("before", before)
        .withColumn("reversals", F.col("turns_count") + turns[0] + turns[1])
    )


def _per_run(per_node: DataFrame, runs: DataFrame) -> DataFrame:
    since = F.coalesce("trigger_until_s", "trigger_at_s", F.lit(0.0))
    settled = F.greatest(F.coalesce(F.col("outside_s") - F.col("since_s"), F.lit(0.0)), F.lit(0.0))
    is_settled = F.coalesce(F.col("outside_s") <= F.col("end_s") - FINAL_S, F.lit(True))
    per_minute = F.try_divide(60.0 * F.col("reversals_count"), "seen_s")
    return (
        per_node.join(runs.select("run_id", since.alias("since_s")), "run_id")
        .groupBy("run_id")
        .agg(
            F.max(per_minute).alias("reversals_per_min"),
            F.max("span_ratio").alias("span_ratio"),
            F.max("final_span_ratio").alias("final_span_ratio"),
            F.when(F.bool_and(is_settled), F.max(settled)).alias("settling_s"),
        )
    )


STABILITY: Final = Question(
    "stability",
    "Is the window at rest when the load is?",
    "Changes of direction of ln W per minute; how long after the trigger W is outside 1.25 times "
    "its final value; largest by smallest W in the last ten seconds. Each run is shown by its most "
    "restless node.",
    (
        Metric("reversals_per_min", "reversals", Unit.PER_MINUTE, Better.LESS),
        Metric("settling_s", "settled after", Unit.SECONDS, Better.LESS, "never", "span_ratio"),
        Metric("final_span_ratio", "largest by smallest W at the end", Unit.RATIO, Better.LESS),
    ),
    lambda inputs: stability(inputs.samples, inputs.runs),
)
