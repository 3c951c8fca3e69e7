import math

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_analysis.comparing import (
    VALUE,
    outliers,
    parameter_sets,
    summary,
    values,
    window_course,
    work_course,
)
from spark_analysis.grains import POINTS, by_instant, by_second, by_slice
from spark_analysis.questions.question import Better, Metric, Question, Unit
from tests.spark_analysis.hand import Row, answer, runs, table

pytestmark = pytest.mark.spark

VALUES = "run_id string, question string, population string, metric string, value double"


def sets(spark: SparkSession, count: int, **columns: object) -> DataFrame:
    """Runs 0 to count - 1 of one set."""
    common = {"scenario": "s", "policy": "p", **columns}
    rows = [
        {"run_id": f"{n}", "seed": 100 + n, "command": f"replay {n}", **common}
        for n in range(count)
    ]
    return parameter_sets(runs(spark, rows))


def measured(spark: SparkSession, *numbers: float | None) -> DataFrame:
    rows = [(str(n), "q", "all", "m_s", value) for n, value in enumerate(numbers)]
    return spark.createDataFrame(rows, VALUES)


def test_parameters_are_one_text_whatever_their_order(spark: SparkSession) -> None:
    rows: list[Row] = [
        {"run_id": "a", "parameters": [("flow.w", "5"), ("clients", "10")]},
        {"run_id": "b", "parameters": [("clients", "10"), ("flow.w", "5")]},
        {"run_id": "c"},
    ]
    found = answer(parameter_sets(runs(spark, rows)))
    assert found["a"]["parameters"] == found["b"]["parameters"] == "clients=10, flow.w=5"
    assert found["c"]["parameters"] == ""


def test_seeds_become_a_mean_with_its_interval(spark: SparkSession) -> None:
    # Mean 4, standard deviation 2; t for two degrees of freedom is 4.303.
    found = answer(summary(measured(spark, 2.0, 6.0, 4.0), sets(spark, 3)), *VALUE)
    (row,) = found.values()
    half = 4.303 * 2 / math.sqrt(3)
    assert (row["mean"], row["median"], row["min"], row["max"]) == (4.0, 4.0, 2.0, 6.0)
    assert (row["low"], row["high"]) == pytest.approx((4 - half, 4 + half))
    assert (row["runs_count"], row["values_count"]) == (3, 3)


def test_for_many_seeds_student_comes_near_to_normal(spark: SparkSession) -> None:
    numbers = [float(number % 2) for number in range(100)]
    (row,) = answer(summary(measured(spark, *numbers), sets(spark, 100)), *VALUE).values()
    deviation = math.sqrt(100 * 0.25 / 99)
    assert row["high"] - row["mean"] == pytest.approx(1.984 * deviation / 10, rel=1e-3)


def test_a_missing_value_is_counted_and_in_no_mean(spark: SparkSession) -> None:
    (row,) = answer(summary(measured(spark, 3.0, None), sets(spark, 2)), *VALUE).values()
    assert (row["runs_count"], row["values_count"], row["mean"]) == (2, 1, 3.0)
    assert (row["low"], row["high"]) == (None, None)
    (row,) = answer(summary(measured(spark, None), sets(spark, 1)), *VALUE).values()
    assert (row["values_count"], row["mean"], row["median"], row["max"]) == (0, None, None, None)


def test_a_value_is_missing_only_where_that_says_something(spark: SparkSession) -> None:
    metrics = (
        Metric("t_s", "until all", Unit.SECONDS, Better.LESS, "never", "clients_count"),
        Metric("x", "x", Unit.COUNT, Better.LESS),
    )
    rows = [("came", 1.0, 5, 1), ("never", None, 5, None), ("nobody counted", None, None, 3)]
    table = spark.createDataFrame(rows, "run_id string, t_s double, clients_count int, x int")
    question = Question("q", "?", "", metrics, lambda _: table)
    found = answer(values(table, question), "run_id", "metric")
    assert {key: row["value"] for key, row in found.items()} == {
        ("came", "t_s"): 1.0,
        ("never", "t_s"): None,
        ("came", "x"): 1.0,
        ("nobody counted", "x"): 3.0,
    }


def test_a_run_far_from_the_median_stands_out_with_the_command_that_repeats_it(
    spark: SparkSession,
) -> None:
    # Median 10, median distance 1: the score of 30 is 0.6745 * 20.
    found = answer(
        outliers(measured(spark, 9.0, 10.0, 11.0, 9.0, 30.0, 10.0, 11.0), sets(spark, 7))
    )
    assert set(found) == {"4"}
    assert (found["4"]["seed"], found["4"]["command"]) == (104, "replay 4")
    assert found["4"]["score"] == pytest.approx(13.49)


def test_one_that_differs_from_equals_stands_out_and_so_does_one_without_a_value(
    spark: SparkSession,
) -> None:
    equal = [5.0] * 9
    assert set(answer(outliers(measured(spark, *equal, 6.0), sets(spark, 10)))) == {"9"}
    assert set(answer(outliers(measured(spark, *equal, None), sets(spark, 10)))) == {"9"}
    assert answer(outliers(measured(spark, *equal), sets(spark, 9))) == {}


def test_of_few_runs_none_stands_out(spark: SparkSession) -> None:
    assert answer(outliers(measured(spark, 1.0, 1.0, 1.0, 99.0), sets(spark, 4))) == {}


def test_no_values_no_summary(spark: SparkSession) -> None:
    nothing = spark.createDataFrame([], VALUES)
    assert answer(summary(nothing, sets(spark, 1)), *VALUE) == {}
    assert answer(outliers(nothing, sets(spark, 1)), *VALUE) == {}


def test_every_scenario_has_a_step_of_its_own_and_rates_are_of_whole_seconds(
    spark: SparkSession,
) -> None:
    described = runs(
        spark,
        [
            {"run_id": "short", "scenario": "short", "ended_s": 2.5},
            {"run_id": "long", "scenario": "long", "ended_s": 10.0 * POINTS},
        ],
    )
    ticks = [(run_id, t_s) for run_id in ("short", "long") for t_s in (1.0, 2.0, 2.5)]
    goodput = [
        {"run_id": run_id, "population": "cars", "t_s": t_s}
        | {"in_time_count": 6, "connected_count": 3}
        for run_id, t_s in ticks
    ]
    samples = [
        {"run_id": run_id, "t_s": t_s, "is_alive": True, "window": 10.0} for run_id, t_s in ticks
    ]
    sets = parameter_sets(described)
    seconds = by_second(by_instant(table(spark, "goodput", goodput)))
    key = ("scenario", "from_s")
    work = answer(work_course(seconds, sets, described), *key)
    assert {place: row["in_time_per_s"] for place, row in work.items()} == {
        ("short", 0): 6.0,
        ("short", 1): 6.0,
        ("short", 2): None,
        ("long", 0): 6.0,
    }
    assert work["short", 2]["connected_count"] == 3.0
    slices = by_slice(table(spark, "samples", samples), described)
    windows = answer(window_course(slices, sets), *key)
    assert set(windows) == {("short", 1), ("short", 2), ("long", 0)}
