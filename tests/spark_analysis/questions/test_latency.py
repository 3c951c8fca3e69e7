import pytest
from pyspark.sql import SparkSession

from spark_analysis.questions.latency import latency
from tests.spark_analysis.hand import Row, answer, empty, table

pytestmark = pytest.mark.spark
BEYOND = float("inf")


def bucket(run_id: str, bound_s: float, count: int, **columns: object) -> Row:
    return {
        "run_id": run_id,
        "population": "cars",
        "kind": "connect",
        "t_s": 1.0,
        "bound_s": bound_s,
        "count": count,
        **columns,
    }


def test_a_percentile_is_the_bound_of_the_bucket_that_holds_its_rank(spark: SparkSession) -> None:
    rows = [
        # 100 observations: ranks 50, 90, 99, 100 (of 99.9)
        bucket("r", 0.1, 49),
        bucket("r", 0.2, 41, t_s=2.0),
        bucket("r", 0.4, 4),
        bucket("r", 0.4, 5, t_s=2.0),
        bucket("r", 0.8, 1),
        # 1,000: 990 are 99 %, exactly
        bucket("exact", 0.1, 990),
        bucket("exact", 0.2, 10),
    ]
    found = answer(latency(table(spark, "latencies", rows)), "run_id", "population")
    cars = found["r", "cars"]
    assert cars["connect_count"] == 100
    percentiles = [cars[f"connect_{name}_s"] for name in ("p50", "p90", "p99", "p999")]
    assert percentiles == [0.2, 0.2, 0.4, 0.8]
    assert cars["acknowledgement_p99_s"] is None
    assert found["exact", "all"]["connect_p99_s"] == 0.1


def test_histograms_of_populations_are_added_for_all(spark: SparkSession) -> None:
    rows = [bucket("r", 0.1, 90), bucket("r", 0.9, 10, population="trucks")]
    found = answer(latency(table(spark, "latencies", rows)), "run_id", "population")
    assert found["r", "cars"]["connect_p99_s"] == 0.1
    assert found["r", "trucks"]["connect_p50_s"] == 0.9
    everybody = found["r", "all"]
    assert (everybody["connect_p90_s"], everybody["connect_p99_s"]) == (0.1, 0.9)


def test_beyond_all_bounds_is_null_and_not_infinite(spark: SparkSession) -> None:
    rows = [bucket("r", 0.1, 98), bucket("r", BEYOND, 2)]
    found = answer(latency(table(spark, "latencies", rows)), "run_id", "population")["r", "all"]
    assert (found["connect_p90_s"], found["connect_p99_s"]) == (0.1, None)
    assert found["connect_count"] == 100


def test_one_observation_one_bucket_and_none(spark: SparkSession) -> None:
    rows = [bucket("one", 0.3, 1), bucket("other", 0.1, 5)]
    found_rows = table(spark, "latencies", rows)
    found = answer(latency(found_rows), "run_id", "population")
    assert found["one", "all"]["connect_p50_s"] == found["one", "all"]["connect_p999_s"] == 0.3
    assert found["other", "all"]["connect_count"] == 5
    assert answer(latency(empty(spark, "latencies")), "run_id", "population") == {}
