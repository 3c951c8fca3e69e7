import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from flowguard.telemetry import schema
from spark_analysis import contracts


def test_there_are_the_tables_that_runs_are_written_with() -> None:
    assert list(contracts.TABLES) == list(schema.TABLES)
    assert contracts.VERSION == schema.VERSION


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
