import json
from pathlib import Path

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from flowguard.telemetry import schema
from spark_analysis.runs import contracts


def test_there_are_the_tables_that_runs_are_written_with() -> None:
    assert list(contracts.TABLES) == list(schema.TABLES)
    assert contracts.VERSION == schema.VERSION


def test_the_file_of_contracts_is_what_follows_from_the_tables_of_the_writer() -> None:
    tables = {
        table.name: {
            "key": list(table.key),
            "columns": {
                column.name: ("texts" if column.type == schema.TEXTS else str(column.type))
                + (contracts.NULLABLE if column.nullable else "")
                for column in table.columns
            },
        }
        for table in schema.TABLES.values()
    }
    written = Path(contracts.__file__).with_suffix(".json").read_text()
    assert written == json.dumps(tables, indent=1) + "\n"


@pytest.mark.parametrize("name", schema.TABLES)
def test_a_table_has_the_columns_types_and_metadata_that_it_is_written_with(name: str) -> None:
    expected = schema.TABLES[name].schema
    assert contracts.TABLES[name].arrow.equals(expected, check_metadata=True)


@pytest.mark.parametrize("name", contracts.TABLES)
def test_spark_reads_the_types_that_are_in_the_file(name: str) -> None:
    table = contracts.TABLES[name]
    read = [(field.name, field.dataType) for field in from_arrow_schema(table.arrow)]
    assert [(field.name, field.dataType) for field in table.spark] == read


@pytest.mark.parametrize("name", contracts.TABLES)
def test_rows_are_told_apart_by_what_the_writer_says(name: str) -> None:
    assert contracts.TABLES[name].key == schema.TABLES[name].key
