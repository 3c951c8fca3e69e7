"""Contracts: the tables of a run, version 1 (docs/reference/parquet-schema.md).

They are data, `contracts.json` beside this file: the analysis knows the files, not the program that
wrote them. A test compares them with the schema of the recorder, and prints the correct file.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.pandas.types import from_arrow_type

VERSION: Final = 1
VERSION_KEY: Final = b"flowguard.schema"
TABLE_KEY: Final = b"flowguard.table"
NULLABLE: Final = "?"
"""The end of a type in `contracts.json` whose values may be null."""


@dataclass(frozen=True, slots=True)
class ColumnContract:
    """One column; one that may be null may also be missing in an older file."""

    name: str
    type: pa.DataType
    nullable: bool


@dataclass(frozen=True, slots=True)
class TableContract:
    """One table; rows that are equal in `key` are the same row."""

    name: str
    columns: tuple[ColumnContract, ...]
    key: tuple[str, ...]

    @property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of its files, with their metadata."""
        metadata = {VERSION_KEY: str(VERSION).encode(), TABLE_KEY: self.name.encode()}
        fields = [pa.field(c.name, c.type, nullable=c.nullable) for c in self.columns]
        return pa.schema(fields, metadata=metadata)

    @property
    def spark(self) -> st.StructType:
        return spark_schema(self.columns)


def spark_schema(columns: tuple[ColumnContract, ...]) -> st.StructType:
    """Columns in Spark, which treats every column of a file as one that may be null."""
    return st.StructType([st.StructField(c.name, from_arrow_type(c.type)) for c in columns])


def _column(name: str, type_: str) -> ColumnContract:
    plain = type_.removesuffix(NULLABLE)
    is_map = plain == "texts"
    arrow = pa.map_(pa.string(), pa.string()) if is_map else pa.type_for_alias(plain)
    return ColumnContract(name, arrow, nullable=type_ != plain)


def _tables() -> dict[str, TableContract]:
    written = json.loads(Path(__file__).with_suffix(".json").read_text())
    return {
        name: TableContract(
            name,
            tuple(_column(*column) for column in table["columns"].items()),
            tuple(table["key"]),
        )
        for name, table in written.items()
    }


TABLES: Final = _tables()
RUN: Final = TABLES["run"]
SAMPLES: Final = TABLES["samples"]
GOODPUT: Final = TABLES["goodput"]
LATENCIES: Final = TABLES["latencies"]
CLIENTS: Final = TABLES["clients"]
VIOLATIONS: Final = TABLES["violations"]
END: Final = TABLES["end"]
