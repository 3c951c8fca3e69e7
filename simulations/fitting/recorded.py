"""Recorded: the tables of one run of a broker, column by column."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flowguard.errors import ConfigError

COLUMNS: Final = {
    "samples": (
        *("t_s", "accepted_count", "refused_count", "discarded_count", "closed_count"),
        *("published_count", "delivered_count", "busy_s", "connections_count", "memory_bytes"),
        *("memory_limit_bytes", "running_ratio", "payload_bytes"),
        *("commits_count", "stored_count", "committing_s"),
    ),
    "goodput": ("t_s", "connected_count"),
    "attempts": ("client", "started_s", "ended_s", "outcome"),
    "latencies": ("kind", "t_s", "bound_s", "count"),
    "connections": (
        *("client", "t_s", "age_s", "keep_alive_s", "is_durable", "subscriptions_count"),
        *("received_bytes", "in_process_count"),
    ),
}
"""The columns that a fit reads, by table."""
Columns = dict[str, list[Any]]


@dataclass(frozen=True, slots=True)
class RecordedRun:
    run_id: str
    parameters: dict[str, str]
    """Settings that differ from the defaults, by dotted key."""
    tables: dict[str, Columns]
    begin_s: float
    """A second before the first client."""
    end_s: float
    """When the last client had left, or the end of the run."""

    @property
    def seconds(self) -> int:
        return max(1, round(self.end_s - self.begin_s))

    def column(self, table: str, name: str) -> list[Any]:
        return self.tables[table].get(name, [])

    def rows(self, table: str, *names: str) -> Iterator[tuple[Any, ...]]:
        """Yield the values of some columns, row by row."""
        return zip(*(self.column(table, name) for name in names), strict=True)

    def by_second(self, name: str) -> list[float]:
        """Return the sums of a column of `samples`, by second since `begin_s`."""
        return self.sums(self.column("samples", name))

    def sums(self, values: Sequence[float | None]) -> list[float]:
        """Return the sums of values of all samples, by second since `begin_s`."""
        sums = [0.0] * self.seconds
        for t_s, value in zip(self.column("samples", "t_s"), values, strict=True):
            # A sample counts what happened before it.
            second = int(t_s - self.begin_s - 1e-6)
            if t_s >= self.begin_s and second < len(sums):
                sums[second] += value or 0.0
        return sums

    def histograms(self, kind: str) -> Iterator[tuple[int, float, int]]:
        """Yield second, upper bound and count of the buckets of a kind of latency."""
        for found, t_s, bound_s, count in self.rows("latencies", "kind", "t_s", "bound_s", "count"):
            second = min(self.seconds - 1, max(0, round(t_s - self.begin_s) - 1))
            if found == kind and t_s >= self.begin_s:
                yield second, bound_s, count

    def has(self, table: str, name: str) -> bool:
        """Return True if the run has values of a column, which older runs may lack."""
        return any(value is not None for value in self.column(table, name))


def read_run(directory: Path) -> RecordedRun:
    """Read a complete run of a broker. Raises ConfigError."""
    folder = _folder(directory)
    (run,) = _rows(folder, "run") or [{}]
    end = _rows(folder, "end")
    if not run:
        raise ConfigError(f"{folder}: it has no table run, so it is no recorded run")
    if run["source"] != "broker":
        raise ConfigError(f"{folder}: it is a simulation; its scenario is {run['scenario']}")
    if not end:
        raise ConfigError(f"{folder}: it has no end record; stop the broker, or wait for run_s")
    tables = {table: _columns(folder, table, names) for table, names in COLUMNS.items()}
    started_s = tables["attempts"].get("started_s")
    if not started_s:
        raise ConfigError(f"{folder}: no client has tried to connect, so there is nothing to fit")
    connected = zip(tables["goodput"]["t_s"], tables["goodput"]["connected_count"], strict=True)
    last_s = max((t_s for t_s, count in connected if count), default=end[0]["ended_s"])
    begin_s = max(0.0, min(started_s) - 1.0)
    return RecordedRun(
        run["run_id"], dict(run["parameters"]), tables, begin_s, max(last_s, begin_s + 1.0)
    )


def _folder(directory: Path) -> Path:
    """Return the directory of the run, which may be the only one below `directory`."""
    if not directory.is_dir():
        raise ConfigError(f"{directory}: there is no such directory")
    if list(directory.glob("run-*.parquet")):
        return directory
    found = sorted(path.parent for path in directory.glob("*/run-*.parquet"))
    if len(found) == 1:
        return found[0]
    names = ", ".join(path.name for path in found) or "none"
    raise ConfigError(f"{directory}: name one recorded run; there are: {names}")


def _rows(folder: Path, table: str) -> list[dict[str, Any]]:
    parts = sorted(folder.glob(f"{table}-*.parquet"))
    return [row for part in parts for row in _read(part).to_pylist()]


def _columns(folder: Path, table: str, names: tuple[str, ...]) -> Columns:
    found: Columns = {name: [] for name in names}
    for part in sorted(folder.glob(f"{table}-*.parquet")):
        read = _read(part, names)
        for name in names:
            known = name in read.column_names
            found[name] += read[name].to_pylist() if known else [None] * read.num_rows
    return found


def _read(part: Path, names: tuple[str, ...] = ()) -> Any:
    """Return a file as a table, with those of the columns that it has; () stands for all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        known = [name for name in pq.read_schema(part).names if name in names or not names]
        return pq.read_table(part, columns=known, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{part}: cannot be read: {str(error).splitlines()[0]}") from error
