import pytest
from pyspark.sql import SparkSession

from spark_analysis.grains import by_instant
from spark_analysis.questions.clients import time_to_connect
from tests.spark_analysis.hand import Row, answer, empty, table

pytestmark = pytest.mark.spark


def instant(run_id: str, t_s: float, connected: int | None, **columns: object) -> Row:
    return {
        "run_id": run_id,
        "population": "cars",
        "t_s": t_s,
        "clients_count": 200,
        "first_connected_count": connected,
        **columns,
    }


def test_the_first_instant_at_which_the_share_is_reached_of_each_population_and_of_all(
    spark: SparkSession,
) -> None:
    rows = [
        *(instant("r", t_s, count) for t_s, count in ((1.0, 99), (2.0, 100), (3.0, 197))),
        *(instant("r", t_s, count) for t_s, count in ((4.0, 198), (5.0, 200), (6.0, 200))),
        instant("r", 1.0, 0, population="trucks", clients_count=10),
        *(instant("r", 1.0 + n, 10, population="trucks", clients_count=10) for n in range(1, 6)),
    ]
    found = answer(
        time_to_connect(by_instant(table(spark, "goodput", rows))), "run_id", "population"
    )
    cars = found["r", "cars"]
    assert (cars["t50_s"], cars["t99_s"], cars["t100_s"]) == (2.0, 4.0, 5.0)
    assert found["r", "trucks"]["t50_s"] == found["r", "trucks"]["t100_s"] == 2.0
    everybody = found["r", "all"]  # 105 of 210 are 110 at 2 s; 99 % are 207.9, so 208 at 4 s
    assert (everybody["clients_count"], everybody["connected_count"]) == (210, 210)
    assert (everybody["t50_s"], everybody["t99_s"], everybody["t100_s"]) == (2.0, 4.0, 5.0)


def test_connected_time_is_that_of_connected_clients_at_all_instants(spark: SparkSession) -> None:
    rows = [
        instant("r", t_s, first, connected_count=now)
        for t_s, first, now in ((1.0, 0, 0), (2.0, 200, 200), (3.0, 200, 40), (4.0, 200, 160))
    ]
    rows.append(instant("live", 1.0, None, connected_count=7, clients_count=None))
    found = answer(
        time_to_connect(by_instant(table(spark, "goodput", rows))), "run_id", "population"
    )
    assert found["r", "cars"]["connected_time_ratio"] == 0.5
    assert found["r", "all"]["connected_time_ratio"] == 0.5
    assert found["live", "all"]["connected_time_ratio"] is None


def test_what_did_not_come_is_null_and_not_the_end_of_the_run(spark: SparkSession) -> None:
    rows = [instant("r", 1.0, 150), instant("r", 9.0, 190)]
    found = answer(
        time_to_connect(by_instant(table(spark, "goodput", rows))), "run_id", "population"
    )["r", "all"]
    assert (found["t50_s"], found["t99_s"], found["t100_s"]) == (1.0, None, None)
    assert found["connected_ratio"] == 0.95


def test_one_row_unknown_counts_and_two_rows(spark: SparkSession) -> None:
    rows = [
        instant("one", 0.1, 200),
        instant("unknown", 0.1, None, clients_count=None),
        instant("none", 0.1, 0, clients_count=0),
        instant("two", 0.1, 99),
        instant("two", 0.2, 100),
    ]
    found_rows = table(spark, "goodput", rows)
    found = answer(time_to_connect(by_instant(found_rows)), "run_id", "population")
    assert found["one", "all"]["t100_s"] == 0.1
    assert found["unknown", "all"]["t50_s"] is None
    assert found["none", "all"]["t50_s"] is None
    assert found["two", "all"]["t50_s"] == 0.2


def test_no_rows_no_answer(spark: SparkSession) -> None:
    assert answer(time_to_connect(by_instant(empty(spark, "goodput")))) == {}
