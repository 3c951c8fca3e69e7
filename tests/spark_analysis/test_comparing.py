import math

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_analysis.comparing import (
    RunValue,
    outliers,
    parameter_sets,
    summary,
    values,
    window_course,
    work_course,
)
from spark_analysis.grains import POINTS, by_instant, by_second, by_slice
from spark_analysis.questions.question import Better, Metric, Question, Unit
from spark_analysis.runs.examination import Run
from tests.spark_analysis.hand import Row, answer, runs, table


def described(run_id: str, **columns: object) -> Run:
    common = {"scenario": "s", "policy": "p", "seed": 1, "command": "c", "parameters": {}}
    return Run("", {**common, "run_id": run_id, "source": "simulation", **columns}, {}, {})


def of_set(*numbers: float | None) -> tuple[list[RunValue], pa.Table]:
    """The values of runs of one set, and the set."""
    runs = [described(str(n), seed=100 + n, command=f"replay {n}") for n in range(len(numbers))]
    found = [RunValue(str(n), "q", "all", "m_s", value) for n, value in enumerate(numbers)]
    return found, parameter_sets(runs)


def compared(*numbers: float | None) -> list[Row]:
    rows: list[Row] = summary(*of_set(*numbers)).to_pylist()
    return rows


def standing_out(*numbers: float | None) -> dict[str, Row]:
    return {row["run_id"]: row for row in outliers(*of_set(*numbers)).to_pylist()}


def test_parameters_are_one_text_whatever_their_order() -> None:
    found = parameter_sets(
        [
            described("a", parameters={"flow.w": "5", "clients": "10"}),
            described("b", parameters={"clients": "10", "flow.w": "5"}),
            described("c"),
        ]
    )
    assert found["parameters"].to_pylist() == ["clients=10, flow.w=5"] * 2 + [""]


def test_seeds_become_a_mean_with_its_interval() -> None:
    # Mean 4, standard deviation 2; t for two degrees of freedom is 4.303.
    (row,) = compared(2.0, 6.0, 4.0)
    half = 4.303 * 2 / math.sqrt(3)
    assert (row["mean"], row["median"], row["min"], row["max"]) == (4.0, 4.0, 2.0, 6.0)
    assert (row["low"], row["high"]) == pytest.approx((4 - half, 4 + half))
    assert (row["runs_count"], row["values_count"]) == (3, 3)


def test_for_many_seeds_student_comes_near_to_normal() -> None:
    (row,) = compared(*(float(number % 2) for number in range(100)))
    deviation = math.sqrt(100 * 0.25 / 99)
    assert row["high"] - row["mean"] == pytest.approx(1.984 * deviation / 10, rel=1e-3)


def test_a_missing_value_is_counted_and_in_no_mean() -> None:
    (row,) = compared(3.0, None)
    assert (row["runs_count"], row["values_count"], row["mean"]) == (2, 1, 3.0)
    assert (row["low"], row["high"]) == (None, None)
    (row,) = compared(None)
    assert (row["values_count"], row["mean"], row["median"], row["max"]) == (0, None, None, None)


def test_a_value_is_missing_only_where_that_says_something() -> None:
    metrics = (
        Metric("t_s", "until all", Unit.SECONDS, Better.LESS, "never", "clients_count"),
        Metric("x", "x", Unit.COUNT, Better.LESS),
    )
    rows = [
        {"run_id": "came", "t_s": 1.0, "clients_count": 5, "x": 1},
        {"run_id": "never", "t_s": None, "clients_count": 5, "x": None},
        {"run_id": "nobody counted", "t_s": None, "clients_count": None, "x": 3},
    ]
    question = Question("q", "?", "", metrics, lambda inputs: inputs.runs)
    found = values(pa.Table.from_pylist(rows), question)
    assert {(one.run_id, one.metric): one.value for one in found} == {
        ("came", "t_s"): 1.0,
        ("never", "t_s"): None,
        ("came", "x"): 1.0,
        ("nobody counted", "x"): 3.0,
    }


def test_a_run_far_from_the_median_stands_out_with_the_command_that_repeats_it() -> None:
    # Median 10, median distance 1: the score of 30 is 0.6745 * 20.
    found = standing_out(9.0, 10.0, 11.0, 9.0, 30.0, 10.0, 11.0)
    assert set(found) == {"4"}
    assert (found["4"]["seed"], found["4"]["command"]) == (104, "replay 4")
    assert found["4"]["score"] == pytest.approx(13.49)


def test_one_that_differs_from_equals_stands_out_and_so_does_one_without_a_value() -> None:
    equal = [5.0] * 9
    assert set(standing_out(*equal, 6.0)) == {"9"}
    assert set(standing_out(*equal, None)) == {"9"}
    assert standing_out(*equal) == {}
    assert standing_out(*equal, 5.2) == {}


def test_of_few_runs_none_stands_out() -> None:
    assert standing_out(1.0, 1.0, 1.0, 99.0) == {}


def test_no_values_no_summary() -> None:
    assert compared() == []
    assert standing_out() == {}
    assert standing_out(*[None] * 5) == {}


@pytest.mark.spark
def test_every_scenario_has_a_step_of_its_own_and_rates_are_of_whole_seconds(
    spark: SparkSession,
) -> None:
    whole = runs(
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
    of_runs = [described(name, scenario=name) for name in ("short", "long")]
    sets = spark.createDataFrame(parameter_sets(of_runs))
    seconds = by_second(by_instant(table(spark, "goodput", goodput)))
    key = ("scenario", "from_s")
    work = answer(work_course(seconds, sets, whole), *key)
    assert {place: row["in_time_per_s"] for place, row in work.items()} == {
        ("short", 0): 6.0,
        ("short", 1): 6.0,
        ("short", 2): None,
        ("long", 0): 6.0,
    }
    assert work["short", 2]["connected_count"] == 3.0
    slices = by_slice(table(spark, "samples", samples), whole)
    windows = answer(window_course(slices, sets), *key)
    assert set(windows) == {("short", 1), ("short", 2), ("long", 0)}
