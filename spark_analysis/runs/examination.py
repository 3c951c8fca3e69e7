"""Examination: which runs can be read, and why the others cannot.

It uses pyarrow before Spark reads anything: footers, the one row of `run` and of `end`, and the
columns that tell rows apart. A run is read as a whole or left out with a reason; nothing of a
run that is damaged, unfinished or of another version finds its way into an average.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_analysis.runs.contracts import (
    END,
    RUN,
    SAMPLES,
    TABLE_KEY,
    TABLES,
    VERSION,
    VERSION_KEY,
    ColumnContract,
    TableContract,
)

BROKER: Final = "broker"
"""The source of live runs."""
UNFINISHED: Final = "unfinished"
"""How a run ended whose broker was killed, or still records."""
THREADS: Final = 8
BATCH_ROWS: Final = 65_536
_FILE: Final = re.compile(r"([a-z]+)-(\d+)\.parquet")
_LIVE: Final = re.compile(r"live-(\d{8}T\d{6})Z-")
_UNFINISHED: Final = re.compile(r"\..+\.parquet\.part")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A run, or a file, that is not in the result."""

    path: str
    run_id: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Run:
    """A run that is complete and of this version."""

    directory: str
    run: dict[str, Any]
    end: dict[str, Any]
    files: dict[str, tuple[str, ...]]
    """Files of each table, in order."""
    repeated: dict[str, int] = field(default_factory=dict)
    """Repeated rows of each table; -1: rows are not in order, so they were not counted."""

    @property
    def run_id(self) -> str:
        return str(self.run["run_id"])


class Unreadable(Exception):
    """A run, or a file, is left out; the text has the reason."""


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The directories in and below `paths` that have files of a run in them, sorted."""
    found = set()
    for path in paths:
        for directory, below, names in os.walk(path.resolve()):
            below.sort()
            if any(name.endswith(".parquet") or _UNFINISHED.fullmatch(name) for name in names):
                found.add(Path(directory))
    return sorted(found)


def began_between(since: datetime | None, until: datetime | None) -> Callable[[Path], bool]:
    """Return a test of directories: false if the name tells that a broker's run began earlier than
    `since`, or not before `until`. No file is read for it."""
    first = f"{since:%Y%m%dT%H%M%S}" if since else ""
    end = f"{until:%Y%m%dT%H%M%S}" if until else ":"

    def is_wanted(directory: Path) -> bool:
        began = _LIVE.match(directory.name)
        return began is None or first <= began[1] < end

    return is_wanted


def examine(
    directories: Sequence[Path], done: Callable[[], None] = lambda: None
) -> tuple[list[Run], list[LeftOut]]:
    """The runs that can be read and those that cannot, sorted by path; `done` is called after each
    directory."""
    runs: list[Run] = []
    left_out: list[LeftOut] = []
    by_id: dict[str, Run] = {}
    with ThreadPoolExecutor(THREADS) as threads:
        for run, others in threads.map(examine_directory, sorted(directories)):
            done()
            left_out += others
            if run is None:
                continue
            first = by_id.setdefault(run.run_id, run)
            if first is run:
                runs.append(run)
            else:
                reason = f"the same run was read already, from {first.directory}"
                if not _is_copy(first, run):
                    reason = (
                        f"another run of the same id was read already, from {first.directory}; "
                        "analyse the two apart"
                    )
                left_out.append(LeftOut(run.directory, run.run_id, reason))
    return runs, sorted(left_out, key=lambda one: (one.path, one.reason))


def _is_copy(one: Run, other: Run) -> bool:
    """Whether both say the same of themselves; a file may have been called from elsewhere."""
    return one.end == other.end and {**one.run, "command": None} == {**other.run, "command": None}


def read_through(
    runs: Sequence[Run], done: Callable[[], None] = lambda: None
) -> tuple[list[Run], list[LeftOut]]:
    """Read every page of every file, a batch at a time: which runs are whole, and which are not.

    Slow; for use when a run that passed `examine` could not be read after all.
    """
    whole, damaged = [], []
    for run in runs:
        done()
        try:
            for path in (Path(path) for paths in run.files.values() for path in paths):
                with _reading(path):
                    for _ in _opened(path).iter_batches(BATCH_ROWS):
                        pass
        except Unreadable as unreadable:
            damaged.append(LeftOut(run.directory, run.run_id, str(unreadable)))
        else:
            whole.append(run)
    return whole, damaged


def examine_directory(directory: Path) -> tuple[Run | None, list[LeftOut]]:
    """One run, or the reason against it; and files that belong to no run."""
    files: dict[str, list[Path]] = {}
    strangers = []
    for path in sorted(directory.glob("*.parquet")):
        match = _FILE.fullmatch(path.name)
        if match is not None and match[1] in TABLES:
            files.setdefault(match[1], []).append(path)
        else:
            strangers.append(LeftOut(str(path), None, "its name is of no table of a run"))
    if not files and strangers:
        return None, strangers
    run_id = None
    try:
        run = _only_row(directory, RUN, files)
        run_id = str(run["run_id"])
        for name, paths in files.items():
            _examine_files(TABLES[name], paths, run_id)
        end = _end(directory, run, files)
        repeated = {name: _repeated(TABLES[name], paths) for name, paths in files.items()}
    except Unreadable as unreadable:
        return None, [*strangers, LeftOut(str(directory), run_id, str(unreadable))]
    names = {name: tuple(str(path) for path in paths) for name, paths in files.items()}
    found = {name: count for name, count in repeated.items() if count}
    return Run(str(directory), run, end, names, found), strangers


def _end(directory: Path, run: dict[str, Any], files: dict[str, list[Path]]) -> dict[str, Any]:
    """The row of `end`. A broker that was killed, or still runs, has none: what it has recorded is
    read up to its last sample."""
    samples = files.get(SAMPLES.name)
    if run["source"] != BROKER or END.name in files or not samples:
        return _only_row(directory, END, files)
    with _reading(samples[-1]):
        times = _opened(samples[-1]).read(columns=["t_s"])["t_s"]
    ended = {"run_id": run["run_id"], "ended_s": pc.max(times).as_py(), "ended_by": UNFINISHED}
    return {column.name: ended.get(column.name) for column in END.columns} | {"deaths_count": 0}


def _only_row(
    directory: Path, table: TableContract, files: dict[str, list[Path]]
) -> dict[str, Any]:
    paths = files.get(table.name, [])
    if not paths and table is END:
        raise Unreadable("it has no end record: not finished, or still recorded")
    if not paths:
        raise Unreadable(f"it has no table {table.name}")
    rows: list[dict[str, Any]] = []
    for path in paths:
        examine_file(table, path)
        with _reading(path):
            read = _opened(path).read()
        rows += read.to_pylist(maps_as_pydicts="strict")
    if len(rows) != 1:
        raise Unreadable(f"its table {table.name} has {len(rows)} rows instead of one")
    known = {column.name: rows[0].get(column.name) for column in table.columns}
    if known.get("schema_version", VERSION) != VERSION:
        raise Unreadable(f"schema_version is {known['schema_version']}, not {VERSION}")
    return known


def _examine_files(table: TableContract, paths: Sequence[Path], run_id: str) -> None:
    first = _number(paths[0])
    for expected, path in enumerate(paths, start=first):
        if _number(path) != expected:
            raise Unreadable(f"{table.name}-{expected:05}.parquet is missing")
        metadata = examine_file(table, path)
        for index in range(metadata.num_row_groups):
            statistics = metadata.row_group(index).column(0).statistics
            if statistics is None or not statistics.has_min_max:
                continue
            if {statistics.min, statistics.max} != {run_id}:
                raise Unreadable(f"{path.name} has rows of another run")


def _number(path: Path) -> int:
    match = _FILE.fullmatch(path.name)
    assert match is not None
    return int(match[2])


def examine_file(table: TableContract, path: Path) -> pq.FileMetaData:
    """The footer of a file; raises Unreadable if it is not a whole file of this table and
    version."""
    with _reading(path):
        file = _opened(path)
        schema = file.schema_arrow
    metadata = schema.metadata or {}
    version, name = metadata.get(VERSION_KEY), metadata.get(TABLE_KEY, b"").decode(errors="replace")
    if version is None:
        raise Unreadable(f"{path.name} was not written by flowguard")
    if version != str(VERSION).encode():
        is_older = version.isdigit() and int(version) < VERSION
        age = "an older" if is_older else "a newer"
        words = version.decode(errors="replace")
        raise Unreadable(f"{path.name} has {age} schema, version {words} instead of {VERSION}")
    if name != table.name:
        raise Unreadable(f"{path.name} says it is table {name}")
    for column in table.columns:
        _examine_column(column, schema, path.name)
    return file.metadata


def _examine_column(column: ColumnContract, schema: pa.Schema, file: str) -> None:
    index = schema.get_field_index(column.name)
    if index < 0:
        if not column.nullable:
            raise Unreadable(f"{file} has no column {column.name}")
        return
    found = schema.field(index)
    if found.type != column.type:
        words = f"column {column.name} is {found.type} instead of {column.type}"
        raise Unreadable(f"{file}: {words}")
    if found.nullable and not column.nullable:
        raise Unreadable(f"{file}: column {column.name} may be null")


def _opened(path: Path) -> pq.ParquetFile:
    """The file; a page whose checksum is wrong cannot be read. One without any is taken as it
    is."""
    return pq.ParquetFile(path, page_checksum_verification=True)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns pyarrow's error for a damaged file into the reason."""
    try:
        yield
    except (OSError, pa.ArrowException) as failure:
        words = str(failure).splitlines()[0]
        raise Unreadable(f"{path.name} cannot be read: {words}") from failure


def _repeated(table: TableContract, paths: Sequence[Path]) -> int:
    """The number of repeated rows; -1 if rows are not in order of time.

    Rows of one instant are next to each other, so that a batch and one instant are all that is
    in memory; tables without a time are as long as a run has clients.
    """
    key = list(table.key[1:])
    time = key[0] if key and key[0].endswith("_s") else None
    repeated = 0
    waiting: pa.Table | None = None
    for rows in _batches(paths, key):
        rows = rows if waiting is None else pa.concat_tables([waiting, rows])
        waiting = rows
        if time is not None:
            times = rows[time].combine_chunks()
            if len(times) > 1 and pc.any(pc.less(times[1:], times[:-1])).as_py():
                return -1
            is_last = pc.equal(times, times[-1])
            waiting = rows.filter(is_last)
            repeated += _twice(rows.filter(pc.invert(is_last)), key)
    return repeated + (0 if waiting is None else _twice(waiting, key))


def _batches(paths: Sequence[Path], columns: list[str]) -> Iterator[pa.Table]:
    for path in paths if columns else ():
        with _reading(path):
            for batch in _opened(path).iter_batches(BATCH_ROWS, columns=columns):
                if batch.num_rows:
                    yield pa.Table.from_batches([batch])


def _twice(rows: pa.Table, key: list[str]) -> int:
    if _ascends(rows, key):
        return 0
    groups = rows.group_by(key, use_threads=False).aggregate([([], "count_all")])
    return int(rows.num_rows - groups.num_rows)


def _ascends(rows: pa.Table, key: list[str]) -> bool:
    """Whether every row is after the one before it, by all columns of the key; then none is
    repeated."""
    after = None
    for name in reversed(key):
        column = rows[name].combine_chunks()
        before, behind = column[:-1], column[1:]
        is_less = pc.less(before, behind)
        is_equal = pc.equal(before, behind)
        after = is_less if after is None else pc.or_(is_less, pc.and_(is_equal, after))
    return after is not None and bool(pc.all(pc.fill_null(after, False), min_count=0).as_py())
