"""RocksDB as the store uses it: bytes in, bytes out, errors of flowguard.

The only file that imports rocksdict. Rules that its users can rely on:

* A write never waits for RocksDB; it raises `StallError` instead. rocksdict holds the GIL while it
  writes, even during a stall; only `flush_wal` releases it. `wait_for_disk` comes before a write.
* Every scan has an upper bound and ends inside one call, since a live iterator keeps the directory
  locked after `close`. Scans have no lower bound, since rocksdict's overwrites the upper one.
* A scan that fails in the middle raises. Such an iterator is invalid, like one at its end; only its
  status differs.
* Synced data exists after reopening, or opening raises (`synced`).
* A family is one object for the life of the engine; `reopen` gives it a new handle.
* An error keeps the frames that it passed, and their variables. So no frame that an error of
  RocksDB passes has a database, an iterator or a handle in a variable.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar, final

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    BottommostLevelCompaction,
    Cache,
    Checkpoint,
    ColumnFamily,
    CompactOptions,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from flowguard.config import MIB, StoreSettings
from flowguard.errors import CorruptionError, RemovedError, StoreError, SyncError
from flowguard.flow.load.signals import StoreState
from flowguard.priority import named_give_way
from flowguard.stores.log.rows import Cursor
from flowguard.stores.rocks.database.driver_errors import CONTENT, REPEATED, translated
from flowguard.stores.rocks.database.log_files import check_logs
from flowguard.stores.rocks.database.rows import EngineBatch, Visit, visit
from flowguard.stores.rocks.database.synced import Synced, read_synced

Found = TypeVar("Found")
FAMILIES: Final = tuple(CONTENT)
KEYS_END: Final = b"\xff" * 16
"""A key above all keys of a family."""
SCAN_ROWS: Final = 256
SCAN_BYTES: Final = MIB
BLOCK_BYTES: Final = 16 * 1024
ARENA_BYTES: Final = 64 * 1024
"""Size of the blocks of a write buffer, small enough that malloc reuses the same pages."""
TABLES_MERGED: Final = 16
"""Number of young tables that are merged at once, when most of their rows are settled."""
TABLES_DELAY: Final = 40
TABLES_STOP: Final = 64
"""Number of young tables at which writes stop; TABLES_DELAY slows them down."""
LOG_BYTES: Final = MIB
THREADS: Final = "rocksdb:"
"""Prefix of the names of the threads that write and merge tables; engines share them."""
SLICE: Final = "log."
"""Prefix of the names of the durable log's families; the number follows, eight hex digits."""
STORED: Final = "rocksdb.live-sst-files-size", "rocksdb.live-blob-file-size"
BUFFERED: Final = "rocksdb.cur-size-all-mem-tables"


class Family:
    """One column family: its reads, and its handle for batches."""

    __slots__ = ("_rows", "handle", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.handle: ColumnFamily | None = None
        self._rows: Rdict | None = None

    def attach(self, rows: Rdict, handle: ColumnFamily) -> None:
        self._rows = rows
        self.handle = handle

    def detach(self) -> None:
        self._rows = None
        self.handle = None

    def _open_rows(self) -> Rdict:
        if self._rows is None:
            raise StoreError(f"family {self.name} is closed")
        return self._rows

    def get(self, key: bytes) -> bytes | None:
        """Return the value at `key`, or None. Raises `CorruptionError`, as all reads."""
        with translated(self.name):
            found: bytes | None = self._open_rows().get(key)
        return found

    def get_readable(self, key: bytes) -> bytes | None:
        """Return the value at `key`, or None if it is missing or cannot be read."""
        try:
            return self.get(key)
        except CorruptionError:
            return None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with translated(self.name):
            found: list[bytes | None] = self._open_rows().get(list(keys))  # type: ignore[assignment]
        return found

    def scan(
        self, start: bytes, end: bytes, limit: int = SCAN_ROWS, bytes_max: int = SCAN_BYTES
    ) -> list[tuple[bytes, bytes]]:
        """Return rows with `start` <= key < `end`, ascending, at most `limit`.

        Stops when their values add up to `bytes_max`.
        """
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        found: list[tuple[bytes, bytes]] = []
        size_bytes = 0
        if limit <= 0:
            return found
        with translated(self.name):
            rows = self._open_rows().iter(options)
            try:
                rows.seek(start)
                valid, key_of, value_of, step = rows.valid, rows.key, rows.value, rows.next
                while valid():
                    value = value_of()
                    found.append((key_of(), value))
                    size_bytes += len(value)
                    if len(found) == limit or size_bytes >= bytes_max:
                        return found
                    step()
                rows.status()
            finally:
                # If a caller keeps an error, these variables would keep the iterator alive.
                del rows, valid, key_of, value_of, step
        return found

    def visit(self, ranges: Sequence[tuple[bytes, bytes]], take: Visit) -> None:
        """Call `take` for each row of each range, from its first key to before its second.

        One iterator reads all ranges, as it takes longer to make than most of them to read.
        """
        if ranges:
            self.look([max([end for _, end in ranges])], partial(visit, ranges, take))

    def look(self, ends: Sequence[bytes], search: Callable[[list[Cursor]], Found]) -> Found:
        """Return what `search` finds, as `flowguard.stores.log.rows.LogRows`."""
        bounds = [ReadOptions() for _ in ends]
        for options, end in zip(bounds, ends, strict=True):
            options.set_iterate_upper_bound(end)
        with translated(self.name):
            cursors: list[Cursor] = [self._open_rows().iter(options) for options in bounds]
            try:
                found = search(cursors)
                for number in range(len(cursors)):
                    cursors[number].status()
            finally:
                cursors.clear()  # If a caller keeps an error, it would keep them alive.
        return found

    @property
    def size_bytes(self) -> int:
        """Size of its tables, blob files and rows in memory, in bytes."""
        with translated():
            sizes = [self._open_rows().property_int_value(name) or 0 for name in STORED]
        return sum(sizes) + self.buffered_bytes()

    def rows(
        self, start: bytes = b"", end: bytes = KEYS_END, limit: int = SCAN_ROWS
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield all rows with `start` <= key < `end`, ascending, read in portions of `limit`."""
        while rows := self.scan(start, end, limit):
            yield from rows
            start = rows[-1][0] + b"\0"

    @property
    def rows_estimate(self) -> int:
        with translated():
            return self._open_rows().property_int_value("rocksdb.estimate-num-keys") or 0

    def flush(self, *, bytes_max: int | None = None) -> int:
        """Write the rows in memory as a table. Return their size. With `bytes_max`, only begin, and
        only if they are not larger."""
        size_bytes = self.buffered_bytes()
        with translated():
            if bytes_max is None or size_bytes <= bytes_max:
                self._open_rows().flush(bytes_max is None)
        return size_bytes

    def buffered_bytes(self) -> int:
        """Return the size in bytes of the rows that are in no table yet."""
        with translated():
            return 0 if self._rows is None else self._rows.property_int_value(BUFFERED) or 0

    def change(self, options: dict[str, str]) -> None:
        with translated():
            self._open_rows().set_options(options)

    def compact(self) -> None:
        """Rewrite all tables, without deleted rows; takes long."""
        options = CompactOptions()
        options.set_bottommost_level_compaction(BottommostLevelCompaction.force_optimized())
        with translated():
            self._open_rows().compact_range(None, None, options)


_open_here: Final[set[Path]] = set()


@final
class RocksEngine:
    def __init__(
        self,
        folder: Path,
        settings: StoreSettings,
        *,
        read_only: bool = False,
        bulk: bool = False,
        family: Callable[[str], Family] = Family,
    ) -> None:
        """Open the database, and create it if it is missing. Raises `StoreError`.

        `read_only`: change nothing, and do not lock the directory. `bulk`: writes wait for RocksDB,
        and are on disk only after `flush`. `family` creates the objects to read from.
        """
        self._folder = folder
        self._read_only = read_only
        self._settings = settings
        self._syncs = settings.durability == "fsync"
        self._cache = Cache(settings.cache_bytes)
        self._patient = WriteOptions()
        self._impatient = WriteOptions()
        self._impatient.no_slowdown = True
        if bulk:
            self._patient.disable_wal = True  # type: ignore[method-assign,assignment]
            self._impatient = self._patient
        self._db: Rdict | None = None
        self.must_reopen = False
        """True if a change failed without space or descriptors; all others fail until `reopen`."""
        self.saves_space = False
        self._synced: Synced | None = None
        self._family = family
        self.meta, self.queues, self.payloads, self.own, self.retained = map(family, FAMILIES)
        self.slices: dict[int, Family] = {}
        """Families of the durable log, by number."""
        if not read_only:
            self._check_log()
        self._open()

    def _check_log(self) -> None:
        """Check the log before opening for writes, which replaces it by its intact part."""
        if not read_synced(self._folder):
            return
        try:
            before = RocksEngine(self._folder, self._settings, read_only=True)
        except StoreError:
            return  # Opening for writes will raise the same error.
        try:
            before.require_log()
        finally:
            before.close()

    def require_log(self) -> None:
        """Raises `CorruptionError` if synced writes are missing."""
        if self.lost_count:
            raise CorruptionError(
                f"the log of writes in {self._folder} is damaged: the last {self.lost_count:,} "
                "changes that were stored cannot be read"
            )

    @property
    def lost_count(self) -> int:
        """Number of changes that were on disk and are missing."""
        with translated():
            last = self._open_db().latest_sequence_number()
            return max(0, read_synced(self._folder) - last)

    @property
    def families(self) -> tuple[Family, ...]:
        known = self.meta, self.queues, self.payloads, self.own, self.retained
        return (*known, *self.slices.values())

    def add_slice(self, number: int) -> Family:
        """Return a family of the durable log, and create it if missing. Raises `StoreError`."""
        family = self.slices.get(number)
        if family is None:
            family = self._family(f"{SLICE}{number:08x}")
            with self._changing():
                family.attach(
                    self._open_db().create_column_family(family.name, self._options(family.name)),
                    self._open_db().get_column_family_handle(family.name),
                )
            self.slices[number] = family
        return family

    def drop_slice(self, number: int) -> None:
        """Drop a family of the durable log with all its rows, if it exists."""
        family = self.slices.get(number)
        if family is not None:
            family.detach()
            with self._changing():
                self._open_db().drop_column_family(family.name)
            del self.slices[number]

    def _open(self) -> None:
        options = self._options()
        access = AccessType.read_only() if self._read_only else AccessType.read_write()
        options.create_if_missing(not self._read_only)
        options.create_missing_column_families(not self._read_only)
        families = {name: self._options(name) for name in FAMILIES[1:]}
        with translated():
            if (self._folder / "CURRENT").exists():
                for name in Rdict.list_cf(str(self._folder), Options(raw_mode=True)):
                    if is_slice(name):
                        families[name] = self._options(name)
                        number = int(name.removeprefix(SLICE), 16)
                        self.slices[number] = self.slices.get(number) or self._family(name)
            db = Rdict(str(self._folder), options, column_families=families, access_type=access)
            for family in self.families:
                rows = db if family is self.meta else db.get_column_family(family.name)
                family.attach(rows, db.get_column_family_handle(family.name))
            if not self._read_only:
                self._synced = Synced(self._folder)
        self._db = db
        if not self._read_only:
            named_give_way(THREADS)
            _open_here.add(self._folder.resolve())

    def _options(self, family: str = "default") -> Options:
        settings = self._settings
        options = Options(raw_mode=True)
        options.set_write_buffer_size(settings.write_buffer_bytes)
        options.set_max_write_buffer_number(3 if family == "q" else 2)
        options.set_arena_block_size(ARENA_BYTES)
        options.set_level_zero_file_num_compaction_trigger(1 if self.saves_space else TABLES_MERGED)
        options.set_level_zero_slowdown_writes_trigger(TABLES_DELAY)
        options.set_level_zero_stop_writes_trigger(TABLES_STOP)
        table = BlockBasedOptions()
        table.set_block_cache(self._cache)
        table.set_block_size(BLOCK_BYTES)
        options.set_block_based_table_factory(table)
        none, lz4 = DBCompressionType.none(), DBCompressionType.lz4()
        options.set_compression_per_level([none, none, lz4, lz4, lz4, lz4, lz4])
        if family in ("q", "p", "r") or is_slice(family):
            options.set_enable_blob_files(True)
            options.set_min_blob_size(settings.blob_bytes_min)
            options.set_enable_blob_gc(not self.saves_space)
        if family in ("q", "s"):
            # Rows are deleted soon, so tables full of tombstones are compacted early.
            options.add_compact_on_deletion_collector_factory(128, 64, 0.5)
        # The following options are those of the database; RocksDB ignores them in families.
        options.set_max_background_jobs(settings.background_jobs)
        options.set_db_write_buffer_size(4 * settings.write_buffer_bytes)
        options.set_max_total_wal_size(settings.wal_bytes_max)
        options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
        options.set_max_open_files(settings.open_files_max)
        options.set_keep_log_file_num(2)
        options.set_max_log_file_size(LOG_BYTES)
        options.set_stats_dump_period_sec(0)
        options.set_stats_persist_period_sec(0)
        return options

    def _open_db(self) -> Rdict:
        if self._db is None:
            raise StoreError(f"{self._folder} is closed")
        return self._db

    @property
    def is_open(self) -> bool:
        """True if it is open; False after `close` or a failed `reopen`."""
        return self._db is not None

    @property
    def is_empty(self) -> bool:
        """True if no family has a row."""
        return not any(family.scan(b"", KEYS_END, 1) for family in self.families)

    def batch(self) -> EngineBatch:
        return WriteBatch(raw_mode=True)

    def write(self, batch: EngineBatch, *, sync: bool = True, wait: bool = False) -> None:
        """Apply the batch, and sync it if `sync` and if fsync is configured.

        `wait`: wait during a stall, which blocks the whole process; only if it serves no client.

        Raises `StallError` (nothing was written), `NoSpaceError` and `DescriptorsError` (nothing is
        written before `reopen`), `SyncError` (the batch was written and may be lost), `StoreError`.
        """
        with self._changing():
            if self._synced is not None:
                self._synced.wait_for_disk()
            self._open_db().write(batch, self._patient if wait else self._impatient)  # type: ignore[arg-type]
        if sync and self._syncs:
            self.sync()
        self.require_folder()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Translate errors of a change; see `must_reopen`."""
        try:
            with translated():
                yield
        except REPEATED:
            self.must_reopen = True
            raise

    def require_folder(self) -> None:
        """Raises `RemovedError` if the folder was removed; its open files still accept writes."""
        if self._synced is not None and self._synced.is_removed:
            raise RemovedError(f"{self._folder} was removed while it was in use")

    def sync(self) -> None:
        """Make all writes durable; releases the GIL. Raises `SyncError`."""
        try:
            db = self._open_db()
            number = db.latest_sequence_number()
            db.flush_wal(True)
        except Exception as error:
            raise SyncError(f"the disk failed to sync: {error}") from error
        if self._synced is not None:
            self._synced.note(number)

    def state(self) -> StoreState:
        """Return whether RocksDB delays or stops writes; cheap."""
        with translated():
            db = self._open_db()
            if db.property_int_value("rocksdb.is-write-stopped"):
                return StoreState.STOPPED
            if db.property_int_value("rocksdb.actual-delayed-write-rate"):
                return StoreState.DELAYED
        return StoreState.FLOWING

    def checkpoint(self, folder: Path) -> None:
        """Copy the written data to a new folder, with hard links if possible.

        Raises `StoreError`.
        """
        with translated():
            Checkpoint(self._open_db()).create_checkpoint(str(folder))

    def flush(self) -> None:
        """Write all rows in memory as tables, so that the log is short."""
        for family in self.families:
            family.flush()

    def reopen(self) -> None:
        """Reopen, since RocksDB repeats some errors for ever. Raises `StoreError`."""
        self.close()
        self._open()
        self.must_reopen = False

    def close(self) -> None:
        """Release the directory; calling it again does nothing.

        Dropping the last reference closes the database, and writes tables if possible. rocksdict's
        own `close` requires the latter, and keeps the lock while any handle is alive.
        """
        for family in self.families:
            family.detach()
        self._db = None
        if self._synced is not None:
            self._synced.close()
            self._synced = None
        if not self._read_only:
            _open_here.discard(self._folder.resolve())


def is_slice(name: str) -> bool:
    return name.startswith(SLICE)


def is_open_here(folder: Path) -> bool:
    """Return True if this process has it open for writes; a file lock does not show that."""
    return folder.resolve() in _open_here


def families_in(folder: Path) -> list[str]:
    """Return the names of families in an existing database. Raises `StoreError`."""
    check_logs(folder)
    with translated():
        return Rdict.list_cf(str(folder), Options(raw_mode=True))


def repair(folder: Path) -> None:
    """Create a new MANIFEST; move bad tables and all logs to `folder/lost`. Raises `StoreError`."""
    with translated():
        Rdict.repair(str(folder), Options(raw_mode=True))
