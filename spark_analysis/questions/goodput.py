"""How much of the work was done in time?"""

from dataclasses import replace
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_analysis.grains import is_whole
from spark_analysis.questions.question import Better, Metric, Question, Unit


def goodput(seconds: DataFrame, runs: DataFrame) -> DataFrame:
    """Return one row per run and population, from `grains.by_second`.

    Rates are of whole seconds: before, during and after the trigger. They are null for a time that
    the run does not have, so `before_per_s` is null if the run begins with the trigger.
    """
    times = runs.select("run_id", "trigger_at_s", "trigger_until_s", "ended_s")
    is_before = F.col("second") + 1 <= F.col("trigger_at_s")
    is_after = F.col("second") >= F.col("trigger_until_s")
    return (
        seconds.join(times, "run_id")
        .groupBy("run_id", "population")
        .agg(
            F.sum("due_count").alias("due_count"),
            F.sum("acknowledged_count").alias("acknowledged_count"),
            F.sum("served_count").alias("in_time_count"),
            F.try_divide(F.sum("served_count"), F.sum("due_count")).alias("in_time_ratio"),
            _rate(F.lit(True)).alias("in_time_per_s"),
            _rate(is_before).alias("before_per_s"),
            _rate(~is_before & ~F.coalesce(is_after, F.lit(False))).alias("during_per_s"),
            _rate(is_after).alias("after_per_s"),
        )
    )


def _rate(when: Column) -> Column:
    return F.avg(F.when(when & is_whole(), F.col("served_count")))


GOODPUT: Final = Question(
    "goodput",
    "How much of the work was done in time?",
    "PUBLISHes acknowledged within their deadline. Later ones are work, but no goodput. "
    "A recorded broker does not know deadlines, so all acknowledged ones count. If no client "
    "publishes, first connections count.",
    (
        Metric("in_time_per_s", "in time", Unit.PER_SECOND, Better.MORE),
        Metric("in_time_ratio", "of what clients wanted to send", Unit.SHARE, Better.MORE),
        Metric("before_per_s", "before the trigger", Unit.PER_SECOND, Better.MORE),
        Metric("during_per_s", "while it lasts", Unit.PER_SECOND, Better.MORE),
        Metric("after_per_s", "after it", Unit.PER_SECOND, Better.MORE),
    ),
    lambda inputs: goodput(inputs.seconds, inputs.runs),
)

FIRST_CONNECTIONS: Final = replace(
    GOODPUT,
    metrics=(
        replace(GOODPUT.metrics[0], words="connected for the first time"),
        *GOODPUT.metrics[1:],
    ),
)
"""Goodput in a scenario without publishers, in which first connections are the answer."""
