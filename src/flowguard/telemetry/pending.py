"""Pending rows from the event loop to the disk, within two limits.

At a limit, new rows are dropped and counted, so that a slow disk costs rows, never memory. Attempts
may take half of each limit, so that a storm does not displace the samples that show it.
"""

from dataclasses import dataclass, field
from typing import Any, Final, final

from flowguard.telemetry.progress import BY_BYTES, BY_ROWS, Drops
from flowguard.telemetry.schema import ATTEMPTS, TABLES, Table

Row = tuple[Any, ...]
"""Values in the order of the table's columns, without `run_id`, which is always first."""

VALUE_BYTES: Final = 32
"""Memory of a number and the reference to it, bytes."""
TUPLE_BYTES: Final = 64
ATTEMPTS_SHARE: Final = 0.5
"""Share of both limits that rows of `attempts` may take."""
ROW_BYTES: Final = {
    table.name: TUPLE_BYTES + VALUE_BYTES * len(table.columns) for table in TABLES.values()
}
"""Memory of a row without its texts, by table, bytes."""


@dataclass(slots=True)
class Portion:
    """Rows of one run to be written to disk."""

    run_id: str
    run: Row
    """The row of table `run`, with which a run's first portion begins."""
    rows: dict[str, list[Row]] = field(default_factory=dict)
    """Rows by table, in order."""
    end: Row | None = None
    """The row of table `end`, or None while the run continues."""
    rows_count: int = 0
    size_bytes: int = 0


@final
class PendingRows:
    """Rows that wait, and rows being written; both count against the limits."""

    def __init__(self, rows_max: int, bytes_max: int, dropped: Drops) -> None:
        """`dropped` counts dropped rows."""
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._dropped = dropped
        self._portions: list[Portion] = []
        self._current: Portion | None = None
        self.rows_count = 0
        self.size_bytes = 0

    def begin(self, run_id: str, run: Row) -> None:
        self._append(Portion(run_id, run))

    def add(self, table: Table, row: Row, text_bytes: int = 0) -> bool:
        """Add a row with texts of `text_bytes`; return False if it is dropped at a limit."""
        portion = self._current
        assert portion is not None
        name = table.name
        share = ATTEMPTS_SHARE if table is ATTEMPTS else 1.0
        size_bytes = ROW_BYTES[name] + text_bytes
        if self.rows_count + 1 > share * self._rows_max:
            return self._drop(name, BY_ROWS)
        if self.size_bytes + size_bytes > share * self._bytes_max:
            return self._drop(name, BY_BYTES)
        rows = portion.rows.get(name)
        if rows is None:
            rows = portion.rows[name] = []
        rows.append(row)
        portion.rows_count += 1
        portion.size_bytes += size_bytes
        self.rows_count += 1
        self.size_bytes += size_bytes
        return True

    def end(self, row: Row) -> None:
        """End the run with its last row, which is always accepted."""
        assert self._current is not None
        self._current.end = row
        self._current = None

    def take(self) -> list[Portion]:
        """Return all waiting rows, in order; the caller must pass them to `written`."""
        taken, self._portions = self._portions, []
        current = self._current
        if current is not None:
            self._append(Portion(current.run_id, current.run))
        return taken

    def written(self, portions: list[Portion]) -> None:
        self.rows_count -= sum(portion.rows_count for portion in portions)
        self.size_bytes -= sum(portion.size_bytes for portion in portions)

    def _append(self, portion: Portion) -> None:
        self._portions.append(portion)
        self._current = portion

    def _drop(self, table: str, bound: str) -> bool:
        by_bound = self._dropped.setdefault(table, {})
        by_bound[bound] = by_bound.get(bound, 0) + 1
        return False
