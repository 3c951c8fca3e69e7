"""Merges two replicas of a store: directories that were copies of each other, and diverged.

One rule applies to all rows (`flowguard.stores.rocks.identity`): a row in one replica stays, unless
the other has received it and so must have deleted it. If both have a row, the later version stays.
So nothing is lost, no deleted row returns, and the order of the replicas does not matter:

    queues         `store_tools.rocks.merge_queue`
    sessions       the later PutSession has expiry, end and will; a session that ended in the other
                   replica stays only if it has something new
    subscriptions  the later one of a filter
    inbound ids    both
    retained       the later one of a topic

There is one exception for three replicas: if two have put the same subscription or retained message
and the third has deleted one of these, the order matters, as only the later put is remembered.

The new directory begins as a copy, with hard links, of the replica with the later last write, and
gets new rows from the other. All rows are read once, in order; only one batch is in memory.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, final

from flowguard.errors import FormatError, StoreError
from flowguard.records import is_group
from flowguard.stores.clock import ahead_of_wall_s
from flowguard.stores.rocks.copying import published
from flowguard.stores.rocks.database.engine import RocksEngine
from flowguard.stores.rocks.identity import ReceivedUids, mark_as_part, new_identity, put_identity
from flowguard.stores.rocks.layouts import keys
from flowguard.stores.rocks.layouts.codec import UID_BYTES
from flowguard.stores.rocks.layouts.session_codec import decode_session, row_uid, with_qno
from flowguard.stores.rocks.layouts.window import WindowQueue
from store_tools.rocks.copying import copy_files
from store_tools.rocks.merge_queue import (
    MergeTally,
    Output,
    QueueMerge,
    Replica,
    copier,
)
from store_tools.rocks.reader import SETTINGS, StoredSession, StoreReader

CLOCKS_APART_S: Final = 60.0
"""Maximum difference of two stores' clocks that a merge accepts."""

T = TypeVar("T")
Row = tuple[bytes, bytes]


@dataclass(slots=True)
class MergeReport:
    """Counts of the contents of the new store."""

    sessions: int = 0
    groups: int = 0
    """Number of shared subscriptions with a queue."""
    ended: int = 0
    """Number of sessions that one replica has ended."""
    retained: int = 0
    payloads: int = 0
    """Number of shared messages that were copied."""
    entries: MergeTally = field(default_factory=MergeTally)


def merge(
    first: Path,
    second: Path,
    out: Path,
    *,
    random_node: Callable[[], int],
    progress: Callable[[int, int], None] = lambda _, __: None,
) -> MergeReport:
    """Merge the two stores to `out`, without changing them.

    `progress` is called with the number of rows read and the estimated total. Raises `StoreError`,
    and then creates no `out`.
    """
    with StoreReader(first) as one, StoreReader(second) as other:
        _check(one, other)
        b, a = sorted((one, other), key=lambda each: (each.identity.hlc, each.identity.node))
        try:
            with published(out, first, second) as unfinished:
                copy_files(a.folder, unfinished)
                with closing(RocksEngine(unfinished, SETTINGS, bulk=True)) as engine:
                    report = _Merge(a, b, Output(engine), progress).run()
                    _finish(a, b, engine, unfinished, random_node)
                mark_as_part(unfinished, first, second)
        except OSError as error:
            raise StoreError(f"{error.filename} cannot be written: {error.strerror}") from error
    return report


def _check(a: StoreReader, b: StoreReader) -> None:
    for reader in (a, b):
        if reader.format.layout != "window":
            raise FormatError(
                f"{reader.folder} has layout {reader.format.layout!r}: only 'window' can be merged"
            )
        if reader.engine.slices:
            raise StoreError(
                f"{reader.folder} has a durable log, which cannot be merged yet: drop its "
                "generations first, once no session needs them"
            )
    ahead_s = [ahead_of_wall_s(each.engine.meta.get(keys.CLOCK_KEY)) for each in (a, b)]
    if abs(ahead_s[0] - ahead_s[1]) > CLOCKS_APART_S:
        raise StoreError(
            f"the clocks of {a.folder} and {b.folder} are {abs(ahead_s[0] - ahead_s[1]):,.0f} s "
            "apart, because a wall clock was corrected, so messages would expire at wrong times: "
            "serve one of them until its clients have their messages"
        )
    same = a.identity.node == b.identity.node
    if same and not a.identity.is_copy and not b.identity.is_copy:
        raise StoreError(
            f"{a.folder} and {b.folder} have both been used as node {a.identity.node.hex()}, "
            "so their entries cannot be distinguished"
        )


def _finish(
    a: StoreReader,
    b: StoreReader,
    engine: RocksEngine,
    folder: Path,
    random_node: Callable[[], int],
) -> None:
    """Record the identity of the new store, and sync the store."""
    seen = a.identity.seen
    for node, hlc in b.identity.seen.items():
        seen[node] = max(hlc, seen.get(node, b""))
    batch = engine.batch()
    put_identity(engine, batch, new_identity(seen, max(seen.values()), random_node), folder)
    batch.delete_range(keys.SCRATCH_BY_UID, keys.SCRATCH_END, engine.meta.handle)
    engine.write(batch)
    engine.flush()


@final
class _Merge:
    """A merge; the output is a copy of `a`, which wins ties, and `b` is added."""

    def __init__(
        self, a: StoreReader, b: StoreReader, output: Output, progress: Callable[[int, int], None]
    ) -> None:
        self._a = a
        self._b = b
        self._received_a = ReceivedUids(a.identity.seen)
        self._received_b = ReceivedUids(b.identity.seen)
        self._output = output
        self._tell = progress
        self._rows = 0
        self._rows_estimate = a.engine.queues.rows_estimate + b.engine.queues.rows_estimate
        self._next_qno = a.next_qno
        self._adopt = copier(output, b.engine, self._received_a)
        self.report = MergeReport()

    def run(self) -> MergeReport:
        self._merge_payloads()
        self._merge_retained()
        for a, b in joined(self._a.sessions(), self._b.sessions(), lambda each: each.client_id):
            self._merge_session(a, b)
        meta = self._output.engine.meta
        self._output.put(meta.handle, keys.QNO_KEY, self._next_qno.to_bytes(8, "big"))
        self._output.flush()
        return self.report

    def _progress(self, rows: int) -> None:
        self._rows += rows
        self._tell(self._rows, max(self._rows, self._rows_estimate))

    def _merge_payloads(self) -> None:
        """Copy messages that `a` has not received. `a` has all others that its entries refer to
        (exception: `copier`)."""
        payloads = self._output.engine.payloads
        for place, message in self._b.engine.payloads.rows():
            if len(place) == UID_BYTES and place not in self._received_a:
                self._output.put(payloads.handle, place, message)
                self.report.payloads += 1

    def _merge_retained(self) -> None:
        of_a, of_b = self._a.engine.retained.rows(), self._b.engine.retained.rows()
        family = self._output.engine.retained.handle
        for a, b in joined(of_a, of_b, key_of):
            stays = self._stays(a, b)
            if stays is not None:
                self.report.retained += 1
            self._replace(family, b"", a, stays)

    def _stays(self, a: Row | None, b: Row | None) -> Row | None:
        """Return the row that stays, by the rule of this module."""
        if a is None:
            assert b is not None
            return None if row_uid(b[1]) in self._received_a else b
        if b is None:
            return None if row_uid(a[1]) in self._received_b else a
        return b if row_uid(b[1]) > row_uid(a[1]) else a

    def _replace(self, family: Any, prefix: bytes, there: Row | None, stays: Row | None) -> None:
        if stays is None:
            if there is not None:
                self._output.delete(family, prefix + there[0])
        elif stays is not there:
            self._output.put(family, prefix + stays[0], stays[1])

    # --- sessions -----------------------------------------------------------------------------

    def _merge_session(self, a: StoredSession | None, b: StoredSession | None) -> None:
        winner = a
        if a is None or (b is not None and row_uid(b.row) > row_uid(a.row)):
            winner = b
        assert winner is not None
        in_place = winner is a
        qno = decode_session(winner.row)[0]
        if not in_place:
            qno = self._next_qno
            self._next_qno += 1
        of_a = Replica(self._a.engine, self._received_a, _queue_of(a), None, self._progress)
        of_b = Replica(self._b.engine, self._received_b, _queue_of(b), self._adopt, self._progress)
        first, second = (of_a, of_b) if in_place else (of_b, of_a)
        merge = QueueMerge(self._output, first, second, qno, in_place=in_place)
        merge.run()
        self.report.entries.add(merge.tally)
        own = self._output.engine.own
        key = keys.session_key(winner.client_id)
        if a is not None and not in_place:
            self._forget(decode_session(a.row)[0])
        is_known = row_uid(winner.row) in second.received
        if (a is None or b is None) and is_known and not merge.count:
            self.report.ended += not is_group(winner.client_id)
            self._forget(qno)
            if in_place:
                self._output.delete(own.handle, key)
            return
        if is_group(winner.client_id):
            self.report.groups += 1
        else:
            self.report.sessions += 1
        self._output.put(own.handle, key, with_qno(winner.row, qno))
        self._merge_own(a, b, winner, qno)

    def _forget(self, qno: int) -> None:
        """Drop the number; the store deletes its rows when it is open."""
        self._output.put(self._output.engine.meta.handle, keys.sweep_key(qno), b"")

    def _merge_own(
        self, a: StoredSession | None, b: StoredSession | None, winner: StoredSession, qno: int
    ) -> None:
        family = self._output.engine.own.handle
        for of_a, of_b in joined(_own_of(self._a, a), _own_of(self._b, b), key_of):
            found = of_a or of_b
            assert found is not None
            if found[0][0] == keys.WILL:
                stays = of_a if winner is a else of_b
            else:
                stays = self._stays(of_a, of_b)
            there = of_a if winner is a else None
            self._replace(family, keys.own_prefix(qno), there, stays)


def _queue_of(session: StoredSession | None) -> WindowQueue | None:
    if session is None:
        return None
    assert isinstance(session.queue, WindowQueue)
    return session.queue


def _own_of(reader: StoreReader, session: StoredSession | None) -> Iterator[Row]:
    """Yield the rows of a session, with the part after the number as their key."""
    if session is None:
        return
    qno = decode_session(session.row)[0]
    for key, row in reader.engine.own.rows(keys.own_prefix(qno), keys.own_prefix(qno + 1)):
        yield key[keys.OWN_KIND_AT :], row


def key_of(row: Row) -> bytes:
    return row[0]


def joined(
    first: Iterator[T], second: Iterator[T], key_of: Callable[[T], Any]
) -> Iterator[tuple[T | None, T | None]]:
    """Yield pairs of rows with equal keys, and other rows paired with None. Both inputs ascend."""
    a, b = next(first, None), next(second, None)
    while a is not None or b is not None:
        if b is None or (a is not None and key_of(a) < key_of(b)):
            yield a, None
            a = next(first, None)
        elif a is None or key_of(b) < key_of(a):
            yield None, b
            b = next(second, None)
        else:
            yield a, b
            a, b = next(first, None), next(second, None)
