import pytest

from flowguard.telemetry.schema import TABLE_KEY, TABLES, VERSION_KEY, Table


@pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
def test_every_table_begins_with_its_run_and_says_its_name_and_version(table: Table) -> None:
    schema = table.schema
    assert schema.names[0] == "run_id"
    assert len(set(schema.names)) == len(schema.names)
    assert set(table.key) <= set(schema.names)
    assert schema.metadata == {VERSION_KEY: b"1", TABLE_KEY: table.name.encode()}


@pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
def test_every_number_is_named_with_its_unit(table: Table) -> None:
    units = ("_s", "_bytes", "_count", "_ratio", "_units")
    bare = {
        *("run_id", "schema_version", "seed", "node", "client", "number", "count"),
        *("window", "shadow_window", "connect_limit", "before", "after"),
    }
    for column in table.columns:
        if column.type in ("string", "bool") or column.name in bare:
            continue
        assert column.name.endswith(units) or str(column.type).startswith("map"), column.name
