"""`RocksStore`: the store contract on RocksDB."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, final

from flowguard.config import StoreSettings
from flowguard.errors import LockedError, NotNowError, StallError, StoreError
from flowguard.flow.load.signals import StoreState
from flowguard.records import Durability, QueueEntry, SessionRecord, StoreOp
from flowguard.stores.base import FETCH_BYTES, NOT_FENCED, POS_MAX, Fenced, StoreLoad
from flowguard.stores.clock import StoreClock
from flowguard.stores.log.generations import Retention
from flowguard.stores.log.message_log import MessageLog
from flowguard.stores.log.replays import LogBatch, read_next
from flowguard.stores.log.shared_reads import SharedReads
from flowguard.stores.rocks import format
from flowguard.stores.rocks.building import Builder
from flowguard.stores.rocks.clock import UidClock
from flowguard.stores.rocks.copying import published
from flowguard.stores.rocks.database.engine import KEYS_END, RocksEngine
from flowguard.stores.rocks.disk import DiskSpace, free_bytes_of
from flowguard.stores.rocks.giving_back import GivingBack
from flowguard.stores.rocks.identity import mark_as_copy, open_identity
from flowguard.stores.rocks.layouts import keys
from flowguard.stores.rocks.layouts.payloads import Payloads
from flowguard.stores.rocks.layouts.queue import Draft, Queue
from flowguard.stores.rocks.layouts.session_codec import decode_retained
from flowguard.stores.rocks.layouts.window import WindowQueue
from flowguard.stores.rocks.log_home import RocksLogHome
from flowguard.stores.rocks.pending import QUIET_STEPS, TURNS, PendingRecords
from flowguard.stores.rocks.sessions import Sessions
from flowguard.stores.rocks.sweep import Sweep
from flowguard.types import Publish

LAYOUTS: Final = ("window", "status")
LOOK_SLICES: Final = 64
"""Number of slices of maintenance per check of the files, which may be hundreds."""
GIVE_BACK_SLICES: Final = 8
"""Number of slices of maintenance per step of `GivingBack`."""
CLOSE_QUEUES: Final = 1_024
"""Number of records in one batch while closing."""


def queues_of(layout: str) -> Callable[[int], Queue]:
    """Return the queue class of `layout`; `status`, for comparison, is imported only if needed."""
    if layout == "window":
        return WindowQueue
    from flowguard.stores.rocks.layouts.status import StatusQueue

    assert layout == "status"
    return StatusQueue


@final
class RocksStore:
    """One directory, open in one process. Call everything but `load` from one thread at a time."""

    immediate: bool = False
    on_disk: bool = True
    upkeep_ticks: int = 5
    lease_s: float | None = None

    def __init__(
        self,
        folder: Path,
        settings: StoreSettings,
        *,
        wall_s: Callable[[], float],
        random_node: Callable[[], int],
        free_bytes: Callable[[Path], int] = free_bytes_of,
        monotonic_s: Callable[[], float] | None = None,
    ) -> None:
        """Open `folder`, and create a store there if it is empty or missing.

        `wall_s` reads the wall clock, which must not jump if `monotonic_s` is None. `random_node`
        draws 32 bits, once per directory. Raises `FormatError`, `LockedError`, `CorruptionError`
        and other `StoreError`.
        """
        self.durability = Durability[settings.durability.upper()]
        self._folder = folder
        format.check_folder(folder)
        try:
            self._engine = RocksEngine(folder, settings)
        except LockedError as error:
            raise format.locked(folder) from error
        try:
            self._clock: StoreClock | None = None
            self.clock: Callable[[], float] | None = None
            if monotonic_s is not None:
                pair = self._engine.meta.get(keys.CLOCK_KEY)
                self._clock = StoreClock(pair, wall_s, monotonic_s)
                wall_s = self.clock = self._clock.now_s
            self._restore(settings, wall_s, random_node, free_bytes)
        except BaseException:
            self._engine.close()
            raise

    def _restore(
        self,
        settings: StoreSettings,
        wall_s: Callable[[], float],
        random_node: Callable[[], int],
        free_bytes: Callable[[Path], int],
    ) -> None:
        engine, folder = self._engine, self._folder
        self._disk = DiskSpace(
            folder,
            settings.disk_reserve_bytes,
            settings.write_buffer_bytes,
            free_bytes,
            lambda: sum(family.buffered_bytes() for family in engine.families),
        )
        self._giving_back = GivingBack(engine, self._disk)
        record = format.check_record(engine, folder, settings.layout)
        format.hold(folder, wall_s())
        clean = engine.meta.get(keys.CLEAN_KEY) is not None
        batch = engine.batch()
        if record is not None:
            batch.put(keys.FORMAT_KEY, record, engine.meta.handle)
        batch.delete(keys.CLEAN_KEY, engine.meta.handle)
        engine.write(batch, wait=True)
        identity = open_identity(engine, folder, random_node)
        node, last = int.from_bytes(identity.node, "big"), int.from_bytes(identity.hlc, "big")
        clock = UidClock(node, last, wall_s)
        self._sessions = Sessions(engine, queues_of(settings.layout))
        self._sessions.restore(clean=clean)
        for key, _ in engine.meta.scan(keys.SWEEP, keys.SWEEP_END, 2**40):
            self._sessions.dropped[keys.qno_of_sweep(key)] = None
        shares = bool(engine.payloads.scan(b"", KEYS_END, 1))
        self._payloads = Payloads(is_complete=not shares)
        self._sweep = Sweep(engine, self._sessions, self._payloads)
        self._wall_s = wall_s
        self.log = MessageLog(
            RocksLogHome(engine),
            high=clock.written,
            layout=settings.log_layout,
            shards=settings.log_shards,
            retention=Retention(settings.log_retention_s, settings.log_bytes_max),
        )
        """The durable log; `read_log` reads it."""
        self._shared_reads = SharedReads(self.log)
        self._pending = PendingRecords()
        for queue in self._sessions.queues.values():
            self._pending.recorded(queue)
        self._builder = Builder(
            engine, self._sessions, self._payloads, self._pending, clock, self.log
        )
        self._state = StoreState.FLOWING
        self._failed = False
        self._slices = 0
        self._disk.measure()

    # --- writing ------------------------------------------------------------------------------

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        """Commit, as `Store.commit`; a `StallError` has changed nothing, either."""
        if self._failed:
            raise StoreError(
                f"{self._folder} has failed before; restart the broker to read its state"
            )
        self._disk.admit(ops)
        if self._engine.must_reopen:
            self._reopen()
        with self._batch() as work:
            for _ in self._builder.build(work, ops):
                # Release the GIL, which neither compiled code nor a write does.
                time.sleep(0)  # noqa: TID251
            self._write(work, sync=work.must_sync)
        self._state = self._engine.state()
        return NOT_FENCED

    @contextmanager
    def _batch(self) -> Iterator[Draft]:
        """Yield a batch that the body writes, then apply it. If the body fails, nothing changes."""
        work = self._builder.work()
        try:
            yield work
        except NotNowError:
            self._builder.take_back(work)
            raise
        except BaseException:
            self._failed = True
            raise
        try:
            self._builder.apply(work)
        except BaseException:
            self._failed = True
            raise

    def _write(self, work: Draft, *, sync: bool) -> None:
        if work.batch.is_empty():
            return
        size_bytes = work.batch.size_in_bytes()
        try:
            self._engine.write(work.batch, sync=sync)
        except StallError:
            self._state = StoreState.STOPPED
            raise
        self._disk.wrote(size_bytes)

    def _reopen(self) -> None:
        """Reopen, since RocksDB repeats an error of missing space or descriptors for ever.

        Opening needs space, too. Until there is some, the store stays open for reads."""
        if self._engine.is_open:
            self._disk.look()
            self._disk.admit_opening()
        self._engine.reopen()

    def maintain(self) -> bool:
        """Do a slice, as `Store.maintain`; does nothing without space or in a stall."""
        if self._failed:
            return False
        self._look_around()
        try:
            if self._engine.must_reopen:
                self._reopen()
            if self._slices % GIVE_BACK_SLICES == 0:
                self._giving_back.step()
            self._store_clock()
            if self.log.maintain(self._wall_s()):
                return True
            if self._sweep.is_done and self._pending.is_empty:
                return False
            self._step(sweep=True)
        except NotNowError:
            return False
        return True

    def _store_clock(self) -> None:
        """Store the times of the store's clock and of the wall clock when that is due."""
        clock = self._clock
        if clock is not None and (pair := clock.due()) is not None:
            batch = self._engine.batch()
            batch.put(keys.CLOCK_KEY, pair, self._engine.meta.handle)
            with suppress(NotNowError):  # It stays due until it is stored.
                self._engine.write(batch, sync=False)
                clock.stored(pair)

    def _step(self, *, sweep: bool) -> None:
        """Write due records and other deferrable work, without a sync."""
        with self._batch() as work:
            if sweep:
                self._sweep.step(work)
            quiet_steps = 0 if self._disk.is_full else QUIET_STEPS
            tidy = self._pending.quiet(quiet_steps) if sweep else ()
            self._builder.finish(work, tidy=tidy)
            self._write(work, sync=False)

    def _look_around(self) -> None:
        self._engine.require_folder()
        self._disk.look()
        if not self._engine.must_reopen:
            self._state = self._engine.state()
        self._slices += 1
        if self._slices % LOOK_SLICES == 0:
            # Without a free descriptor the previous value is good enough.
            with suppress(OSError):
                self._disk.measure()

    # --- reading ------------------------------------------------------------------------------

    def sessions(self) -> Iterator[SessionRecord]:
        return self._sessions.records()

    def retained(self) -> Iterator[tuple[Publish, float]]:
        for _, value in self._engine.retained.rows():
            yield decode_retained(value)

    def fetch(
        self,
        client_id: str,
        after_pos: int,
        limit: int,
        *,
        until_pos: int = POS_MAX,
        bytes_max: int = FETCH_BYTES,
    ) -> list[QueueEntry]:
        queue = self._sessions.queues.get(client_id)
        if queue is None or not queue.count:
            return []
        if not self._engine.is_open:
            self._reopen()
        return queue.fetch(self._engine, after_pos, limit, until_pos, bytes_max)

    def read_log(
        self,
        client_id: str,
        filters: Sequence[str],
        count_max: int,
        bytes_max: int,
        place: bytes = b"",
    ) -> LogBatch:
        if not self._engine.is_open:
            self._reopen()
        sessions = self._sessions
        if not place:
            place, starts = sessions.log_place(client_id), sessions.log_starts(client_id)
            if starts or not place:
                return read_next(self.log, place, starts, filters, count_max, bytes_max)
        return self._shared_reads.read(place, filters, count_max, bytes_max)

    def load(self) -> StoreLoad:
        disk = self._disk
        read_only = disk.is_full or self._engine.must_reopen
        return StoreLoad(
            self._state, disk.used_bytes, disk.free_bytes, read_only, disk.reserve_bytes
        )

    # --- the whole ----------------------------------------------------------------------------

    def backup(self, folder: Path) -> None:
        """Copy the store, as `Store.backup`, with hard links in `folder`, which must be on the same
        file system. On another one all commits would wait until all bytes are copied."""
        try:
            if folder.parent.stat().st_dev != self._folder.stat().st_dev:
                raise StoreError(
                    f"{folder} is not on the file system of {self._folder}; "
                    "make the backup there, and copy it then"
                )
            with published(folder, self._folder) as unfinished:
                for _ in range(TURNS):
                    self._step(sweep=False)
                self._sync()
                self._engine.checkpoint(unfinished)
                mark_as_copy(unfinished, self._folder)
        except OSError as error:
            raise StoreError(f"{error.filename} cannot be written: {error.strerror}") from error
        except ValueError as error:
            raise StoreError(f"{str(folder)!r} names no folder: {error}") from error

    def _sync(self) -> None:
        try:
            self._engine.sync()
        except StoreError:
            self._failed = True
            raise

    def close(self) -> None:
        """Write deferred records, so that the next start need not restore them.

        Without space they are not written, and the next start restores them; no data is lost.
        """
        if not self._engine.is_open:
            return
        try:
            if not self._failed:
                self._write_all()
        except NotNowError:
            pass
        finally:
            format.let_go(self._folder)
            self._engine.close()

    def _write_all(self) -> None:
        engine = self._engine
        queues = [queue for queue in self._sessions.queues.values() if queue.needs_record]
        for start in range(0, len(queues), CLOSE_QUEUES):
            work = self._builder.work()
            for queue in queues[start : start + CLOSE_QUEUES]:
                queue.write_record(work, last=True)
            self._payloads.delete_forgotten(work)
            engine.write(work.batch, sync=False, wait=True)
            self._payloads.forget(work)
        batch = engine.batch()
        batch.put(keys.CLEAN_KEY, b"", engine.meta.handle)
        engine.write(batch, sync=False, wait=True)
        engine.sync()
