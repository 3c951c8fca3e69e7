"""Layout `status`: the published schema, for comparison.

The key of an entry has its status, so every step of an exchange rewrites the entry:

    key      qno (8), status (1), uid (12)
    value    u64 position, u16 packet id, the entry; without the entry if it was released
    record   u8 version, u64 next_pos, u64 sent_pos

All rows are as durable as the batch. The keys of all entries are in memory.
"""

from collections import deque
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import Final, final

from flowguard.errors import CorruptionError
from flowguard.records import Delivery, QueueEntry, packet_id_of
from flowguard.stores.rocks.database.engine import SCAN_ROWS, RocksEngine
from flowguard.stores.rocks.layouts.codec import (
    INLINE,
    UID_BYTES,
    decode_entry,
    entry_place,
    entry_size_bytes,
    uid,
)
from flowguard.stores.rocks.layouts.keys import queue_prefix, record_key
from flowguard.stores.rocks.layouts.queue import POS_ALL, Draft, Queue

INFLIGHT: Final = b"\x01"
RELEASED: Final = b"\x02"
IDLE: Final = b"\x03"
_STATUS_AT: Final = 8
_UID_AT: Final = 9
_VERSION: Final = 1
_RECORD: Final = Struct(">BQQ")
_HEAD: Final = Struct(">QH")


@dataclass(slots=True)
class Row:
    """The key of an unsettled entry, and its size. A change replaces the object."""

    status: bytes
    uid: bytes
    packet_id: int
    size_bytes: int = 0
    place: bytes = INLINE


@final
class StatusQueue(Queue):
    """Rows by position, ascending."""

    __slots__ = ("_idle", "_prefix", "_rows")

    def __init__(self, qno: int) -> None:
        super().__init__(qno)
        self._prefix = queue_prefix(qno)
        self._rows: dict[int, Row] = {}
        self._idle: deque[int] = deque()
        """Positions that were never sent, ascending; some of them may be settled."""

    def _key(self, row: Row) -> bytes:
        return self._prefix + row.status + row.uid

    # --- while a batch is built ---------------------------------------------------------------

    def append(
        self, work: Draft, pos: int, value: bytes, size_bytes: int, delivery: Delivery
    ) -> None:
        clock = work.clock
        clock.hlc += 1
        packet_id = packet_id_of(pos, delivery.qos)
        place = delivery.place
        row = Row(IDLE, uid(clock.hlc, clock.node), packet_id, size_bytes, place)
        self._put(work, pos, row, value)
        work.appended.append((self, self.next_pos, pos, size_bytes, delivery))
        work.undo.append(lambda: self._unappend(pos))
        self._rows[pos] = row
        self._idle.append(pos)
        self.next_pos = pos + 1
        self.count += 1
        self.size_bytes += size_bytes

    def _unappend(self, pos: int) -> None:
        del self._rows[pos]
        self._idle.pop()

    def _put(self, work: Draft, pos: int, row: Row, value: bytes) -> None:
        key, value = self._key(row), _HEAD.pack(pos, row.packet_id) + value
        work.batch.put(key, value, work.handle)
        work.values[key] = value

    def sent(self, work: Draft, pos: int) -> None:
        if pos <= self.sent_pos:
            return
        idle, before = self._idle, self.sent_pos
        work.undo.append(lambda: setattr(self, "sent_pos", before))
        work.records.append(self)
        work.is_promised = True
        self.sent_pos = pos
        while idle and idle[0] <= pos:
            moved = idle.popleft()
            work.undo.append(partial(idle.appendleft, moved))
            row = self._rows.get(moved)
            if row is not None and row.status == IDLE:
                self._move(work, moved, row)

    def _move(self, work: Draft, pos: int, row: Row) -> None:
        key = self._key(row)
        value = work.values.get(key) or work.engine.queues.get(key)
        if value is None:
            raise CorruptionError(f"queue {self.qno} has lost position {pos}")
        work.batch.delete(key, work.handle)
        moved = Row(INFLIGHT, row.uid, row.packet_id, row.size_bytes, row.place)
        self._put(work, pos, moved, value[_HEAD.size :])
        self._replace(work, pos, row, moved)

    def _replace(self, work: Draft, pos: int, row: Row, other: Row) -> None:
        self._rows[pos] = other
        work.undo.append(lambda: self._rows.__setitem__(pos, row))

    def release(self, work: Draft, pos: int, packet_id: int, delivery: Delivery | None) -> None:
        if pos < self.next_pos:
            self.sent(work, pos)
        row = self._rows.get(pos)
        if row is None or row.status == RELEASED:
            return
        released = Row(RELEASED, row.uid, packet_id)
        work.batch.delete(self._key(row), work.handle)
        self._put(work, pos, released, b"")
        self._replace(work, pos, row, released)
        self._count(work, pos, row, 0)

    def settle(self, work: Draft, pos: int, delivery: Delivery | None) -> None:
        row = self._rows.get(pos)
        if row is None:
            return
        del self._rows[pos]
        work.batch.delete(self._key(row), work.handle)
        work.records.append(self)
        work.undo.append(lambda: self._unsettle(pos, row))
        self._count(work, pos, row, 1)

    def _unsettle(self, pos: int, row: Row) -> None:
        self._rows[pos] = row
        self._rows = dict(sorted(self._rows.items()))

    def _count(self, work: Draft, pos: int, row: Row, count: int) -> None:
        """Subtract an entry, or only its message, from the queue's totals."""
        self.count -= count
        self.size_bytes -= row.size_bytes
        work.undo.append(lambda: self._uncount(count, row.size_bytes))
        if len(row.place) == UID_BYTES and pos <= self.marked_pos:
            work.forget([row.place])

    def _uncount(self, count: int, size_bytes: int) -> None:
        self.count += count
        self.size_bytes += size_bytes

    def write_record(self, work: Draft, *, tidy: bool = False, last: bool = False) -> None:
        value = _RECORD.pack(_VERSION, self.next_pos, self.sent_pos)
        work.batch.put(record_key(self.qno), value, work.handle)

    # --- reading ------------------------------------------------------------------------------

    def restore(self, engine: RocksEngine, record: bytes | None) -> None:
        if record is not None:
            if len(record) != _RECORD.size or record[0] != _VERSION:
                raise CorruptionError(f"the record of queue {self.qno} is damaged")
            _, self.next_pos, self.sent_pos = _RECORD.unpack(record)
        start, end = self._prefix + INFLIGHT, queue_prefix(self.qno + 1)
        found: list[tuple[int, Row]] = []
        for key, value in engine.queues.rows(start, end):
            pos, packet_id = _HEAD.unpack_from(value)
            row = Row(key[_STATUS_AT:_UID_AT], key[_UID_AT:], packet_id)
            if row.status != RELEASED:
                row.size_bytes = entry_size_bytes(value[_HEAD.size :])
                row.place = entry_place(value[_HEAD.size :])
            found.append((pos, row))
            self.size_bytes += row.size_bytes
        found.sort(key=lambda pair: pair[0])
        self._rows = dict(found)
        self._idle.extend(pos for pos, row in found if row.status == IDLE)
        self.count = len(found)
        if found:
            self.next_pos = max(self.next_pos, found[-1][0] + 1)

    def fetch(
        self, engine: RocksEngine, after_pos: int, limit: int, until_pos: int, bytes_max: int
    ) -> list[QueueEntry]:
        wanted: list[tuple[int, Row]] = []
        size_bytes = 0
        for pos, row in self._rows.items():
            if pos <= after_pos:
                continue
            if pos > until_pos or len(wanted) == limit or size_bytes >= bytes_max:
                break
            wanted.append((pos, row))
            size_bytes += row.size_bytes
        found: list[QueueEntry] = []
        for start in range(0, len(wanted), SCAN_ROWS):
            found += self._entries(engine, wanted[start : start + SCAN_ROWS])
        return found

    def _entries(self, engine: RocksEngine, wanted: list[tuple[int, Row]]) -> list[QueueEntry]:
        values = engine.queues.get_many([self._key(row) for _, row in wanted])
        places = [row.place for _, row in wanted if row.place != INLINE]
        payloads = dict(zip(places, engine.payloads.get_many(places), strict=True))
        found: list[QueueEntry] = []
        for (pos, row), value in zip(wanted, values, strict=True):
            if value is None:
                raise CorruptionError(f"queue {self.qno} has lost position {pos}")
            delivery: Delivery | None = None
            if row.status != RELEASED:
                delivery = decode_entry(value[_HEAD.size :], payloads.get(row.place))
            found.append(QueueEntry(pos, row.packet_id, delivery))
        return found

    def mark(self, engine: RocksEngine, rows: int) -> list[bytes]:
        self.marked_pos = POS_ALL
        return [row.place for row in self._rows.values() if row.place != INLINE]

    def place_of_row(self, key: bytes, value: bytes) -> bytes:
        if key == record_key(self.qno):
            return b""
        pos: int = _HEAD.unpack_from(value)[0]
        row = self._rows.get(pos)
        if row is None or row.place == INLINE or pos > self.marked_pos:
            return b""
        return row.place
