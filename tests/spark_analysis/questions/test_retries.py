import pytest
from pyspark.sql import SparkSession

from spark_analysis.grains import by_instant, by_second
from spark_analysis.questions.clients import retries
from tests.spark_analysis.hand import Row, answer, empty, table

pytestmark = pytest.mark.spark


def instant(run_id: str, t_s: float, **columns: object) -> Row:
    return {"run_id": run_id, "population": "cars", "t_s": t_s, **columns}


def test_attempts_per_client_and_failures_per_client_that_got_in(spark: SparkSession) -> None:
    known = {"clients_count": 10}
    rows = [
        instant(
            "r",
            1.0,
            attempts_count=10,
            declined_count=8,
            wasted_count=1,
            first_connected_count=1,
            **known,
        ),
        instant(
            "r",
            2.0,
            attempts_count=15,
            declined_count=4,
            wasted_count=4,
            first_connected_count=4,
            **known,
        ),
    ]
    found = answer(
        retries(by_second(by_instant(table(spark, "goodput", rows)))), "run_id", "population"
    )
    assert found["r", "all"]["attempts_per_client"] == 2.5
    assert found["r", "all"]["declined_per_connected"] == 3.0
    assert found["r", "all"]["wasted_ratio"] == 0.2
    assert found["r", "cars"] == found["r", "all"]


def test_of_nothing_and_of_what_nobody_counted_there_is_no_ratio(spark: SparkSession) -> None:
    rows = [
        instant("live", 1.0, attempts_count=3),
        instant("nobody", 1.0, clients_count=0, first_connected_count=0, declined_count=2),
    ]
    found_rows = table(spark, "goodput", rows)
    found = answer(retries(by_second(by_instant(found_rows))), "run_id", "population")
    live = found["live", "all"]
    assert (live["attempts_count"], live["attempts_per_client"]) == (3, None)
    assert live["wasted_ratio"] is None
    nobody = found["nobody", "all"]
    assert (nobody["attempts_per_client"], nobody["declined_per_connected"]) == (None, None)


def test_no_rows_no_answer(spark: SparkSession) -> None:
    assert answer(retries(by_second(by_instant(empty(spark, "goodput"))))) == {}
