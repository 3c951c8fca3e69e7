"""Comparing: parameter sets beside each other, from one value per run, and outliers among the runs.

A parameter set is a scenario, a policy and the differences from the scenario's file; its runs
differ in their seeds. For live runs it is the differences from the defaults, and the load
(`loads`). Values are sorted before they are added, so that the same runs give the same bits.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_analysis.grains import ALL, BILLION, is_whole, slice_start, steps
from spark_analysis.intervals import BEYOND, NORMAL, STUDENT
from spark_analysis.questions.question import Question

SET: Final = ("scenario", "policy", "parameters")
"""The columns that tell parameter sets apart."""
VALUE: Final = ("question", *SET, "population", "metric")
"""The columns that tell rows of the summary apart."""

OUTLIER_SCORE: Final = 3.5
"""Iglewicz and Hoaglin's limit for the modified z-score."""
OUTLIER_RUNS: Final = 5
"""Fewer runs have no outliers."""
OUTLIER_SHARE: Final = 0.05
"""Share of the median: a run that differs by less does not stand out, however alike the others
are."""
COMMON_SHARE: Final = 0.8
"""Share of runs with a value, at which one without stands out."""


def parameter_sets(runs: DataFrame, loads: Mapping[str, str] | None = None) -> DataFrame:
    """The set of each run; parameters as one text, sorted: `a.b=1, c=x`.

    `loads`: the load of each run, in words; it comes last.
    """
    pairs = F.transform(
        F.array_sort(F.map_entries("parameters")),
        lambda pair: F.concat(pair["key"], F.lit("="), F.coalesce(pair["value"], F.lit(""))),
    )
    said = F.array_join(pairs, ", ")
    if loads:
        rows = runs.sparkSession.createDataFrame(
            sorted(loads.items()), "run_id string, load string"
        )
        runs = runs.join(F.broadcast(rows), "run_id", "left")
        said = F.array_join(F.array(F.nullif(said, F.lit("")), F.col("load")), ", ")
    parameters = said.alias("parameters")
    return runs.select("run_id", "scenario", "policy", parameters, "seed", "command")


def values(answer: DataFrame, question: Question) -> DataFrame:
    """Return a question's answer with one row per run, population and metric.

    If a missing value has no meaning, there is no row. Null has the meaning of the metric's
    `never`.
    """
    if "population" not in answer.columns:
        answer = answer.withColumn("population", F.lit(ALL))
    metrics = [
        F.struct(
            F.lit(metric.column).alias("metric"),
            F.col(metric.column).cast("double").alias("value"),
            F.col(metric.needs or metric.column).isNotNull().alias("counts"),
        )
        for metric in question.metrics
    ]
    of_run = answer.select("run_id", "population", F.explode(F.array(*metrics)).alias("one"))
    name = F.lit(question.name).alias("question")
    counted = of_run.where("one.counts")
    return counted.select("run_id", name, "population", "one.metric", "one.value")


def summary(values: DataFrame, sets: DataFrame) -> DataFrame:
    """One row per set, population and metric: mean and its 95 % interval over seeds, and range.

    `values_count` of `runs_count` runs have a value, and only they are in the mean; with one of
    them there is no interval.
    """
    in_order = F.array_sort(F.collect_list("value"))  # which leaves nulls out
    spread = F.when(
        F.col("values_count") > 1,
        _student() * F.col("deviation") / F.sqrt("values_count"),
    )
    return (
        values.join(sets, "run_id")
        .groupBy(*VALUE)
        .agg(
            F.count("*").alias("runs_count"),
            F.count("value").alias("values_count"),
            in_order.alias("in_order"),
        )
        .withColumn("mean", _mean("in_order"))
        .withColumn("deviation", _deviation())
        .select(
            *VALUE,
            "runs_count",
            "values_count",
            "mean",
            (F.col("mean") - spread).alias("low"),
            (F.col("mean") + spread).alias("high"),
            F.try_element_at("in_order", F.lit(1)).alias("min"),
            _median("in_order").alias("median"),
            F.try_element_at("in_order", F.lit(-1)).alias("max"),
        )
    )


def outliers(values: DataFrame, sets: DataFrame) -> DataFrame:
    """Return runs that differ from the others of their set, with the command that runs them again.

    The score is the modified z-score: distance from the median by the median distance, or by the
    mean distance if that is zero. A run without a value is also an outlier if most runs have one.
    """
    of_all = values.where(F.col("population") == ALL).join(sets, "run_id")
    key = [*VALUE]
    medians = of_all.groupBy(*key).agg(
        F.count("*").alias("runs_count"),
        F.count("value").alias("values_count"),
        _median_of("value").alias("median"),
    )
    far = of_all.join(medians.where(F.col("runs_count") >= OUTLIER_RUNS), key).withColumn(
        "distance", F.abs(F.col("value") - F.col("median"))
    )
    usual = far.groupBy(*key).agg(
        _median_of("distance").alias("median_distance"),
        F.array_sort(F.collect_list("distance")).alias("distances"),
    )
    by_mean = F.try_divide("distance", 1.2533 * _mean("distances"))
    by_median = F.try_divide(0.6745 * F.col("distance"), "median_distance")
    is_missing = F.col("value").isNull() & (
        F.col("values_count") >= COMMON_SHARE * F.col("runs_count")
    )
    scored = far.join(usual, key).withColumn(
        "score", F.when(F.col("median_distance") > 0, by_median).otherwise(by_mean)
    )
    is_far = F.col("distance") > OUTLIER_SHARE * F.abs("median")
    found = scored.where(((F.col("score") > OUTLIER_SCORE) & is_far) | is_missing)
    return found.select(*key, "run_id", "seed", "value", "median", "score", "command")


def _mean(values: str) -> Column:
    total = F.aggregate(values, F.lit(0.0), lambda sum_, value: sum_ + value)
    return F.try_divide(total, F.size(values))


def _deviation() -> Column:
    squares = F.aggregate(
        "in_order",
        F.struct(F.lit(0.0).alias("sum"), F.col("mean").alias("mean")),
        lambda so_far, value: F.struct(
            (so_far["sum"] + (value - so_far["mean"]) * (value - so_far["mean"])).alias("sum"),
            so_far["mean"].alias("mean"),
        ),
        lambda so_far: so_far["sum"],
    )
    return F.sqrt(F.try_divide(squares, F.size("in_order") - 1))


def _median_of(column: str) -> Column:
    return F.percentile(column, 0.5)


def _median(values: str) -> Column:
    size = F.size(values)
    lower = F.try_element_at(values, F.floor((size + 1) / 2).cast("int"))
    upper = F.try_element_at(values, F.floor((size + 2) / 2).cast("int"))
    return F.when(size > 0, (lower + upper) / 2)


def _student() -> Column:
    freedom = F.col("values_count") - 1
    known = F.array(*(F.lit(value) for value in STUDENT))
    return F.when(freedom <= len(STUDENT), F.try_element_at(known, freedom.cast("int"))).otherwise(
        NORMAL + BEYOND / freedom
    )


def work_course(seconds: DataFrame, sets: DataFrame, runs: DataFrame) -> DataFrame:
    """Return goodput and connected clients as means over seeds, from `by_second`.

    `from_s` is the begin of each step. Rates are of whole seconds, as in the answers, or null if a
    step has none.
    """
    whole = F.count(F.when(is_whole(), 1))

    def rate(column: str) -> Column:
        return F.try_divide(F.sum(F.when(is_whole(), F.col(column))), whole)

    return (
        _of_sets(seconds.where(F.col("population") == ALL), sets.join(steps(runs), "run_id"))
        .groupBy(*SET, slice_start(F.col("second")).alias("from_s"))
        .agg(
            rate("served_count").alias("in_time_per_s"),
            rate("due_count").alias("due_per_s"),
            (F.sum("connected_count") / F.count("*")).alias("connected_count"),
            rate("attempts_count").alias("attempts_per_s"),
        )
    )


def window_course(slices: DataFrame, sets: DataFrame) -> DataFrame:
    """The window as geometric mean over nodes alive and seeds, from `by_slice`; `from_s` is the
    begin of each step."""
    mean = F.exp(F.sum("ln_window") / BILLION / F.sum("windows_count"))
    return (
        _of_sets(slices.where(F.col("windows_count") > 0), sets)
        .groupBy(*SET, "from_s")
        .agg(mean.alias("window"), F.max("pressure_max_ratio").alias("pressure_max_ratio"))
    )


def _of_sets(rows: DataFrame, sets: DataFrame) -> DataFrame:
    return rows.join(F.broadcast(sets), "run_id")
