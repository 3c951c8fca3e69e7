"""Tables written by hand: columns that a test does not name are zero, empty or null."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_analysis.grains import by_node, by_slice
from spark_analysis.runs.contracts import END, RUN, TABLES, TableContract, spark_schema

Row = dict[str, Any]

_ZEROS: dict[pa.DataType, Any] = {
    pa.string(): "",
    pa.bool_(): False,
    pa.int32(): 0,
    pa.int64(): 0,
    pa.float64(): 0.0,
}


def full(table: TableContract, row: Row) -> Row:
    """The row with all its columns."""
    unknown = set(row) - {column.name for column in table.columns}
    assert not unknown, unknown
    zeros = {c.name: None if c.nullable else _ZEROS.get(c.type, {}) for c in table.columns}
    return {**zeros, **row}


def table(spark: SparkSession, name: str, rows: Sequence[Row]) -> DataFrame:
    """A table of the contract."""
    contract = TABLES[name]
    complete = [full(contract, row) for row in rows]
    fields = [pa.field(column.name, column.type) for column in contract.columns]
    return spark.createDataFrame(pa.Table.from_pylist(complete, pa.schema(fields)), contract.spark)


def runs(spark: SparkSession, rows: Sequence[Row]) -> DataFrame:
    """As `reading.read_runs` makes it; a run ends after 60 s unless it says otherwise."""
    columns = (*RUN.columns, *END.columns[1:])
    complete = []
    for row in rows:
        of_end = {c.name: row[c.name] for c in END.columns if c.name in row}
        of_run = {key: value for key, value in row.items() if key not in of_end or key == "run_id"}
        complete.append({**full(END, {"ended_s": 60.0, **of_end}), **full(RUN, of_run)})
    schema = pa.schema([(column.name, column.type) for column in columns])
    return spark.createDataFrame(pa.Table.from_pylist(complete, schema), spark_schema(columns))


def nodes(samples: DataFrame) -> DataFrame:
    """Samples as the questions about nodes take them."""
    runs = samples.select("run_id", F.lit("").alias("scenario"), F.lit(9.0).alias("ended_s"))
    return by_node(by_slice(samples, runs.distinct()))


def answer(found: DataFrame, *key: str) -> dict[Any, Row]:
    """Return the results by key (by default by run); every key has one row."""
    key = key or ("run_id",)
    rows = [row.asDict(recursive=True) for row in found.collect()]
    by_key = {}
    for row in rows:
        values = tuple(row.pop(name) for name in key)
        name = values[0] if len(values) == 1 else values
        assert name not in by_key, f"twice: {name}"
        by_key[name] = row
    return by_key


def empty(spark: SparkSession, name: str) -> DataFrame:
    """A table without a row."""
    return spark.createDataFrame([], TABLES[name].spark)
