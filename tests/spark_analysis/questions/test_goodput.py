import pytest
from pyspark.sql import SparkSession

from spark_analysis.grains import by_instant, by_second
from spark_analysis.questions.goodput import goodput
from tests.spark_analysis.hand import Row, answer, empty, runs, table

pytestmark = pytest.mark.spark


def step(run_id: str, t_s: float, in_time: int | None, **columns: object) -> Row:
    return {
        "run_id": run_id,
        "population": "cars",
        "t_s": t_s,
        "due_count": 10,
        "acknowledged_count": 9,
        "in_time_count": in_time,
        **columns,
    }


def test_rates_before_while_and_after_the_trigger_are_of_whole_seconds(
    spark: SparkSession,
) -> None:
    rows = [
        *(step("r", t_s, 8) for t_s in (0.5, 1.0, 1.5, 2.0)),  # 16 per second
        *(step("r", t_s, 1) for t_s in (2.5, 3.0)),  # 2 per second
        *(step("r", t_s, 5) for t_s in (3.5, 4.0)),  # 10 per second
        step("r", 4.5, 9),  # the run ends in the middle of this one
    ]
    described = runs(
        spark, [{"run_id": "r", "trigger_at_s": 2.0, "trigger_until_s": 3.0, "ended_s": 4.5}]
    )
    seconds = by_second(by_instant(table(spark, "goodput", rows)))
    found = answer(goodput(seconds, described), "run_id", "population")
    assert found["r", "all"] == {
        "due_count": 90,
        "acknowledged_count": 81,
        "in_time_count": 53,
        "in_time_ratio": 53 / 90,
        "in_time_per_s": 44 / 4,
        "before_per_s": 16.0,
        "during_per_s": 2.0,
        "after_per_s": 10.0,
    }
    assert found["r", "cars"] == found["r", "all"]


def test_steps_of_a_tenth_fall_into_the_second_that_they_end(spark: SparkSession) -> None:
    rows = [step("r", sum([0.1] * number), 1) for number in range(1, 31)]  # 0.30000000000000004
    seconds = by_second(by_instant(table(spark, "goodput", rows)))
    found = answer(seconds.where("population = 'all'"), "second")
    assert {second: row["served_count"] for second, row in found.items()} == {0: 10, 1: 10, 2: 10}


def test_without_a_deadline_all_that_was_acknowledged_counts(spark: SparkSession) -> None:
    rows = [step("live", 1.0, None, due_count=None), step("live", 2.0, None, due_count=None)]
    described = runs(spark, [{"run_id": "live"}])
    seconds = by_second(by_instant(table(spark, "goodput", rows)))
    found = answer(goodput(seconds, described), "run_id", "population")["live", "all"]
    assert (found["in_time_per_s"], found["in_time_ratio"], found["before_per_s"]) == (
        9,
        None,
        None,
    )


def test_without_publishers_and_first_connections_there_is_no_figure(spark: SparkSession) -> None:
    unknown = {"due_count": None, "acknowledged_count": 0}
    rows = [step("live", t_s, None, **unknown) for t_s in (1.0, 2.0)]
    rows += [step("run", t_s, 0, due_count=0, first_connected_count=3) for t_s in (1.0, 2.0)]
    described = runs(spark, [{"run_id": "live", "ended_s": 2.0}, {"run_id": "run", "ended_s": 2.0}])
    seconds = by_second(by_instant(table(spark, "goodput", rows)))
    found = answer(goodput(seconds, described), "run_id", "population")
    assert found["live", "all"]["in_time_per_s"] is None
    assert found["live", "all"]["in_time_count"] is None
    assert found["run", "all"]["in_time_per_s"] == 1.5


def test_a_trigger_that_never_ends_has_no_after(spark: SparkSession) -> None:
    rows = [step("r", 1.0, 8), step("r", 2.0, 4)]
    described = runs(spark, [{"run_id": "r", "trigger_at_s": 1.0}])
    seconds = by_second(by_instant(table(spark, "goodput", rows)))
    found = answer(goodput(seconds, described), "run_id", "population")["r", "all"]
    assert (found["before_per_s"], found["during_per_s"], found["after_per_s"]) == (8, 4, None)


def test_one_row_and_none(spark: SparkSession) -> None:
    rows = [step("one", 1.0, 7)]
    described = runs(spark, [{"run_id": "one"}])
    seconds = by_second(by_instant(table(spark, "goodput", rows)))
    found = answer(goodput(seconds, described), "run_id", "population")
    assert found["one", "all"]["in_time_count"] == 7
    nothing = by_second(by_instant(empty(spark, "goodput")))
    assert answer(goodput(nothing, described), "run_id", "population") == {}
