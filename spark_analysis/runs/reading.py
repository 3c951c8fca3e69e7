"""Reading: the tables of examined runs as DataFrames."""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_analysis.runs.contracts import END, RUN, TableContract, spark_schema
from spark_analysis.runs.examination import Run

READING: Final[Mapping[str, str]] = {
    "parquet.page.verify-checksum.enabled": "true",
    "parquet.filter.dictionary.enabled": "false",
}
"""Options of every reader of runs. By default Spark does not compare a page with its checksum, and
zstd unpacks a damaged one into other numbers. Filters look at statistics only: to look into every
dictionary of times and windows takes longer than reading them."""


def read_table(spark: SparkSession, runs: Sequence[Run], table: TableContract) -> DataFrame:
    """All rows of one table of all runs; a repeated row comes once."""
    plain = [path for run in runs if table.name not in run.repeated for path in _files(run, table)]
    twice = [path for run in runs if table.name in run.repeated for path in _files(run, table)]
    rows = _read(spark, plain, table)
    return rows.unionByName(once(_read(spark, twice, table), table)) if twice else rows


def read_runs(spark: SparkSession, runs: Sequence[Run]) -> DataFrame:
    """Tables `run` and `end`, joined; the examination has read both already."""
    columns = (*RUN.columns, *END.columns[1:])
    rows = [{**run.run, **run.end} for run in runs]
    schema = pa.schema([(column.name, column.type) for column in columns])
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=schema), spark_schema(columns))


def once(rows: DataFrame, table: TableContract) -> DataFrame:
    """Merge rows with equal keys; columns that differ get their largest values.

    It is unknown which of them is right, but the largest are the same at every reading. The rows of
    a run are in order, as in the files of others.
    """
    others = [column.name for column in table.columns if column.name not in table.key]
    if not others:
        return rows.distinct()
    single = rows.groupBy(*table.key).agg(*(F.max(name).alias(name) for name in others))
    ordered = single.repartition(table.key[0]).sortWithinPartitions(*table.key)
    return ordered.select([column.name for column in table.columns])


def _files(run: Run, table: TableContract) -> tuple[str, ...]:
    return run.files.get(table.name, ())


def _read(spark: SparkSession, paths: Sequence[str], table: TableContract) -> DataFrame:
    if not paths:
        return spark.createDataFrame([], table.spark)
    return spark.read.schema(table.spark).options(**READING).parquet(*map(_plain, paths))


def _plain(path: str) -> str:
    """The path with its special characters escaped: Spark takes a path for a pattern."""
    return "".join(f"\\{letter}" if letter in "\\*?[]{}" else letter for letter in path)
