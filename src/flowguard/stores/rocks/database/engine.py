"""RocksDB, as this store uses it: bytes in, bytes out, errors of ours.

The only file that imports rocksdict. Rules that its users can rely on:

* A write never waits for RocksDB: where it would, it raises `StallError`. rocksdict holds the GIL
  while it writes, also during a stall; only `flush_wal` does not. `wait_for_disk` comes before it.
* Every scan has an upper bound and ends inside one call: a live iterator keeps the directory locked
  after `close`. rocksdict's lower bound overwrites the upper one, so there is none.
* A scan that fails in the middle raises: such an iterator is not valid any more, like one at its
  end, and only its status tells them apart.
* What was synced is there when it is opened again, or opening raises (`synced`).
* A family is one object for the life of the engine; `reopen` gives it a new handle.
* An error keeps the frames that it passed, and whoever keeps the error keeps what they refer to: no
  frame that an error of RocksDB passes has a database, an iterator or a handle in a variable.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol, final

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
from flowguard.stores.log.rows import Cursor, Found, Search
from flowguard.stores.rocks.database.driver_errors import CONTENT, REPEATED, translated
from flowguard.stores.rocks.database.log_files import check_logs
from flowguard.stores.rocks.database.synced import Synced, read_synced

FAMILIES: Final = tuple(CONTENT)
KEYS_END: Final = b"\xff" * 16
"""A key beyond all that a family has."""
SCAN_ROWS: Final = 256
SCAN_BYTES: Final = MIB
BLOCK_BYTES: Final = 16 * 1024
ARENA_BYTES: Final = 64 * 1024
"""Size of the blocks of a write buffer, small enough that malloc gives the same pages again."""
TABLES_MERGED: Final = 16
"""Young tables that are merged at once: by then most of their rows have been settled."""
TABLES_DELAY: Final = 40
TABLES_STOP: Final = 64
"""Young tables that slow writes down, and stop them."""
LOG_BYTES: Final = MIB
THREADS: Final = "rocksdb:"
"""Beginning of the names of the threads that write tables and merge them; engines share them."""
SLICE: Final = "log."
"""Beginning of the names of the durable log's families; the number follows, eight hex digits."""
STORED: Final = "rocksdb.live-sst-files-size", "rocksdb.live-blob-file-size"
BUFFERED: Final = "rocksdb.cur-size-all-mem-tables"


class EngineBatch(Protocol):
    """Writes that happen together; `family` is a `Family.handle`."""

    def put(self, key: bytes, value: bytes, family: Any, /) -> None: ...

    def delete(self, key: bytes, family: Any, /) -> None: ...

    def delete_range(self, begin: bytes, end: bytes, family: Any, /) -> None: ...

    def size_in_bytes(self) -> int: ...

    def is_empty(self) -> bool: ...


class Family:
    """One column family: its reads, and the handle that a batch names it by."""

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
        """The value at `key`. Raises `CorruptionError`, as everything that reads."""
        with translated(self.name):
            found: bytes | None = self._open_rows().get(key)
        return found

    def get_readable(self, key: bytes) -> bytes | None:
        """The value at `key`, as by `get`; None also where it cannot be read."""
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
        """Rows with `start` <= key < `end`, ascending, at most `limit`.

        None further when their values add up to `bytes_max`.
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
                # An error that somebody keeps would keep it alive.
                del rows, valid, key_of, value_of, step
        return found

    def look(self, ends: Sequence[bytes], search: Search) -> Found:
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
                cursors.clear()  # An error that somebody keeps would keep them alive.
        return found

    @property
    def size_bytes(self) -> int:
        """The size of its tables, blob files and rows in memory, bytes."""
        with translated():
            sizes = [self._open_rows().property_int_value(name) or 0 for name in STORED]
        return sum(sizes) + self.buffered_bytes()

    def rows(
        self, start: bytes = b"", end: bytes = KEYS_END, limit: int = SCAN_ROWS
    ) -> Iterator[tuple[bytes, bytes]]:
        """All rows with `start` <= key < `end`, ascending, read in portions of `limit`."""
        while rows := self.scan(start, end, limit):
            yield from rows
            start = rows[-1][0] + b"\0"

    @property
    def rows_estimate(self) -> int:
        with translated():
            return self._open_rows().property_int_value("rocksdb.estimate-num-keys") or 0

    def flush(self, *, bytes_max: int | None = None) -> int:
        """Write the rows in memory as a table; with `bytes_max` begin, if they fit; their size."""
        size_bytes = self.buffered_bytes()
        with translated():
            if bytes_max is None or size_bytes <= bytes_max:
                self._open_rows().flush(bytes_max is None)
        return size_bytes

    def buffered_bytes(self) -> int:
        """Return the size of the rows that are in no table yet."""
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
        """Open it, and make it where there is none. Raises `StoreError`.

        `read_only`: nothing in it is changed, nobody is kept from opening it; `bulk`: writes
        wait for RocksDB, and are on the disk after `flush` only; `family` makes the objects to
        read from.
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
        """Whether a change found no space, or no descriptor: it takes none before `reopen`."""
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
        """Check the log before opening to write, which replaces it by its intact part."""
        if not read_synced(self._folder):
            return
        try:
            before = RocksEngine(self._folder, self._settings, read_only=True)
        except StoreError:
            return  # So will opening it to write, and say why.
        try:
            before.require_log()
        finally:
            before.close()

    def require_log(self) -> None:
        """Raise `CorruptionError` where writes are missing that were synced."""
        if self.lost_count:
            raise CorruptionError(
                f"the log of writes in {self._folder} is damaged: the last {self.lost_count:,} "
                "changes that were stored cannot be read"
            )

    @property
    def lost_count(self) -> int:
        """Changes that are known to have been on the disk and are missing."""
        with translated():
            last = self._open_db().latest_sequence_number()
            return max(0, read_synced(self._folder) - last)

    @property
    def families(self) -> tuple[Family, ...]:
        known = self.meta, self.queues, self.payloads, self.own, self.retained
        return (*known, *self.slices.values())

    def add_slice(self, number: int) -> Family:
        """Make a family of the durable log, unless it is there. Raises `StoreError`."""
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
        """Drop a family of the durable log with all its rows; nothing where there is none."""
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
            # Rows live shortly: tables full of tombstones are compacted early.
            options.add_compact_on_deletion_collector_factory(128, 64, 0.5)
        # What follows is of the database; the families' copies of it are not looked at.
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
        """Whether it is open: not after `close`, nor where `reopen` has failed."""
        return self._db is not None

    @property
    def is_empty(self) -> bool:
        """Whether no family holds anything."""
        return not any(family.scan(b"", KEYS_END, 1) for family in self.families)

    def batch(self) -> EngineBatch:
        return WriteBatch(raw_mode=True)

    def write(self, batch: EngineBatch, *, sync: bool = True, wait: bool = False) -> None:
        """Apply the batch, and sync it where the settings say so too.

        `wait`: through a stall, with the whole process; only if it serves no client.

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
        """Raises `RemovedError`: its open files would take writes all the same."""
        if self._synced is not None and self._synced.is_removed:
            raise RemovedError(f"{self._folder} was removed while it was in use")

    def sync(self) -> None:
        """Make everything written durable; releases the GIL. Raises `SyncError`."""
        try:
            db = self._open_db()
            number = db.latest_sequence_number()
            db.flush_wal(True)
        except Exception as error:
            raise SyncError(f"the disk failed to sync: {error}") from error
        if self._synced is not None:
            self._synced.note(number)

    def state(self) -> StoreState:
        """RocksDB's own state of its pace; cheap."""
        with translated():
            db = self._open_db()
            if db.property_int_value("rocksdb.is-write-stopped"):
                return StoreState.STOPPED
            if db.property_int_value("rocksdb.actual-delayed-write-rate"):
                return StoreState.DELAYED
        return StoreState.FLOWING

    def checkpoint(self, folder: Path) -> None:
        """Copy the written data to a folder that does not exist yet; hard links where possible.

        Raises `StoreError`.
        """
        with translated():
            Checkpoint(self._open_db()).create_checkpoint(str(folder))

    def flush(self) -> None:
        """Write all tables, so that the log is short."""
        for family in self.families:
            family.flush()

    def reopen(self) -> None:
        """Reopen, because RocksDB repeats some errors for ever. Raises `StoreError`."""
        self.close()
        self._open()
        self.must_reopen = False

    def close(self) -> None:
        """Release the directory; calling it again does nothing.

        Dropping the last reference closes it, and writes tables if it can. rocksdict's own
        `close` insists on the latter, and leaves the lock to any handle that is still alive.
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
    """Whether this process writes to it: the lock of a file tells its owner nothing."""
    return folder.resolve() in _open_here


def families_in(folder: Path) -> list[str]:
    """The names of families in an existing database. Raises `StoreError`."""
    check_logs(folder)
    with translated():
        return Rdict.list_cf(str(folder), Options(raw_mode=True))


def repair(folder: Path) -> None:
    """Make a new MANIFEST; bad tables and all logs go to `folder/lost`. Raises `StoreError`."""
    with translated():
        Rdict.repair(str(folder), Options(raw_mode=True))
