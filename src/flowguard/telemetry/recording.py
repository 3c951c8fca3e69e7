"""Recording: writes a run's tables into Parquet files.

Rows are kept until there are `BATCH_ROWS` of them, then written; nothing else is buffered. A file
gets its final name when it is complete, so that a reader of a growing directory sees only whole
files. `finish` writes `END` last, so a run with it is complete.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

import pyarrow.parquet as pq

from flowguard.telemetry.schema import END, TABLES, Table

BATCH_ROWS: Final = 16_384
"""Number of rows per row group."""
FILE_ROWS: Final = 4_000_000
"""Number of rows after which the next file begins."""

Row = Sequence[Any]
"""Values in the order of the table's columns, without `run_id`, which is always first."""
Columns = Mapping[str, Sequence[Any]]
"""Values of many rows by column name, without `run_id`."""


@final
class _Output:
    def __init__(self, directory: Path, run_id: str, table: Table, file_rows: int) -> None:
        self._directory = directory
        self._run_id = run_id
        self._table = table
        self._file_rows = file_rows
        self._batch_rows = min(BATCH_ROWS, file_rows)
        self._rows: list[Row] = []
        self._number = 0
        self._writer: pq.ParquetWriter | None = None
        self._written_rows = 0

    @property
    def _name(self) -> str:
        return f"{self._table.name}-{self._number:05}.parquet"

    @property
    def _unfinished(self) -> Path:
        return self._directory / f".{self._name}.part"

    def add(self, row: Row) -> None:
        self._rows.append(row)
        if len(self._rows) >= self._batch_rows:
            self._write_rows()

    def add_columns(self, by_name: Columns) -> None:
        if self._rows:
            self._write_rows()
        columns = [by_name[column.name] for column in self._table.columns[1:]]
        for start in range(0, len(columns[0]), self._batch_rows):
            self._write([column[start : start + self._batch_rows] for column in columns])

    def complete(self) -> None:
        """Write buffered rows and close the file, if there is one."""
        if self._rows:
            self._write_rows()
        if self._writer is not None:
            self._close()

    def _write_rows(self) -> None:
        rows, self._rows = self._rows, []
        self._write(list(zip(*rows, strict=True)))

    def _write(self, columns: Sequence[Sequence[Any]]) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._unfinished, self._table.schema, compression="zstd", write_page_checksum=True
            )
        self._writer.write_batch(self._table.batch(self._run_id, columns))
        self._written_rows += len(columns[0])
        if self._written_rows >= self._file_rows:
            self._close()

    def _close(self) -> None:
        assert self._writer is not None
        self._writer.close()
        self._writer = None
        self._unfinished.rename(self._directory / self._name)
        self._number += 1
        self._written_rows = 0


@final
class Recording:
    """A run's directory while it is written; for one thread at a time."""

    def __init__(self, directory: Path, run_id: str, *, file_rows: int = FILE_ROWS) -> None:
        """Makes the directory; raises FileExistsError if it already has tables of a run."""
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.glob("*.parquet")):
            raise FileExistsError(f"{directory} has a run in it already")
        for unfinished in directory.glob(".*.parquet.part"):
            unfinished.unlink()
        self.directory = directory
        self.run_id = run_id
        self._outputs = {
            name: _Output(directory, run_id, table, file_rows) for name, table in TABLES.items()
        }

    def add(self, table: Table, row: Row) -> None:
        """Add one row, without its `run_id`."""
        self._outputs[table.name].add(row)

    def extend(self, table: Table, rows: Iterable[Row]) -> None:
        output = self._outputs[table.name]
        for row in rows:
            output.add(row)

    def add_columns(self, table: Table, columns: Columns) -> None:
        """Add many rows without a tuple for each; they are written at once."""
        self._outputs[table.name].add_columns(columns)

    def rotate(self) -> None:
        """Complete all open files, for readers that follow the run; later rows go to new files."""
        for output in self._outputs.values():
            output.complete()

    def finish(self, row: Row) -> None:
        """Complete all files; `row` is the row of table `END`."""
        self.rotate()
        self.add(END, row)
        self.rotate()
