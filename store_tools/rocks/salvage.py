"""Salvage: copies the readable rest of a damaged store to a new one, without changing the old one.

Losses are listed and counted. Settled entries are sent again if the store had not recorded that
before the damage, as after a crash. The new store is not a copy of the old one: do not merge it.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from flowguard import records
from flowguard.errors import CorruptionError, FormatError, LockedError, StoreError
from flowguard.lines import count
from flowguard.stores.base import FETCH_BYTES, POS_MAX
from flowguard.stores.rocks.copying import published
from flowguard.stores.rocks.database.engine import SCAN_ROWS, RocksEngine
from flowguard.stores.rocks.identity import mark_as_part
from flowguard.stores.rocks.layouts import keys
from flowguard.stores.rocks.layouts.queue import Queue
from flowguard.stores.rocks.layouts.session_codec import (
    decode_retained,
    decode_session,
    is_applications,
    session_user,
)
from flowguard.stores.rocks.store import RocksStore
from flowguard.types import Publish
from store_tools.rocks.reader import SETTINGS, Findings, StoredSession, StoreReader
from store_tools.rocks.repair import with_current, without_manifest

BATCH_OPS: Final = 500


@dataclass(slots=True)
class Salvage(Findings):
    """Counts of saved and lost data."""

    lost_entries: int = 0
    """Number of lost entries of queues with a known owner."""
    lost_queues: int = 0
    """Number of lost queues without a known owner: the session's own row could not be read."""

    def add(self, other: "Salvage", name: str) -> None:
        """Add the counts and problems of the store `name`."""
        self.sessions += other.sessions
        self.groups += other.groups
        self.entries += other.entries
        self.retained += other.retained
        self.lost_entries += other.lost_entries
        self.lost_queues += other.lost_queues
        for problem in other.problems:
            self.wrong(f"{name}: {problem}")
        self.problems_count += other.problems_count - len(other.problems)


def salvage(
    folder: Path,
    out: Path,
    *,
    wall_s: Callable[[], float],
    random_node: Callable[[], int],
    progress: Callable[[int, int], None],
) -> Salvage:
    """Copy the readable rest of `folder` to `out`, which must be new. Raises `StoreError`."""
    with _readable(folder) as reader, published(out) as unfinished:
        settings = SETTINGS.model_copy(update={"layout": reader.format.layout})

        def opened() -> RocksStore:
            return RocksStore(unfinished, settings, wall_s=wall_s, random_node=random_node)

        opened().close()
        mark_as_part(unfinished, folder)
        _copy_payloads(reader, unfinished)
        with closing(opened()) as store:
            return _Saving(reader, store, progress).run()


@contextmanager
def _readable(folder: Path) -> Iterator[StoreReader]:
    """Yield the store, or a repaired copy if it cannot be opened."""
    with ExitStack() as stack:
        try:
            reader = StoreReader(folder, tolerant=True)
        except LockedError:
            raise
        except StoreError as error:
            is_headless = not (folder / "CURRENT").exists() and any(folder.glob("MANIFEST-*"))
            if isinstance(error, FormatError) and not is_headless:
                raise
            reader = _reopened(folder, error, stack)
        yield stack.enter_context(reader)


def _reopened(folder: Path, why: StoreError, stack: ExitStack) -> StoreReader:
    """Return a reader of a copy with the latest MANIFEST, or with all tables if that fails."""
    with suppress(StoreError), ExitStack() as trial:
        known = f"CURRENT did not name its MANIFEST, the latest one was read: {why}"
        copy = trial.enter_context(with_current(folder))
        reader = StoreReader(copy, tolerant=True, damage=[known])
        stack.push(trial.pop_all())
        return reader
    copy, left_out = stack.enter_context(without_manifest(folder))
    known = (
        f"{str(why).rstrip('.')}. All existing tables were read instead: deleted entries may be "
        "back, the latest ones may be missing, and large messages are missing "
        "(store.blob_bytes_min)"
    )
    damage = [known, *[f"{name} is left out: it cannot be read" for name in left_out]]
    return StoreReader(copy, tolerant=True, damage=damage)


def _copy_payloads(reader: StoreReader, out: Path) -> None:
    """Copy the clock, and shared messages with their uids. The store deletes unreferenced ones."""
    with closing(RocksEngine(out, SETTINGS)) as engine:
        with suppress(StoreError):
            pair = reader.engine.meta.get(keys.CLOCK_KEY)
            if pair is not None:
                batch = engine.batch()
                batch.put(keys.CLOCK_KEY, pair, engine.meta.handle)
                engine.write(batch, wait=True)
        for place, row in reader.engine.payloads.rows():
            batch = engine.batch()
            batch.put(place, row, engine.payloads.handle)
            engine.write(batch, wait=True)


@final
class _Saving:
    def __init__(
        self, reader: StoreReader, store: RocksStore, progress: Callable[[int, int], None]
    ) -> None:
        self._reader = reader
        self._store = store
        self._progress = progress
        self._estimate = reader.engine.queues.rows_estimate
        self._found = Salvage()
        self._numbers = set(reader.dropped())

    def run(self) -> Salvage:
        for client_id, row in self._reader.rows():
            try:
                session = self._reader.session(client_id, row)
                self._numbers.add(session.queue.qno)
                self._save_session(session)
            except CorruptionError as error:
                self._found.wrong(str(error))
        self._count_lost_queues()
        for key, row in self._reader.engine.retained.rows():
            try:
                message, expires_at_s = decode_retained(row)
            except CorruptionError as error:
                self._found.wrong(f"retained message {key.decode(errors='replace')!r}: {error}")
                continue
            self._store.commit([records.PutRetained(message, expires_at_s)])
            self._found.retained += 1
        if self._reader.engine.slices:
            self._found.wrong("the durable log is left behind: what only it held is not saved")
        for damage in self._reader.damage:
            self._found.wrong(damage)
        return self._found

    def _save_session(self, session: StoredSession) -> None:
        found, client_id, queue = self._found, session.client_id, session.queue
        _, expiry_interval_s, ends_at_s = decode_session(session.row)
        put = records.PutSession(
            client_id,
            expiry_interval_s,
            ends_at_s,
            is_applications(session.row),
            session_user(session.row),
        )
        ops: list[records.StoreOp] = [put]
        try:
            ops += _own_ops(self._reader.record(session))
        except CorruptionError as error:
            self._found.wrong(f"{error}; its subscriptions and its will are not saved")
        found.count_owner(client_id)
        count = 0
        last_pos = 0
        for entry in _entries(self._reader, queue):
            ops += _entry_ops(client_id, entry)
            count += 1
            last_pos = entry.pos
            if len(ops) >= BATCH_OPS:
                self._store.commit(ops)
                ops = []
                self._progress(found.entries + count, max(found.entries + count, self._estimate))
        if last_pos < queue.next_pos - 1:
            # Keep the next position, and so the next packet identifier.
            ops += [
                records.Append(client_id, queue.next_pos - 1, _nothing()),
                records.Settle(client_id, queue.next_pos - 1),
            ]
        ops.append(records.Sent(client_id, queue.sent_pos))
        self._store.commit(ops)
        found.entries += count
        if count < queue.count:
            found.lost_entries += queue.count - count
            self._found.wrong(
                f"{records.owner_name(client_id)}: {queue.count - count:,} of "
                f"{queue.count:,} messages in its queue cannot be read"
            )

    def _count_lost_queues(self) -> None:
        numbers = {int.from_bytes(key[:8], "big") for key, _ in self._reader.engine.queues.rows()}
        self._found.lost_queues = len(numbers - self._numbers)
        if self._found.lost_queues:
            self._found.wrong(
                f"{count(self._found.lost_queues, 'queue')}: their owners cannot be read"
            )


def _own_ops(record: records.SessionRecord) -> Iterator[records.StoreOp]:
    client_id = record.client_id
    for filter, options in record.subscriptions.items():
        after = record.retained_after.get(filter)
        yield records.PutSubscription(client_id, filter, options, after)
    for packet_id in record.inbound_ids:
        yield records.PutInbound(client_id, packet_id)
    if record.will is not None:
        yield records.PutWill(client_id, record.will)


def _entry_ops(client_id: str, entry: records.QueueEntry) -> Iterator[records.StoreOp]:
    if entry.delivery is not None:
        yield records.Append(client_id, entry.pos, entry.delivery)
        return
    delivery = _nothing()
    yield records.Append(client_id, entry.pos, delivery)
    yield records.Release(client_id, entry.pos, entry.packet_id, delivery)


def _nothing() -> records.Delivery:
    """Return a placeholder for a message that is not needed any more."""
    return records.Delivery(Publish("", b"", 2), 2, False, (), records.NEVER_S)


def _entries(reader: StoreReader, queue: Queue) -> Iterator[records.QueueEntry]:
    """Yield the readable entries of a queue. `TolerantFamily` has skipped unreadable rows, but a
    readable row may have a damaged message."""
    after = 0
    while after < queue.next_pos:
        try:
            page = queue.fetch(reader.engine, after, SCAN_ROWS, POS_MAX - 1, FETCH_BYTES)
            if not page:
                return
            after = page[-1].pos
        except CorruptionError:
            page = []
            for pos in range(after + 1, after + 1 + SCAN_ROWS):
                page += _entry(reader, queue, pos)
            after += SCAN_ROWS
        yield from page


def _entry(reader: StoreReader, queue: Queue, pos: int) -> list[records.QueueEntry]:
    try:
        return queue.fetch(reader.engine, pos - 1, 1, pos, FETCH_BYTES)
    except CorruptionError:
        return []
