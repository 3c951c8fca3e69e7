"""Deferrable work: records of quiet queues, rows of dropped sessions, messages without a reference.

Each slice is a batch of its own without a sync; a lost slice is repeated.
"""

from functools import partial
from itertools import islice
from typing import Final, final

from flowguard.errors import CorruptionError
from flowguard.stores.rocks.database.engine import (
    KEYS_END,
    SCAN_BYTES,
    SCAN_ROWS,
    Family,
    RocksEngine,
)
from flowguard.stores.rocks.layouts.keys import own_prefix, queue_prefix, sweep_key
from flowguard.stores.rocks.layouts.payloads import Payloads
from flowguard.stores.rocks.layouts.queue import POS_ALL, Draft, Queue
from flowguard.stores.rocks.sessions import Sessions

SINGLY_MAX: Final = 64
"""Maximum number of rows that are deleted one by one; more are deleted as a range."""
QUEUES_MAX: Final = 32
"""Maximum number of queues in one slice."""


@final
class Sweep:
    """Progress of the background work of one store."""

    def __init__(self, engine: RocksEngine, sessions: Sessions, payloads: Payloads) -> None:
        self._engine = engine
        self._sessions = sessions
        self._payloads = payloads
        self._row = b""
        """Key at which reading of the present dropped queue continues; empty for its beginning."""
        self._is_blind = False
        """True if a queue is unreadable; then references are unknown, and no shared message is
        deleted."""
        self._unmarked: list[Queue] = []
        self._place: bytes | None = None
        """Place at which the search for messages without a reference continues, or None if done."""
        if not payloads.is_complete:
            self._place = b""
            for queue in sessions.queues.values():
                if queue.count:
                    queue.marked_pos = 0
                    self._unmarked.append(queue)

    @property
    def is_done(self) -> bool:
        marked = self._payloads.is_complete or self._is_blind
        return not self._sessions.dropped and marked and self._place is None

    def step(self, work: Draft) -> None:
        """Add one slice to `work`, if any work is left."""
        if self._sessions.dropped:
            self._sweep_dropped(work)
        elif self._is_blind:
            return
        elif not self._payloads.is_complete:
            try:
                self._mark(work)
            except CorruptionError:
                self._is_blind = True
                self._place = None
        elif self._place is not None:
            self._sweep_payloads(work, self._place)

    # --- dropped sessions ---------------------------------------------------------------------

    def _sweep_dropped(self, work: Draft) -> None:
        for qno, queue in list(islice(self._sessions.dropped.items(), QUEUES_MAX)):
            if not self._sweep_queue(work, qno, queue):
                return
            self._delete(work, self._engine.own, own_prefix(qno), own_prefix(qno + 1))
            work.batch.delete(sweep_key(qno), self._engine.meta.handle)
            del self._sessions.dropped[qno]
            work.undo.append(partial(self._sessions.dropped.__setitem__, qno, queue))

    def _sweep_queue(self, work: Draft, qno: int, queue: Queue | None) -> bool:
        """Delete rows of a dropped queue. Return False if there are more."""
        rows = self._engine.queues
        start, end = queue_prefix(qno), queue_prefix(qno + 1)
        if queue is not None and self._payloads.references:
            at = self._row or start
            try:
                found = rows.scan(at, end)
            except CorruptionError:
                found = []  # The next start deletes their messages, which have no references then.
            places = [queue.place_of_row(key, value) for key, value in found]
            work.forget([place for place in places if place])
            work.undo.append(partial(setattr, self, "_row", self._row))
            if found:
                self._row = found[-1][0] + b"\0"
                return False
            self._row = b""
            work.forget(queue.pending_forgets)
        self._delete(work, rows, start, end)
        return True

    def _delete(self, work: Draft, family: Family, start: bytes, end: bytes) -> None:
        try:
            rows = family.scan(start, end, SINGLY_MAX + 1)
        except CorruptionError:
            # Damaged rows can be deleted without reading them.
            work.batch.delete_range(start, end, family.handle)
            return
        if len(rows) > SINGLY_MAX or sum(len(value) for _, value in rows) >= SCAN_BYTES:
            work.batch.delete_range(start, end, family.handle)
        else:
            for key, _ in rows:
                work.batch.delete(key, family.handle)

    # --- shared messages ----------------------------------------------------------------------

    def _mark(self, work: Draft) -> None:
        """Count the references of entries that existed at the start.

        An entry that was settled meanwhile has one until the queue's record is written, which this
        batch does.
        """
        references = self._payloads.references
        for _ in range(QUEUES_MAX):
            if not self._unmarked:
                self._payloads.is_complete = True
                return
            queue = self._unmarked[-1]
            if not queue.dropped:
                for place in queue.mark(self._engine, SCAN_ROWS):
                    references[place] = references.get(place, 0) + 1
                if queue.pending_forgets:
                    work.records.append(queue)
                if queue.marked_pos < POS_ALL:
                    return
            self._unmarked.pop()

    def _sweep_payloads(self, work: Draft, start: bytes) -> None:
        try:
            rows = self._engine.payloads.scan(start, KEYS_END)
        except CorruptionError:
            self._place = None
            return
        for place, _ in rows:
            if place not in self._payloads.references:
                work.batch.delete(place, self._engine.payloads.handle)
        work.undo.append(partial(setattr, self, "_place", start))
        self._place = rows[-1][0] + b"\0" if rows else None
