"""Is the window at rest when the load is?"""

import math
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_analysis.grains import EXACT
from spark_analysis.questions.question import Better, Metric, Question, Unit

FINAL_S: Final = 10.0
"""The window's final value is its geometric mean over as many seconds at the end."""
SETTLED_RATIO: Final = 1.25
"""Within this factor of its final value a window has settled."""


def stability(samples: DataFrame, runs: DataFrame) -> DataFrame:
    """One row per run: of its nodes, the one that is least at rest.

    A reversal is a change of the sign of the change of ln W; samples in which W stays do not count.
    Settling counts from the end of the trigger (or its beginning, or the start of the run) until
    the last sample outside 1.25 times the final value; null if there is one in the last 10 s.
    """
    of_node = Window.partitionBy("run_id", "node")
    in_time = of_node.orderBy("t_s")
    # Only changes have a direction, and only the direction before is asked for.
    until_now = in_time.rowsBetween(Window.unboundedPreceding, -1)
    change = F.col("ln_window") - F.lag("ln_window").over(in_time)
    direction = F.when(F.abs(change) > 1e-9, F.signum(change))
    windows = (
        samples.where(F.col("is_alive") & (F.col("window") > 0))
        .select("run_id", "node", "t_s", F.ln("window").alias("ln_window"))
        .withColumn("end_s", F.max("t_s").over(of_node))
        .withColumn("direction", direction)
        .withColumn("before", F.last("direction", ignorenulls=True).over(until_now))
    )
    is_final = F.col("t_s") > F.col("end_s") - FINAL_S
    final = F.avg(F.when(is_final, F.col("ln_window").cast(EXACT))).over(of_node).cast("double")
    is_outside = F.abs(F.col("ln_window") - F.col("ln_final")) > math.log(SETTLED_RATIO)
    per_node = (
        windows.withColumn("ln_final", final)
        .groupBy("run_id", "node")
        .agg(
            F.count(F.when(F.col("direction") != F.col("before"), 1)).alias("reversals_count"),
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


QUESTION: Final = Question(
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
