from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from rich.progress import Progress

from spark_analysis.job import SparkJob
from spark_analysis.runs.contracts import SAMPLES, TABLES
from spark_analysis.runs.examination import Run, began_between, examine, find_runs
from spark_analysis.runs.reading import read_runs, read_table
from spark_analysis.terminal import SparkOptions
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


def test_a_table_that_no_run_has_is_empty(spark: SparkSession, tmp_path: Path) -> None:
    record(tmp_path, "r")
    rows = read_table(spark, examined(tmp_path), SAMPLES)
    assert rows.columns == [column.name for column in SAMPLES.columns]
    assert rows.collect() == []


def test_a_day_of_a_fleet_opens_no_file_of_another_day(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, rows = {"source": "broker"}, [{"t_s": 0.1}]
    files: dict[int, set[str]] = {27: set(), 28: set(), 29: set()}
    for day, of_day in files.items():
        for broker in range(30):
            run_id = f"live-202611{day}T120000Z-{broker:02}"
            directory = tmp_path / f"broker-{broker}" / run_id
            record(directory, run_id, run=run, samples=rows, latencies=rows)
            of_day |= {str(path) for path in directory.iterdir()}
    opened = set()
    open_file = pq.ParquetFile

    def count(path: Path, **options: Any) -> pq.ParquetFile:
        opened.add(str(path))
        return open_file(path, **options)

    monkeypatch.setattr(pq, "ParquetFile", count)
    wanted = began_between(datetime(2026, 11, 28, tzinfo=UTC), datetime(2026, 11, 29, tzinfo=UTC))
    job = SparkJob([tmp_path], tmp_path, SparkOptions("local", None, 1), Progress(disable=True))
    runs, left_out = job.examined(wanted)
    assert (len(runs), left_out) == (30, [])
    of_spark = [read_table(spark, runs, table).inputFiles() for table in TABLES.values()]
    read = {file.removeprefix("file://") for found in of_spark for file in found}
    assert opened == read == files[28]
    assert len(read) == 30 * 4
