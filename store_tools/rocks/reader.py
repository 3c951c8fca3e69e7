"""A reader of a closed store, which changes nothing, and locks the store meanwhile.

Sessions are read one by one, so a large store needs no more memory than its largest session.
"""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Self, final

from flowguard.config import MIB, StoreSettings
from flowguard.errors import CorruptionError, FormatError, LockedError, StoreError
from flowguard.records import QueueEntry, SessionRecord, SinkKind, owner_name, sink_of
from flowguard.stores.base import FETCH_BYTES, POS_MAX
from flowguard.stores.rocks import format
from flowguard.stores.rocks.database.engine import SCAN_ROWS, Family, RocksEngine, is_open_here
from flowguard.stores.rocks.database.log_files import check_logs, endless_logs
from flowguard.stores.rocks.identity import Identity, read_identity
from flowguard.stores.rocks.layouts import keys
from flowguard.stores.rocks.layouts.queue import Queue
from flowguard.stores.rocks.layouts.session_codec import decode_session
from flowguard.stores.rocks.sessions import Sessions, count_entries
from flowguard.stores.rocks.store import LAYOUTS, queues_of
from store_tools.rocks.copying import LEFT_OUT
from store_tools.rocks.tolerant import TolerantFamily

PROBLEMS_MAX: Final = 1_000
"""Maximum number of problems that are listed; more are only counted."""
SETTINGS: Final = StoreSettings(
    cache_bytes=8 * MIB, write_buffer_bytes=16 * MIB, durability="os", disk_reserve_bytes=0
)
"""RocksDB settings for programs that read everything once."""
CONFIGURATION: Final = "rocksdict-config.json"


@dataclass(slots=True)
class Findings:
    """Counts of the rows that could be read."""

    sessions: int = 0
    groups: int = 0
    """Number of shared subscriptions with a queue."""
    entries: int = 0
    retained: int = 0
    problems: list[str] = field(default_factory=list)
    problems_count: int = 0

    def count_owner(self, key: str) -> None:
        """Count the owner of a queue."""
        kind, _ = sink_of(key)
        self.sessions += kind is SinkKind.SESSION
        self.groups += kind in (SinkKind.SHARED, SinkKind.SPREAD)

    def wrong(self, problem: str) -> None:
        self.problems_count += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)


@dataclass(slots=True)
class StoredSession:
    """A session's own row, and its queue."""

    client_id: str
    row: bytes
    queue: Queue


@final
class StoreReader:
    """One directory, open for reads; use it in a `with` statement.

    Raises `FormatError`, `LockedError`, `CorruptionError` and other `StoreError`.
    """

    def __init__(self, folder: Path, *, tolerant: bool = False, damage: Sequence[str] = ()) -> None:
        """`tolerant`: skip damaged rows, and add them to `damage`, which has the known damage."""
        self.folder = folder
        self.damage: list[str] = [*damage]
        """Descriptions of the damage found so far."""
        self._tolerant = tolerant
        self._view = folder
        self._stack = ExitStack()
        try:
            self._open(folder)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def _open(self, folder: Path) -> None:
        if not (folder / "CURRENT").exists():
            raise FormatError(f"{folder} is no store")
        self._stack.enter_context(nobody_else(folder))
        endless = {}
        if self._tolerant:
            endless = endless_logs(folder)
            self.damage += [f"{log.name} is damaged at byte {at:,}" for log, at in endless.items()]
        else:
            check_logs(folder)
        self._view = self._stack.enter_context(_view(folder, endless))
        family: Callable[[str], Family] = Family
        if self._tolerant:
            family = partial(TolerantFamily, tell=self.damage.append)
        self.engine = RocksEngine(self._view, SETTINGS, read_only=True, family=family)
        self._stack.callback(self.engine.close)
        self._check_log()
        self.format = self._read_format()
        if self.format.layout not in LAYOUTS:
            raise FormatError(f"{folder} has layout {self.format.layout!r}, which is not known")
        identity = read_identity(self.engine, folder)
        if identity is None and self.damage:
            identity = Identity(bytes(4), bytes(8), {})
        if identity is None:
            raise CorruptionError(f"{folder} has no readable identity")
        self.identity: Identity = identity
        self.is_clean = self.engine.meta.get(keys.CLEAN_KEY) is not None
        """True if the store was closed properly, so that its counters are exact."""
        self.new_queue = queues_of(self.format.layout)
        self._sessions = Sessions(self.engine, self.new_queue)

    def _check_log(self) -> None:
        if not self._tolerant:
            self.engine.require_log()
        elif self.engine.lost_count:
            self.damage.append(
                f"the log of writes is damaged: the last {self.engine.lost_count:,} changes "
                "that were stored cannot be read"
            )

    def _read_format(self) -> format.Format:
        try:
            return format.read_record(self.engine, self.folder)
        except FormatError:
            if not self.damage:
                raise
            return format.Format("?", "window", "?")  # Other layouts are rare.

    @property
    def next_qno(self) -> int:
        return self._sessions.next_qno

    def rows(self) -> Iterator[tuple[str, bytes]]:
        """Yield client ids and rows of sessions, in the order of ids."""
        return self._sessions.rows()

    def session(self, client_id: str, row: bytes) -> StoredSession:
        """Return the session of one of `rows`. Raises `CorruptionError`."""
        with _naming(client_id):
            qno, _, ends_at_s = decode_session(row)
            queue = self.new_queue(qno)
            queue.connected = ends_at_s is None
            record = self.engine.queues.get(keys.record_key(qno))
            queue.restore(self.engine, record)
            if record is None or not self.is_clean:
                count_entries(self.engine, [queue])
        return StoredSession(client_id, row, queue)

    def sessions(self) -> Iterator[StoredSession]:
        """Yield all sessions, in the order of ids. Raises `CorruptionError`."""
        for client_id, row in self.rows():
            yield self.session(client_id, row)

    def dropped(self) -> list[int]:
        """Return the numbers of ended sessions whose rows must still be deleted."""
        return [
            keys.qno_of_sweep(key)
            for key, _ in self.engine.meta.scan(keys.SWEEP, keys.SWEEP_END, 2**40)
        ]

    def entries(self, session: StoredSession) -> Iterator[QueueEntry]:
        """Yield unsettled entries, in order. Raises `CorruptionError`."""
        queue, after = session.queue, 0
        while True:
            with _naming(session.client_id, f", soon after position {after} of its queue"):
                page = queue.fetch(self.engine, after, SCAN_ROWS, POS_MAX - 1, FETCH_BYTES)
            if not page:
                return
            yield from page
            after = page[-1].pos

    def record(self, session: StoredSession) -> SessionRecord:
        """Return the session with subscriptions, inbound ids and will. Raises `CorruptionError`."""
        with _naming(session.client_id):
            return self._sessions.record(session.client_id, session.queue, session.row)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        self.close()
        is_viewed = self._view != self.folder  # Errors of the folder itself stay unchanged.
        if isinstance(error, StoreError) and is_viewed and str(self._view) in str(error):
            raise error.__class__(self.told(error)) from error

    def told(self, error: Exception) -> str:
        """Return the error's text with the path of the store instead of the view."""
        return str(error).replace(str(self._view), str(self.folder))

    def close(self) -> None:
        self._stack.close()


@contextmanager
def held(folder: Path, now_s: float) -> Iterator[RocksEngine]:
    """Yield the engine of a closed store for changes. Raises `StoreError`."""
    StoreReader(folder).close()  # Check that it is a closed store.
    try:
        engine = RocksEngine(folder, SETTINGS)
    except LockedError as error:
        raise format.locked(folder) from error
    try:
        format.hold(folder, now_s)
        yield engine
    finally:
        format.let_go(folder)
        engine.close()


@contextmanager
def _naming(client_id: str, where: str = "") -> Iterator[None]:
    """Add the client and the place to an error."""
    try:
        yield
    except CorruptionError as error:
        raise CorruptionError(f"{owner_name(client_id)}{where}: {error}") from error


@contextmanager
def nobody_else(folder: Path) -> Iterator[None]:
    """Lock the database for reads. Raises `LockedError` if another process or engine has it open.

    RocksDB's lock belongs to the process, which would lose it if another descriptor is closed.
    """
    if is_open_here(folder):
        raise format.locked(folder)
    try:
        descriptor = os.open(folder / "LOCK", os.O_RDONLY)
    except FileNotFoundError:
        yield  # A copy that was not opened yet.
        return
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            raise format.locked(folder) from error
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _view(folder: Path, cut: Mapping[Path, int]) -> Iterator[Path]:
    """Yield a folder with links to the files, as rocksdict writes its configuration even to read.

    A file in `cut` is a copy of this length in bytes.
    """
    with tempfile.TemporaryDirectory(prefix="flowguard-") as name:
        view = Path(name)
        cut = {path.resolve(): size_bytes for path, size_bytes in cut.items()}
        for path in folder.resolve().iterdir():
            if path.name != CONFIGURATION and not path.name.startswith(LEFT_OUT):
                if path in cut:
                    (view / path.name).write_bytes(path.read_bytes()[: cut[path]])
                else:
                    (view / path.name).symlink_to(path)
        yield view
