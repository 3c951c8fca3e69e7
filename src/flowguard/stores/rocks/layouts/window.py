"""Layout `window`: entries are never rewritten; one record has the client's progress.

An acknowledgement only changes memory. Changed queues write their record with a later batch, and
delete settled rows in large ranges. After a crash the record is slightly older than the entries, so
only entries that were settled after the record are sent again.
"""

from bisect import bisect_right
from collections.abc import Mapping
from functools import partial
from typing import Final, final

from flowguard.records import Delivery, QueueEntry, packet_id_of
from flowguard.stores.rocks.database.engine import SCAN_ROWS, RocksEngine
from flowguard.stores.rocks.layouts.codec import (
    INLINE,
    UID_BYTES,
    decode_entry,
    entry_place,
    entry_size_bytes,
)
from flowguard.stores.rocks.layouts.keys import entry_prefix, pos_of, record_key
from flowguard.stores.rocks.layouts.queue import POS_ALL, Draft, Queue
from flowguard.stores.rocks.layouts.window_record import (
    NO_RELEASED,
    Runs,
    WindowRecord,
    decode_record,
    encode_record,
    merged,
)

STRIDE_MAX: Final = 256
"""Maximum number of positions that the durable mark is ahead of the sent ones, to save writes."""
STRIDE_MIN: Final = 8
STRIDE_BYTES: Final = 16 * 1024
"""Maximum size of messages that the mark is ahead. Settled rows are deleted half a stride at once,
so most messages that are delivered soon are never written from the write buffer to a table."""
TRIM_SINGLY_MAX: Final = 16
"""Rows of a quiet queue below this number are deleted one by one, since a range slows every scan
slightly. A page from the log is deleted as a range, which needs fewer rows in the write buffer."""


@final
class WindowQueue(Queue):
    """A queue with all positions up to `lo` settled, and single positions and runs above it.

    If nothing is unsettled, `lo` is the last position.
    """

    __slots__ = (
        "_ahead",
        "_forgets",
        "_is_exact",
        "_mark",
        "_prefix",
        "_recorded_pos",
        "_released",
        "_runs",
        "_settled",
        "_trimmed",
        "lo",
        "unordered",
    )

    def __init__(self, qno: int) -> None:
        super().__init__(qno)
        self._prefix = entry_prefix(qno)
        self.lo = 0
        self._settled: set[int] | None = None
        self._runs: Runs = ()
        """Runs of positions that are settled or were never used."""
        self._released: dict[int, int] | None = None
        """Packet identifiers by released position."""
        self._trimmed = 0
        """Position up to which rows are deleted."""
        self._mark = 0
        """The durable bound of `sent_pos`."""
        self._is_exact = True
        """True if the mark is exactly `sent_pos`."""
        self._recorded_pos = 1
        """`next_pos` in the stored record."""
        self._ahead = 0
        """Highest sent position of the batch that is being built, if it is above the mark."""
        self._forgets: list[bytes] | None = None
        """Shared payloads of entries settled since the last record."""
        self.unordered = False
        """True if a merge has moved entries, so that positions are not in the order of uids."""

    @property
    def pending_forgets(self) -> list[bytes]:
        return self._forgets or []

    def entry_key(self, pos: int) -> bytes:
        return self._prefix + pos.to_bytes(8, "big")

    @property
    def is_untidy(self) -> bool:
        return self.lo > self._trimmed

    @property
    def needs_record(self) -> bool:
        if not self._is_exact or self._mark != self.sent_pos:
            return True
        return self.waiting or self._recorded_pos != self.next_pos

    def is_settled(self, pos: int) -> bool:
        """Return True if a position below `next_pos` is settled or was never used."""
        if pos <= self.lo or (self._settled and pos in self._settled):
            return True
        runs = self._runs
        if not runs:
            return False
        index = bisect_right(runs, (pos, POS_ALL)) - 1
        return index >= 0 and pos <= runs[index][1]

    def _is_released(self, pos: int) -> bool:
        released = self._released
        return released is not None and pos in released

    @property
    def released(self) -> Mapping[int, int]:
        """Packet identifiers by position, of entries that only need a PUBREL."""
        return self._released or NO_RELEASED

    @property
    def trimmed(self) -> int:
        """Position up to which all rows are deleted."""
        return self._trimmed

    # --- while a batch is built ---------------------------------------------------------------

    def append(
        self, work: Draft, pos: int, value: bytes, size_bytes: int, delivery: Delivery
    ) -> None:
        next_pos = self.next_pos
        if pos != next_pos:
            before = self.lo, self._runs
            work.undo.append(lambda: self._unskip(*before))
            self._skip(pos)
        work.batch.put(self._prefix + pos.to_bytes(8, "big"), value, work.handle)
        work.appended.append((self, next_pos, pos, size_bytes, delivery))
        self.next_pos = pos + 1
        self.count += 1
        self.size_bytes += size_bytes

    def _skip(self, pos: int) -> None:
        """Leave the positions from `next_pos` to `pos - 1` unused."""
        if self.count:
            self._runs = (*self._runs, (self.next_pos, pos - 1))
        else:
            self.lo = pos - 1

    def _unskip(self, lo: int, runs: Runs) -> None:
        self.lo = lo
        self._runs = runs

    def sent(self, work: Draft, pos: int) -> None:
        work.sent.append((self, pos))
        if pos > self._mark:
            if pos > self._ahead:
                work.undo.append(partial(setattr, self, "_ahead", self._ahead))
                self._ahead = pos
            work.records.append(self)
            work.is_promised = True

    def settle(self, work: Draft, pos: int, delivery: Delivery | None) -> None:
        if pos < self.next_pos:
            work.settled.append((self, pos, delivery))

    def release(self, work: Draft, pos: int, packet_id: int, delivery: Delivery | None) -> None:
        if pos >= self.next_pos:
            return
        self.sent(work, pos)
        if self._is_released(pos) or self.is_settled(pos):
            return
        size_bytes, place = work.find(self, pos, delivery)
        forgets = len(place) == UID_BYTES and pos <= self.marked_pos
        if self._released is None:
            self._released = {}
        self._released[pos] = packet_id
        self.size_bytes -= size_bytes
        if forgets:
            self._forget(place)
        work.undo.append(lambda: self._unrelease(pos, size_bytes, forgets))
        work.records.append(self)

    def _unrelease(self, pos: int, size_bytes: int, forgets: bool) -> None:
        assert self._released is not None
        del self._released[pos]
        self.size_bytes += size_bytes
        if forgets:
            assert self._forgets is not None
            self._forgets.pop()

    def _forget(self, place: bytes) -> None:
        if self._forgets is None:
            self._forgets = []
        self._forgets.append(place)

    def write_record(self, work: Draft, *, tidy: bool = False, last: bool = False) -> None:
        mark, sent_pos = self._mark, max(self.sent_pos, self._ahead)
        if last or not self.connected:
            mark = sent_pos
        elif sent_pos > mark:
            mark = sent_pos + self._stride
        trimmed = self._trim(work, tidy)
        value = encode_record(self._record(mark, trimmed))
        work.batch.put(record_key(self.qno), value, work.handle)
        forgets = self.pending_forgets
        if forgets:
            work.forget(forgets)
        work.recorded.append((self, mark, trimmed, len(forgets)))

    @property
    def _stride(self) -> int:
        if self.count * STRIDE_BYTES >= self.size_bytes * STRIDE_MAX:
            return STRIDE_MAX
        return max(STRIDE_MIN, self.count * STRIDE_BYTES // self.size_bytes)

    def _trim(self, work: Draft, tidy: bool) -> int:
        trimmed, lo = self._trimmed, self.lo
        if lo - trimmed < self._stride // 2 and not tidy:
            return trimmed
        if tidy and lo - trimmed < TRIM_SINGLY_MAX:
            for pos in range(trimmed + 1, lo + 1):
                work.batch.delete(self.entry_key(pos), work.handle)
        else:
            first, end = self.entry_key(trimmed + 1), self.entry_key(lo + 1)
            work.batch.delete_range(first, end, work.handle)
        return lo

    # --- after it was written -----------------------------------------------------------------

    def recorded(self, mark: int, trimmed: int, forgets: int) -> None:
        self._mark = mark
        self._is_exact = mark == max(self.sent_pos, self._ahead)
        self._recorded_pos = self.next_pos
        self._trimmed = trimmed
        self._ahead = 0
        if forgets:
            assert self._forgets is not None
            del self._forgets[:forgets]

    def apply_sent(self, pos: int) -> None:
        if pos > self.sent_pos:
            self.sent_pos = pos

    def apply_settled(self, pos: int, delivery: Delivery | None) -> bool:
        lo = self.lo
        if pos == lo + 1:
            self.lo = pos
            if self._settled or self._runs:
                self._advance()
        elif self.is_settled(pos):
            return True
        else:
            if self._settled is None:
                self._settled = set()
            self._settled.add(pos)
        self.count -= 1
        is_known = True
        released = self._released
        if released and pos in released:
            del released[pos]
        elif delivery is None or not delivery.place:
            is_known = False
        else:
            self.size_bytes -= delivery.size_bytes
            place = delivery.place
            if place != INLINE and pos <= self.marked_pos:
                self._forget(place)
        if not self.count:
            self.lo = self.next_pos - 1
            self.size_bytes = 0
            self._settled = self._released = None
            self._runs = ()
            self.unordered = False
        return is_known

    def apply_looked_up(self, pos: int, value: bytes) -> None:
        if self.count:
            self.size_bytes -= entry_size_bytes(value)
        place = entry_place(value)
        if place != INLINE and pos <= self.marked_pos:
            self._forget(place)

    def _advance(self) -> None:
        """Raise `lo` over the settled positions that follow it."""
        lo, settled, runs = self.lo, self._settled, self._runs
        while True:
            if settled and lo + 1 in settled:
                lo += 1
                settled.discard(lo)
            elif runs and runs[0][0] == lo + 1:
                lo = runs[0][1]
                runs = runs[1:]
            else:
                break
        self.lo = lo
        self._runs = runs

    # --- the record ---------------------------------------------------------------------------

    def _record(self, mark: int, trimmed: int) -> WindowRecord:
        is_exact = mark == max(self.sent_pos, self._ahead)
        record = WindowRecord(
            self.next_pos, mark, is_exact, self.lo, trimmed, self.count, max(self.size_bytes, 0)
        )
        record.released = self._released
        record.unordered = self.unordered
        if self._settled or self._runs:
            record.runs = merged(self._runs, self._settled or ())
        return record

    def restore(self, engine: RocksEngine, record: bytes | None) -> None:
        if record is not None:
            found = decode_record(record)
            self.next_pos = self._recorded_pos = found.next_pos
            self._mark, self._is_exact = found.mark, found.is_exact
            self.lo, self._trimmed = found.lo, found.trimmed
            self.count, self.size_bytes = found.count, found.size_bytes
            self._runs, self._released = found.runs, found.released
            self.unordered = found.unordered
        self.sent_pos = self._mark if self._is_exact else min(self._mark, self.next_pos - 1)

    @property
    def uncounted(self) -> tuple[bytes, bytes] | None:
        return self.entry_key(self.next_pos), self.entry_key(POS_ALL)

    def count_entry(self, key: bytes, value: bytes) -> None:
        pos = pos_of(key)
        if pos != self.next_pos:
            self._skip(pos)
        self.next_pos = pos + 1
        self.count += 1
        self.size_bytes += entry_size_bytes(value)
        self.sent_pos = self._mark if self._is_exact else min(self._mark, pos)

    # --- reading ------------------------------------------------------------------------------

    def fetch(
        self, engine: RocksEngine, after_pos: int, limit: int, until_pos: int, bytes_max: int
    ) -> list[QueueEntry]:
        start, end = max(after_pos, self.lo) + 1, min(until_pos + 1, self.next_pos)
        found: list[QueueEntry] = []
        size_bytes = 0
        while start < end and len(found) < limit and size_bytes < bytes_max:
            rows = engine.queues.scan(
                self.entry_key(start),
                self.entry_key(end),
                min(limit - len(found), SCAN_ROWS),
                bytes_max - size_bytes,
            )
            if not rows:
                break
            wanted: list[tuple[int, bytes]] = []
            for key, value in rows:
                pos = pos_of(key)
                if size_bytes >= bytes_max:
                    break
                if not self.is_settled(pos):
                    wanted.append((pos, value))
                    if not self._is_released(pos):
                        size_bytes += entry_size_bytes(value)
            found += self._entries(engine, wanted)
            start = pos_of(rows[-1][0]) + 1
        return found

    def _entries(self, engine: RocksEngine, rows: list[tuple[int, bytes]]) -> list[QueueEntry]:
        released = self._released or {}
        places = [entry_place(value) for pos, value in rows if pos not in released]
        places = [place for place in places if place != INLINE]
        payloads = dict(zip(places, engine.payloads.get_many(places), strict=True))
        found: list[QueueEntry] = []
        for pos, value in rows:
            if pos in released:
                found.append(QueueEntry(pos, released[pos], None))
            else:
                delivery = decode_entry(value, payloads.get(entry_place(value)))
                found.append(QueueEntry(pos, packet_id_of(pos, delivery.qos), delivery))
        return found

    def mark(self, engine: RocksEngine, rows: int) -> list[bytes]:
        start = max(self.marked_pos, self._trimmed) + 1
        found: list[bytes] = []
        taken = engine.queues.scan(self.entry_key(start), self.entry_key(self.next_pos), rows)
        for key, value in taken:
            pos = pos_of(key)
            place = entry_place(value)
            if place != INLINE and not self._is_released(pos):
                found.append(place)
                if self.is_settled(pos):
                    self._forget(place)  # Before the next record, a crash would restore the entry.
        self.marked_pos = pos_of(taken[-1][0]) if taken else POS_ALL
        return found

    def place_of_row(self, key: bytes, value: bytes) -> bytes:
        if len(key) == len(record_key(0)):
            return b""
        pos = pos_of(key)
        place = entry_place(value)
        if place == INLINE or pos > self.marked_pos:
            return b""
        return b"" if self._is_released(pos) or self.is_settled(pos) else place
