"""How long until the work flows again after a disturbance?"""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_analysis.grains import ALL, is_whole
from spark_analysis.questions.question import Better, Metric, Question, Unit

MAP_KEY: Final = ("scenario", "policy", "load_ratio", "trigger_s")
RECOVERED_RATIO: Final = 0.95
"""Share of the goodput before the trigger at which it counts as recovered."""
SMOOTH_S: Final = 5
"""Seconds over which goodput is averaged, from the second in question on."""
STAY_S: Final = 10
"""A recovery less than this before the end of the run does not count."""


def recovery(seconds: DataFrame, runs: DataFrame) -> DataFrame:
    """One row per run that has a trigger and goodput before it, from `grains.by_second`.

    `recovery_s` counts from the end of the trigger (its beginning, if it never ends) until the
    second from which on the mean of five seconds never again is below 95 % of the mean before the
    trigger; null if that does not come at least ten seconds before the end of the run.
    """
    work = _work(seconds, runs)
    ahead = (
        Window.partitionBy("run_id").orderBy("second").rangeBetween(Window.currentRow, SMOOTH_S - 1)
    )
    wanted = RECOVERED_RATIO * F.col("before_per_s")
    # A mean over fewer seconds than wanted, at the end, says little.
    is_low = (F.col("mean_per_s") < wanted) & (F.col("second") + SMOOTH_S <= F.col("until_s"))
    back_s = F.greatest(F.coalesce(F.col("last_low_s") + 1, F.col("from_s")), F.col("from_s"))
    has_stayed = back_s + STAY_S <= F.col("until_s")
    return (
        work.withColumn("mean_per_s", F.avg("served_count").over(ahead))
        .withColumn("until_s", F.max("second").over(Window.partitionBy("run_id")) + 1)
        .where(F.col("second") >= F.col("from_s"))
        .groupBy("run_id")
        .agg(
            F.max("before_per_s").alias("before_per_s"),
            F.min("mean_per_s").alias("lowest_per_s"),
            F.max(F.when(is_low, F.col("second"))).alias("last_low_s"),
            F.max("from_s").alias("from_s"),
            F.max("until_s").alias("until_s"),
            F.max("trigger_s").alias("trigger_s"),
        )
        .select(
            "run_id",
            "before_per_s",
            "lowest_per_s",
            F.try_divide("lowest_per_s", "before_per_s").alias("lowest_ratio"),
            "trigger_s",
            has_stayed.alias("is_recovered"),
            has_stayed.cast("double").alias("recovered_ratio"),
            F.when(has_stayed, back_s - F.col("from_s")).alias("recovery_s"),
        )
    )


def _work(seconds: DataFrame, runs: DataFrame) -> DataFrame:
    """Seconds of all populations, with the goodput before the trigger and the time to look from."""
    times = runs.where(F.col("trigger_at_s") > 0).select(
        "run_id",
        "trigger_at_s",
        F.coalesce("trigger_until_s", "trigger_at_s").alias("from_s"),
        (F.col("trigger_until_s") - F.col("trigger_at_s")).alias("trigger_s"),
        "ended_s",
    )
    of_all = seconds.where(F.col("population") == ALL).select("run_id", "second", "served_count")
    is_before = F.col("second") + 1 <= F.col("trigger_at_s")
    before = F.avg(F.when(is_before, F.col("served_count"))).over(Window.partitionBy("run_id"))
    work = of_all.join(times, "run_id").where(is_whole()).withColumn("before_per_s", before)
    return work.where(F.col("before_per_s") > 0)


RECOVERY: Final = Question(
    "recovery",
    "How long until the work flows again after a disturbance?",
    "From the end of the disturbance until goodput, as a mean of five seconds, is back at 95 % of "
    "what it was before, and stays there until the end of the run.",
    (
        Metric(
            "recovery_s", "until 95 % is back", Unit.SECONDS, Better.LESS, "never", "before_per_s"
        ),
        Metric("recovered_ratio", "of the runs recovered", Unit.SHARE, Better.MORE),
        Metric("lowest_ratio", "lowest goodput after it", Unit.SHARE, Better.MORE),
    ),
    lambda inputs: recovery(inputs.seconds, inputs.runs),
)


def region(recovered: DataFrame, runs: DataFrame) -> DataFrame:
    """The map load x length of the trigger, from `recovery`: how many runs came back.

    One row per scenario, policy, load and length; runs without a load or an end of the trigger have
    no place on the map.
    """
    places = runs.select("run_id", "scenario", "policy", "load_ratio")
    on_map = recovered.join(places, "run_id").where(
        F.col("load_ratio").isNotNull() & F.col("trigger_s").isNotNull()
    )
    return (
        on_map.withColumn("load_ratio", F.round("load_ratio", 6))
        .withColumn("trigger_s", F.round("trigger_s", 6))
        .groupBy(*MAP_KEY)
        .agg(
            F.count("*").alias("runs_count"),
            F.count(F.when(F.col("is_recovered"), 1)).alias("recovered_count"),
            F.avg(F.col("is_recovered").cast("double")).alias("recovered_ratio"),
            F.max("recovery_s").alias("recovery_max_s"),
        )
    )
