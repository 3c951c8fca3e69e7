"""Reading: the tables of examined runs as DataFrames."""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

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
    """All rows of one table of all runs."""
    paths = [path for run in runs for path in run.files.get(table.name, ())]
    if not paths:
        return spark.createDataFrame([], table.spark)
    return spark.read.schema(table.spark).options(**READING).parquet(*map(_plain, paths))


def read_runs(spark: SparkSession, runs: Sequence[Run]) -> DataFrame:
    """Tables `run` and `end`, joined; the examination has read both already."""
    columns = (*RUN.columns, *END.columns[1:])
    rows = [{**run.run, **run.end} for run in runs]
    schema = pa.schema([(column.name, column.type) for column in columns])
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=schema), spark_schema(columns))


def _plain(path: str) -> str:
    """The path with its special characters escaped: Spark takes a path for a pattern."""
    return "".join(f"\\{letter}" if letter in "\\*?[]{}" else letter for letter in path)
