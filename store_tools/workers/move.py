"""Moves sessions to another number of workers, with new stores beside the old ones.

Each session moves, with its queue and positions, to its owner among the new workers. All new stores
get the retained messages, each from the owner of its topic. The queue of a shared subscription
moves to a worker with a member; queues of several workers become one. Messages that workers owe to
each other are delivered first (`store_tools.workers.owed`).

The old stores stay unchanged. The new ones get their name when they are complete and synced.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, final

from flowguard.app.stores import open_store
from flowguard.app.workers.data_folder import SINGLE_STORE_FILE, lock, stored_count, take
from flowguard.app.workers.seat import name_of
from flowguard.cli.settings import settings_of
from flowguard.cluster.members import owner_among
from flowguard.config import MIB
from flowguard.errors import StallError, StoreError
from flowguard.records import (
    Append,
    PutRetained,
    SessionRecord,
    SinkKind,
    StoreOp,
    message_bytes,
    owner_name,
    sink_of,
)
from flowguard.stores import Store
from flowguard.stores.base import session_ops
from flowguard.stores.durable_files import sync
from flowguard.stores.rocks.copying import published
from flowguard.stores.rocks.disk import free_bytes_of, used_bytes_of
from flowguard.types import Publish
from store_tools.command.info import size_text
from store_tools.transfer import (
    PAGE,
    Commit,
    Transferred,
    copy_of,
    copy_session,
    reject_log_reader,
)
from store_tools.workers.owed import deliver_owed, owed_count

STORE_BYTES: Final = 64 * MIB
"""Maximum disk space of a store besides its content: logs and unmerged tables."""
STALL_S: Final = 0.05
"""Pause before a retry if RocksDB stalls."""
DELIVERIES_MAX: Final = 10
"""Maximum number of times that workers run to deliver the messages that they owe."""
Folders = Mapping[str, Path]
Stores = Mapping[str, Store]
"""Folders and stores, by the names of their workers."""


def move(
    data: Path,
    count: int,
    out: Path,
    *,
    progress: Callable[[int, int], None],
    tell: Callable[[str], None],
) -> Transferred:
    """Create the stores of `count` workers in the new folder `out`.

    `progress` is called with the number of moved sessions and of all, `tell` with notes for the
    operator. Raises `StoreError`, ConfigError and OSError, and then creates no `out`.
    """
    before = 1 if (data / SINGLE_STORE_FILE).exists() else stored_count(data)
    if before is None:
        raise StoreError(f"{data} has no store")
    if before == count:
        raise StoreError(f"{data} has that number of workers already")
    folders = _folders(data, before)
    with ExitStack() as held:
        if before > 1:
            held.callback(os.close, lock(data))
        _deliver_all(data, folders, tell)
        with _opened(folders) as sources:
            _check_space(folders, sources, count, out.absolute().parent)
            _remove_unfinished(out)
            with published(out, data) as unfinished:
                unfinished.mkdir()
                with _opened(_folders(unfinished, count), "os") as targets:
                    found = _Move(sources, targets, progress).run()
                if count > 1:
                    take(unfinished, count)
                _sync(unfinished)
    return found


def _folders(data: Path, count: int) -> Folders:
    names = [name_of(index) for index in range(count)]
    return {name: data / name for name in names} if count > 1 else {names[0]: data}


@contextmanager
def _opened(folders: Folders, durability: str = "fsync") -> Iterator[Stores]:
    settings = settings_of({"store": {"durability": durability}})
    with ExitStack() as opened:
        stores: dict[str, Store] = {}
        for name, folder in folders.items():
            stores[name] = store = open_store(settings, folder)
            opened.callback(store.close)
        yield stores


def _deliver_all(data: Path, folders: Folders, tell: Callable[[str], None]) -> None:
    """Check that all stores can be moved, and let the old workers deliver owed messages."""
    for _ in range(DELIVERIES_MAX):
        with _opened(folders) as sources:
            for store in sources.values():
                _check(store)
            owed = owed_count(sources)
            if not owed:
                return
            tell(f"Messages on the way from one worker to another, delivered first: {owed:,}")
            deliver_owed(data, sources)  # Then a message may be owed to another worker.
    raise StoreError(f"{data}: workers still owe messages to each other; repeat the command")


def _check(store: Store) -> None:
    """Raises `StoreError` if a part of a store cannot be moved."""
    for record in store.sessions():
        reject_log_reader(record)
        kind, _ = sink_of(record.client_id)
        if kind in (SinkKind.SPREAD, SinkKind.OWED) and record.unsettled_count:
            raise StoreError(
                f"{owner_name(record.client_id)} has messages, and several workers cannot keep "
                "messages for applications in Kafka: let one worker deliver them first"
            )


def _check_space(folders: Folders, sources: Stores, count: int, place: Path) -> None:
    """Raises `StoreError` if the disk of the new stores has too little space."""
    needed_bytes = sum(used_bytes_of(folder) for folder in folders.values()) + count * STORE_BYTES
    for _, message, _ in _retained(sources):
        needed_bytes += (count - 1) * message_bytes(message)
    free_bytes = free_bytes_of(place)
    if free_bytes < needed_bytes:
        raise StoreError(
            f"the new stores take up to {size_text(needed_bytes)}, and {place} has "
            f"{size_text(free_bytes)} free: free {size_text(needed_bytes - free_bytes)}, or name "
            "a directory on another disk with --out"
        )


def _remove_unfinished(out: Path) -> None:
    """Remove the rest of a killed attempt. That process has ended: it had the sources open."""
    rest = out.with_name(f"{out.name}.unfinished")
    with suppress(FileNotFoundError):
        if {path.name for path in rest.iterdir()} <= {out.name}:
            shutil.rmtree(rest)


def _sync(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        sync(path)


def _retained(sources: Stores) -> Iterator[tuple[Store, Publish, float]]:
    """Yield each retained message with the store of its owner, and its expiry."""
    for name, store in sources.items():
        for message, expires_at_s in store.retained():
            if owner_among(sources, message.topic) == name:
                yield store, message, expires_at_s


def _later_s(source: Store, target: Store) -> int:
    """Return the seconds to add to times of `source` for the clock of `target`."""
    assert source.clock is not None
    assert target.clock is not None
    return round(target.clock() - source.clock())


def _commit(target: Store, ops: Sequence[StoreOp]) -> None:
    """Commit, and retry while RocksDB stalls."""
    while True:
        try:
            target.commit(ops)
            return
        except StallError:
            time.sleep(STALL_S)


@final
class _Move:
    """A move of all content of `sources` to `targets`."""

    def __init__(
        self, sources: Stores, targets: Stores, progress: Callable[[int, int], None]
    ) -> None:
        self._sources = sources
        self._targets = targets
        self._progress = progress
        self._found = Transferred()
        self._sessions_count = 0
        self._members: dict[str, str] = {}
        """The new worker of a member, by shared subscription (with `$share/`)."""
        self._next_pos: dict[str, int] = {}
        """The first free position in the queue of each shared subscription."""

    def run(self) -> Transferred:
        for source in self._sources.values():
            for record in source.sessions():
                self._look_at(record)
        for source in self._sources.values():
            for record in source.sessions():
                self._move(source, record)
        for target in self._targets.values():
            self._put_retained(target)
        return self._found

    def _look_at(self, record: SessionRecord) -> None:
        """Count a session, and note it as a member of its shared subscriptions."""
        if sink_of(record.client_id)[0] is SinkKind.SESSION:
            self._sessions_count += 1
            for filter in record.subscriptions:
                if filter.startswith("$share/"):
                    self._members[filter] = owner_among(self._targets, record.client_id)

    def _move(self, source: Store, record: SessionRecord) -> None:
        kind, name = sink_of(record.client_id)
        if kind is SinkKind.SESSION:
            target = self._targets[owner_among(self._targets, name)]
            commit = partial(_commit, target)
            later_s = _later_s(source, target)
            self._found.entries += copy_session(source, record, later_s, commit)
            self._found.sessions += 1
            self._progress(self._found.sessions, self._sessions_count)
        elif kind is SinkKind.SHARED and name in self._members:
            target = self._targets[self._members[name]]
            self._move_shared(source, record, partial(_commit, target), _later_s(source, target))

    def _move_shared(
        self, source: Store, record: SessionRecord, commit: Commit, later_s: int
    ) -> None:
        """Append a queue to that of the new worker. No client uses its positions."""
        key, after_pos = record.client_id, 0
        if key not in self._next_pos:
            commit(session_ops(record))
            self._found.groups += 1
        next_pos = self._next_pos.get(key, 1)
        while page := source.fetch(key, after_pos, PAGE):
            ops: list[StoreOp] = []
            for entry in page:
                if entry.delivery is not None:  # Others have moved to a member.
                    pos = max(next_pos, entry.pos)
                    ops.append(Append(key, pos, copy_of(entry.delivery, later_s)))
                    next_pos = pos + 1
            commit(ops)
            self._found.entries += len(ops)
            after_pos = page[-1].pos
        self._next_pos[key] = next_pos

    def _put_retained(self, target: Store) -> None:
        ops: list[StoreOp] = []
        self._found.retained = 0
        for source, message, expires_at_s in _retained(self._sources):
            ops.append(PutRetained(message, expires_at_s + _later_s(source, target)))
            self._found.retained += 1
            if len(ops) == PAGE:
                _commit(target, ops)
                ops = []
        _commit(target, ops)
