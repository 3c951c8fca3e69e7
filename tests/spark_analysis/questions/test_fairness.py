import pytest
from pyspark.sql import SparkSession

from spark_analysis.questions.clients import fairness
from tests.spark_analysis.hand import Row, answer, empty, table

pytestmark = pytest.mark.spark


def client(run_id: str, number: int, cost: float, in_time: int = 0, population: str = "a") -> Row:
    return {
        "run_id": run_id,
        "population": population,
        "client": number,
        "cost_units": cost,
        "in_time_count": in_time,
    }


def test_jain_is_one_for_equals_and_one_nth_for_him_who_has_everything(
    spark: SparkSession,
) -> None:
    rows = [
        *(client("equal", number, 2.5, 4) for number in range(4)),
        client("one", 0, 9.0, 5),
        *(client("one", number, 0.0) for number in range(1, 4)),
        client("mixed", 0, 1.0, 1),
        client("mixed", 1, 3.0, 1, population="b"),
    ]
    found = answer(fairness(table(spark, "clients", rows)), "run_id", "population")
    assert found["equal", "all"]["jain_cost_index"] == 1.0
    assert found["one", "a"]["jain_cost_index"] == 0.25
    assert found["one", "a"]["without_count"] == 3
    assert found["mixed", "b"]["jain_cost_index"] == 1.0
    assert found["mixed", "all"]["jain_cost_index"] == 16 / (2 * 10)
    assert found["mixed", "all"]["jain_in_time_index"] == 1.0


def test_without_work_there_is_no_index(spark: SparkSession) -> None:
    rows = [client("idle", 0, 0.0), client("idle", 1, 0.0)]
    found = answer(fairness(table(spark, "clients", rows)), "run_id", "population")
    assert found["idle", "all"]["jain_cost_index"] is None
    assert found["idle", "all"]["clients_count"] == 2


def test_one_client_two_and_none(spark: SparkSession) -> None:
    rows = [client("one", 0, 7.0), client("two", 0, 1.0), client("two", 1, 3.0)]
    found_rows = table(spark, "clients", rows)
    found = answer(fairness(found_rows), "run_id", "population")
    assert found["one", "all"]["jain_cost_index"] == 1.0
    assert found["two", "all"]["jain_cost_index"] == 0.8
    assert answer(fairness(empty(spark, "clients")), "run_id", "population") == {}
