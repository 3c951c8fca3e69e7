from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from spark_analysis.analysis import QUESTIONS, Analysis, analyse
from spark_analysis.report.page import page
from spark_analysis.runs.examination import examine, find_runs
from spark_analysis.tables import result_tables, write_tables
from tests.spark_analysis.crowd import Drawn, draw
from tests.spark_analysis.hand import Row
from tests.spark_analysis.recorded import record
from tests.support.damage import damage_silently, noise

pytestmark = pytest.mark.spark


def analysed(spark: SparkSession, directory: Path) -> Analysis:
    runs, left_out = examine(find_runs([directory]))
    return analyse(spark, runs, left_out)


def values(analysis: Analysis, question: str, metric: str) -> dict[str, Row]:
    """The summary's rows of the crowd without parameters, by policy."""
    wanted = (question, metric, "all", "flash-crowd", "")
    columns = ("question", "metric", "population", "scenario", "parameters")
    return {
        row["policy"]: row
        for row in analysis.summary.to_pylist()
        if tuple(row[column] for column in columns) == wanted
    }


def test_every_question_is_answered_for_every_run(analysis: Analysis) -> None:
    for question in QUESTIONS:
        answer = analysis.answers[question.name]
        assert set(answer["run_id"].to_pylist()) == {run.run_id for run in analysis.runs}
        assert {metric.column for metric in question.metrics} <= set(answer.column_names)


def test_policies_stand_side_by_side_with_their_seeds_aggregated(analysis: Analysis) -> None:
    recovered = values(analysis, "recovery", "recovery_s")
    assert (recovered["none"]["runs_count"], recovered["none"]["values_count"]) == (2, 0)
    assert recovered["adaptive"]["values_count"] == 2
    assert values(analysis, "cascade", "depth_count")["none"]["mean"] == 1.0
    assert values(analysis, "cascade", "depth_count")["adaptive"]["mean"] == 0.0
    jain = values(analysis, "fairness", "jain_cost_index")
    assert jain["none"]["mean"] < 0.8 < jain["adaptive"]["mean"]
    places = {
        (row["policy"], row["load_ratio"], row["trigger_s"]): row["recovered_ratio"]
        for row in analysis.region.to_pylist()
        if row["scenario"] == "retry-storm"
    }
    assert places == {
        (policy, load, trigger_s): 0.0 if (policy, load) == ("none", 0.95) else 1.0
        for policy in ("none", "adaptive")
        for load in (0.7, 0.95)
        for trigger_s in (1.0, 20.0)
    }


def test_courses_are_means_over_seeds(analysis: Analysis) -> None:
    rows = [
        row
        for row in analysis.work.to_pylist()
        if (row["scenario"], row["policy"]) == ("flash-crowd", "none")
    ]
    assert [row["from_s"] for row in rows] == list(range(60))
    assert rows[59]["in_time_per_s"] < 0.3 * rows[10]["in_time_per_s"]


def test_the_same_runs_give_the_same_bytes_whether_plans_are_compiled_or_not(
    spark: SparkSession, analysis: Analysis, crowd: Path, tmp_path: Path
) -> None:
    tables = result_tables(analysis)
    write_tables(tables, tmp_path / "first")
    spark.conf.set("spark.sql.codegen.wholeStage", "true")
    spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")
    try:
        again = analysed(spark, crowd)
    finally:
        spark.conf.set("spark.sql.codegen.wholeStage", "false")
        spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    write_tables(result_tables(again), tmp_path / "second")
    assert page(again) == page(analysis)
    assert set(tables) >= {"runs", "left_out", "summary", "outliers", "region", "goodput"}
    for name in tables:
        for suffix in ("parquet", "csv"):
            file = f"{name}.{suffix}"
            assert (tmp_path / "first" / file).read_bytes() == (
                tmp_path / "second" / file
            ).read_bytes(), file


def test_runs_with_damaged_pages_are_named_and_the_others_are_analysed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A page that cannot be unpacked, and one that unpacks into other numbers."""
    for seed in (1, 2):
        draw(tmp_path / f"none-{seed}", Drawn("flash-crowd", "none", seed, steps_per_s=1))
    path = tmp_path / "none-1" / "samples-00000.parquet"
    metadata = pq.ParquetFile(path).metadata
    index = metadata.schema.names.index("memory_bytes")
    chunk = metadata.row_group(0).column(index)
    content = bytearray(path.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    content[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    path.write_bytes(content)
    for name in ("whole", "silently"):
        rows = [
            {"population": "cars", "t_s": number / 10, "first_connected_count": connected}
            for number, connected in enumerate(noise(500))
        ]
        described = {"scenario": "s", "policy": name}
        record(tmp_path / name, name, run=described, goodput=rows)
    damage_silently(tmp_path / "silently" / "goodput-00000.parquet", "first_connected_count")
    found = analysed(spark, tmp_path)
    reasons = {Path(each.path).name: each.reason for each in found.left_out}
    assert reasons.keys() == {"none-1", "silently"}
    assert reasons["none-1"].startswith("samples-00000.parquet cannot be read: ")
    assert reasons["silently"].startswith("goodput-00000.parquet cannot be read: ")
    assert len(found.runs) == 2
    assert "whole" in {run.run_id for run in found.runs}
    assert values(found, "cascade", "depth_count")["none"]["runs_count"] == 1


def test_a_run_without_a_row_in_most_tables_is_analysed(
    spark: SparkSession, tmp_path: Path
) -> None:
    record(tmp_path / "bare", "bare", run={"scenario": "s", "policy": "p"})
    found = analysed(spark, tmp_path)
    tables = result_tables(found)
    assert tables["runs"].num_rows == 1
    assert tables["summary"].num_rows == 0
    assert all(answer.num_rows == 0 for answer in found.answers.values())
