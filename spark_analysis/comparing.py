"""Comparing: parameter sets beside each other, from one value per run, and outliers among the runs.

A parameter set is a scenario, a policy and the differences from the scenario's file; its runs
differ in their seeds. For live runs it is the differences from the defaults, and the load
(`loads`). Values have one row per run at most, so they are compared on the driver; courses over
time are made on Spark.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_analysis.grains import ALL, BILLION, is_whole, slice_start, steps
from spark_analysis.intervals import interval
from spark_analysis.questions.question import Question
from spark_analysis.runs.examination import Run

Row = dict[str, Any]
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

_TEXTS: Final = {*VALUE, "run_id", "command"}
_COUNTS: Final = {"seed", "runs_count", "values_count"}


class RunValue(NamedTuple):
    """A metric of one run. A value of None has the meaning of the metric's `never`."""

    run_id: str
    question: str
    population: str
    metric: str
    value: float | None


def parameter_sets(runs: Sequence[Run], loads: Mapping[str, str] | None = None) -> pa.Table:
    """The set of each run; parameters as one text, sorted: `a.b=1, c=x`.

    `loads`: the load of each run, in words; it comes last.
    """
    rows = []
    for run in sorted(runs, key=lambda run: run.run_id):
        pairs = [f"{key}={value or ''}" for key, value in sorted(run.run["parameters"].items())]
        pairs += filter(None, [(loads or {}).get(run.run_id)])
        rows.append({**run.run, "parameters": ", ".join(pairs)})
    return _table(rows, "run_id", *SET, "seed", "command")


def values(answer: pa.Table, question: Question) -> Iterator[RunValue]:
    """Return a question's answer as values of each run, population and metric.

    If a missing value has no meaning, there is none.
    """
    for row in answer.to_pylist():
        for metric in question.metrics:
            value = row[metric.column]
            if row[metric.needs or metric.column] is not None:
                number = None if value is None else float(value)
                population = row.get("population", ALL)
                yield RunValue(row["run_id"], question.name, population, metric.column, number)


def by_set(found: Iterable[RunValue], sets: pa.Table) -> list[tuple[Row, list[RunValue]]]:
    """The values of each row of the summary, in order."""
    of_run = {row["run_id"]: row for row in sets.to_pylist()}
    groups: dict[tuple[str, ...], list[RunValue]] = {}
    for one in found:
        told = {**of_run[one.run_id], **one._asdict()}
        groups.setdefault(tuple(told[name] for name in VALUE), []).append(one)
    return [(dict(zip(VALUE, key, strict=True)), groups[key]) for key in sorted(groups)]


def summary(found: Iterable[RunValue], sets: pa.Table) -> pa.Table:
    """One row per set, population and metric: mean and its 95 % interval over seeds, and range.

    `values_count` of `runs_count` runs have a value, and only they are in the mean; with one of
    them there is no interval.
    """
    rows = []
    for key, of_runs in by_set(found, sets):
        known = [one.value for one in of_runs if one.value is not None]
        row = {**key, "runs_count": len(of_runs), "values_count": len(known)}
        mean = interval(known)
        if mean is not None:
            row |= {"mean": mean.mean, "min": min(known), "max": max(known)}
            row["median"] = median(known)
        if mean is not None and mean.count > 1:
            row |= {"low": mean.low, "high": mean.high}
        rows.append(row)
    numbers = ("runs_count", "values_count", "mean", "low", "high", "min", "median", "max")
    return _table(rows, *VALUE, *numbers)


def outliers(found: Iterable[RunValue], sets: pa.Table) -> pa.Table:
    """Return runs that differ from the others of their set, with the command that runs them again.

    The score is the modified z-score: distance from the median by the median distance, or by the
    mean distance if that is zero. A run without a value is also an outlier if most runs have one.
    """
    of_run = {row["run_id"]: row for row in sets.to_pylist()}
    rows = []
    for key, of_runs in by_set(found, sets):
        known = [one.value for one in of_runs if one.value is not None]
        if key["population"] != ALL or len(of_runs) < OUTLIER_RUNS or not known:
            continue
        middle = median(known)
        distances = [abs(value - middle) for value in known]
        usual = median(distances) / 0.6745 or 1.2533 * fmean(distances)
        for one in of_runs:
            score = None
            stands_out = len(known) >= COMMON_SHARE * len(of_runs)
            if one.value is not None:
                far = abs(one.value - middle)
                score = far / usual if usual else 0.0
                stands_out = score > OUTLIER_SCORE and far > OUTLIER_SHARE * abs(middle)
            if stands_out:
                numbers = {"value": one.value, "median": middle, "score": score}
                rows.append({**of_run[one.run_id], **key, **numbers})
    return _table(rows, *VALUE, "run_id", "seed", "value", "median", "score", "command")


def _table(rows: Sequence[Row], *columns: str) -> pa.Table:
    def type_of(name: str) -> pa.DataType:
        return pa.string() if name in _TEXTS else pa.int64() if name in _COUNTS else pa.float64()

    schema = pa.schema([(name, type_of(name)) for name in columns])
    return pa.Table.from_pylist(rows, schema=schema)


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
        .agg(mean.alias("window"))
    )


def _of_sets(rows: DataFrame, sets: DataFrame) -> DataFrame:
    return rows.join(F.broadcast(sets), "run_id")
