from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_analysis.runs.contracts import CLIENTS, LATENCIES, SAMPLES
from spark_analysis.runs.examination import Run, examine, find_runs
from spark_analysis.runs.reading import once, read_runs, read_table
from tests.spark_analysis.hand import table
from tests.spark_analysis.recorded import record

pytestmark = pytest.mark.spark


def examined(*paths: Path) -> list[Run]:
    runs, left_out = examine(find_runs(paths))
    assert left_out == []
    return runs


def test_runs_come_with_how_they_ended(spark: SparkSession, tmp_path: Path) -> None:
    record(tmp_path / "a", "a", run={"parameters": [("clients", "10")], "seed": 4})
    record(tmp_path / "b", "b", end={"ended_s": 7.5, "ended_by": "connected"})
    rows = {row["run_id"]: row for row in read_runs(spark, examined(tmp_path)).collect()}
    assert rows["a"]["parameters"] == {"clients": "10"}
    assert (rows["a"]["seed"], rows["b"]["seed"]) == (4, None)
    assert (rows["b"]["ended_s"], rows["b"]["ended_by"]) == (7.5, "connected")


def test_a_path_is_no_pattern_and_no_partition(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("load=0.8", "a[b]*{c,d}?", "with space %20"):
        record(tmp_path / name, name, samples=[{"t_s": 0.1}])
    rows = read_table(spark, examined(tmp_path), SAMPLES)
    assert rows.columns == [column.name for column in SAMPLES.columns]
    assert {row["run_id"] for row in rows.collect()} == {
        "load=0.8",
        "a[b]*{c,d}?",
        "with space %20",
    }


def test_rows_that_are_there_twice_come_once(spark: SparkSession, tmp_path: Path) -> None:
    clients = [{"population": "cars", "client": number} for number in (0, 1, 1)]
    record(tmp_path / "twice", "twice", clients=clients)
    record(tmp_path / "plain", "plain", clients=clients[:2])
    rows = read_table(spark, examined(tmp_path), CLIENTS).collect()
    assert sorted((row["run_id"], row["client"]) for row in rows) == [
        ("plain", 0),
        ("plain", 1),
        ("twice", 0),
        ("twice", 1),
    ]


def test_of_rows_that_contradict_each_other_the_largest_values_are_taken(
    spark: SparkSession,
) -> None:
    bucket = {"run_id": "r", "t_s": 1.0, "bound_s": 0.1}
    rows = table(spark, "latencies", [{**bucket, "count": 3}, {**bucket, "count": 5}])
    assert [row["count"] for row in once(rows, LATENCIES).collect()] == [5]


def test_a_table_that_no_run_has_is_empty(spark: SparkSession, tmp_path: Path) -> None:
    record(tmp_path, "r")
    rows = read_table(spark, examined(tmp_path), SAMPLES)
    assert rows.columns == [column.name for column in SAMPLES.columns]
    assert rows.collect() == []
