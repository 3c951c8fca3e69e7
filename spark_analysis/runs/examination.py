"""Examination: which runs can be read, and why the others cannot.

It uses pyarrow before Spark reads anything: footers, and the one row of `run` and of `end`. A run
is read as a whole or left out with a reason; nothing of a run that is damaged, unfinished or of
another version finds its way into an average.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from math import inf
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
    left_out: list[LeftOut] = []
    by_id: dict[str, Run] = {}
    with ThreadPoolExecutor(THREADS) as threads:
        for run, others in threads.map(examine_directory, sorted(directories)):
            done()
            left_out += others
            if run is not None and by_id.setdefault(run.run_id, run) is not run:
                first = by_id[run.run_id].directory
                reason = f"a run of the same id was read already, from {first}"
                left_out.append(LeftOut(run.directory, run.run_id, reason))
    return list(by_id.values()), sorted(left_out, key=lambda one: (one.path, one.reason))


def read_through(runs: Sequence[Run]) -> tuple[list[Run], list[LeftOut]]:
    """Read every page of every file, a batch at a time: which runs are whole, and which are not.

    Slow; for use when a run that passed `examine` could not be read after all.
    """
    whole, damaged = [], []
    for run in runs:
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
    except Unreadable as unreadable:
        return None, [*strangers, LeftOut(str(directory), run_id, str(unreadable))]
    names = {name: tuple(str(path) for path in paths) for name, paths in files.items()}
    return Run(str(directory), run, end, names), strangers


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
    """Raise Unreadable if a file is missing, is of another run, or repeats an earlier file.

    A file ends later than the file before it. Both may overlap a little, because decisions of one
    tick have two clocks.
    """
    time = next((name for name in table.key[1:2] if name.endswith("_s")), None)
    numbers = [int(path.stem.rpartition("-")[2]) for path in paths]
    before = (-inf, -inf)
    for expected, (number, path) in enumerate(zip(numbers, paths, strict=True), start=numbers[0]):
        if number != expected:
            raise Unreadable(f"{table.name}-{expected:05}.parquet is missing")
        metadata = examine_file(table, path)
        if any(set(bounds) != {run_id} for bounds in _bounds(metadata, table.key[0])):
            raise Unreadable(f"{path.name} has rows of another run")
        bounds = list(_bounds(metadata, time)) if time else []
        if bounds:
            first, last = min(bounds)[0], max(last for _, last in bounds)
            if first <= before[0] and last <= before[1] and first < last:
                raise Unreadable(f"{path.name} has rows of a time before those in front of it")
            before = (first, last)


def _bounds(metadata: pq.FileMetaData, name: str) -> Iterator[tuple[Any, Any]]:
    """The smallest and the largest value of a column, in each part of a file that tells them."""
    column = metadata.schema.names.index(name)
    for index in range(metadata.num_row_groups):
        statistics = metadata.row_group(index).column(column).statistics
        if statistics is not None and statistics.has_min_max:
            yield statistics.min, statistics.max


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
