"""Runs as the recorder writes them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flowguard.telemetry import schema
from flowguard.telemetry.recording import FILE_ROWS, Recording
from flowguard.telemetry.schema import TABLES, Table
from spark_analysis.runs import contracts
from tests.spark_analysis.hand import Row, full


def values(table: Table, row: Row) -> tuple[Any, ...]:
    """The row as the recorder takes it."""
    complete = full(contracts.TABLES[table.name], row)
    return tuple(complete[column.name] for column in table.columns[1:])


def record(
    directory: Path,
    run_id: str,
    *,
    end: Row | None = None,
    is_finished: bool = True,
    run: Row | None = None,
    file_rows: int = FILE_ROWS,
    **tables: Sequence[Row],
) -> Path:
    """A run with the rows that are given by table; returns its directory."""
    recording = Recording(directory, run_id, file_rows=file_rows)
    described = {"schema_version": schema.VERSION, "command": f"simulate {run_id}", **(run or {})}
    recording.add(schema.RUN, values(schema.RUN, described))
    for name, rows in tables.items():
        recording.extend(TABLES[name], [values(TABLES[name], row) for row in rows])
    if is_finished:
        ended = {"ended_s": 60.0, "ended_by": "duration", **(end or {})}
        recording.finish(values(schema.END, ended))
    else:
        recording.rotate()
    return directory
