"""The store in memory: the reference for all others, and the default without a durable one.

It survives the broker object, but not the process. A test that drops a broker and creates another
one with the same store sees the same state as after a restart.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, final

from flowguard import records
from flowguard.errors import StoreError
from flowguard.stores.base import FETCH_BYTES, NOT_FENCED, POS_MAX, Fenced, StoreLoad
from flowguard.stores.log.homes import MemoryHome
from flowguard.stores.log.layout import stamp_at
from flowguard.stores.log.message_log import MessageLog
from flowguard.stores.log.replays import LogPlace, LogStart
from flowguard.types import Publish

_Other = (
    records.PutSession
    | records.DropSession
    | records.PutRetained
    | records.DropRetained
    | records.AppendToLog
)
_OTHERS: Final = (
    records.PutSession,
    records.DropSession,
    records.PutRetained,
    records.DropRetained,
    records.AppendToLog,
)
"""Operations that do not require an existing session."""


@final
class _Queue:
    """Unsettled entries by position, in order of acceptance; updates the counters of its record."""

    __slots__ = ("entries", "record")

    def __init__(self, record: records.SessionRecord) -> None:
        self.record = record
        self.entries: dict[int, records.QueueEntry] = {}

    def put(self, entry: records.QueueEntry) -> None:
        """Add the entry; positions are accepted in ascending order."""
        assert entry.delivery is not None
        record = self.record
        if entry.pos < record.next_pos:
            return
        self.entries[entry.pos] = entry
        record.next_pos = entry.pos + 1
        record.unsettled_count += 1
        record.unsettled_bytes += entry.delivery.size_bytes

    def release(self, pos: int, packet_id: int) -> None:
        if pos < self.record.next_pos:
            self.record.sent_pos = max(self.record.sent_pos, pos)
        entry = self.entries.get(pos)
        if entry is not None and entry.delivery is not None:
            self.record.unsettled_bytes -= entry.delivery.size_bytes
            self.entries[pos] = records.QueueEntry(pos, packet_id, None)

    def drop(self, pos: int) -> None:
        entry = self.entries.pop(pos, None)
        if entry is not None:
            self.record.unsettled_count -= 1
            if entry.delivery is not None:
                self.record.unsettled_bytes -= entry.delivery.size_bytes

    def between(self, after_pos: int, until_pos: int) -> Iterator[int]:
        """Return unsettled positions of the range, ascending; O(their number) in a dense queue."""
        first = next(iter(self.entries), until_pos + 1)
        start, end = max(after_pos + 1, first), min(until_pos + 1, self.record.next_pos)
        if end - start > 8 * len(self.entries):
            return iter([pos for pos in self.entries if start <= pos < end])
        return filter(self.entries.__contains__, range(start, end))


class MemoryStore:
    """A store of dictionaries; operations on unknown sessions are ignored."""

    durability: records.Durability = records.Durability.MEMORY
    immediate: bool = True
    on_disk: bool = False
    upkeep_ticks: int = 5
    lease_s: float | None = None

    clock: Callable[[], float] | None = None

    def __init__(self, wall_s: Callable[[], float] = lambda: 0.0) -> None:
        """`wall_s` reads the wall clock, for the stamps of logged messages."""
        self._wall_s = wall_s
        self._home = MemoryHome()
        self.log = MessageLog(self._home, high=0)
        """The message log, for tests. A node does not use it, because its memory is unbounded."""
        self._sessions: dict[str, records.SessionRecord] = {}
        self._queues: dict[str, _Queue] = {}
        self._retained: dict[str, tuple[Publish, float]] = {}

    def commit(self, ops: Sequence[records.StoreOp]) -> Fenced:
        for op in ops:
            self._apply(op)
        return NOT_FENCED

    def _apply(self, op: records.StoreOp) -> None:
        if isinstance(op, _OTHERS):
            self._apply_to_others(op)
            return
        queue = self._queues.get(op.client_id)
        if queue is not None:
            self._apply_to_session(op, queue)

    def _apply_to_others(self, op: _Other) -> None:
        match op:
            case records.PutSession(client_id, expiry_interval_s, ends_at_s, is_application, user):
                record = self._sessions.get(client_id)
                if record is None:
                    record = records.SessionRecord(client_id, expiry_interval_s)
                    self._sessions[client_id] = record
                    self._queues[client_id] = _Queue(record)
                record.expiry_interval_s = expiry_interval_s
                record.ends_at_s = ends_at_s
                record.is_application = is_application
                record.user = user
            case records.DropSession(client_id):
                self._sessions.pop(client_id, None)
                self._queues.pop(client_id, None)
            case records.PutRetained(message, expires_at_s):
                self._retained[message.topic] = (message, expires_at_s)
            case records.DropRetained(topic):
                self._retained.pop(topic, None)
            case records.AppendToLog(publisher, message, expires_at_s):
                self._append_to_log(publisher, message, expires_at_s)

    def _put_place(
        self, op: records.PutLogPlace | records.PutLogStart, record: records.SessionRecord
    ) -> None:
        place = op.place
        if isinstance(op, records.PutLogPlace):
            record.log_place = LogPlace(self.log.high).encode() if place is None else place
            return
        if place is None:
            place = LogStart.new(self.log, op.since_s, self.log.high).encode()
        if place:
            record.log_starts[op.filter] = place
        else:
            record.log_starts.pop(op.filter, None)

    def _append_to_log(self, publisher: str, message: Publish, expires_at_s: float) -> None:
        log = self.log
        current = log.begin()
        stamp = max(log.high + 1, stamp_at(self._wall_s()))
        size_bytes = 0
        rows = log.rows_of(stamp, publisher, message, expires_at_s)
        for key, value in (*rows, *log.learned()):
            self._home.spaces[current.number].put(key, value)
            size_bytes += len(key) + len(value)
        current = current.with_more(stamp, stamp, 1, size_bytes)
        self._home.write({current.number: current.encode()})
        log.appended(current)
        log.high = stamp

    def _apply_to_session(self, op: records.StoreOp, queue: _Queue) -> None:
        match op:
            case records.Append(_, pos, delivery):
                queue.put(
                    records.QueueEntry(pos, records.packet_id_of(pos, delivery.qos), delivery)
                )
            case records.Settle(_, pos):
                queue.drop(pos)
            case records.Sent(_, pos):
                queue.record.sent_pos = max(queue.record.sent_pos, pos)
            case records.Release(_, pos, packet_id):
                queue.release(pos, packet_id)
            case _:
                self._apply_to_record(op, queue.record)

    def _apply_to_record(self, op: records.StoreOp, record: records.SessionRecord) -> None:
        match op:
            case records.PutSubscription(_, filter, options, after):
                record.subscriptions[filter] = options
                record.retained_after.pop(filter, None)
                if after is not None:
                    record.retained_after[filter] = after
            case records.DropSubscription(_, filter):
                record.subscriptions.pop(filter, None)
                record.retained_after.pop(filter, None)
            case records.PutInbound(_, packet_id):
                record.inbound_ids.add(packet_id)
            case records.DropInbound(_, packet_id):
                record.inbound_ids.discard(packet_id)
            case records.PutWill(_, will):
                record.will = will
            case records.PutLogPlace() | records.PutLogStart():
                self._put_place(op, record)

    def sessions(self) -> Iterator[records.SessionRecord]:
        for client_id in sorted(self._sessions):
            yield self._sessions[client_id]

    def retained(self) -> Iterator[tuple[Publish, float]]:
        for topic in sorted(self._retained):
            yield self._retained[topic]

    def fetch(
        self,
        client_id: str,
        after_pos: int,
        limit: int,
        *,
        until_pos: int = POS_MAX,
        bytes_max: int = FETCH_BYTES,
    ) -> list[records.QueueEntry]:
        queue = self._queues.get(client_id)
        if queue is None:
            return []
        found: list[records.QueueEntry] = []
        size_bytes = 0
        for pos in queue.between(after_pos, until_pos):
            if len(found) == limit or size_bytes >= bytes_max:
                break
            entry = queue.entries[pos]
            found.append(entry)
            if entry.delivery is not None:
                size_bytes += entry.delivery.size_bytes
        return found

    def maintain(self) -> bool:
        return self.log.maintain(self._wall_s())

    def backup(self, folder: Path) -> None:
        raise StoreError("the memory store has nothing to back up: it ends with its process")

    def load(self) -> StoreLoad:
        return StoreLoad()

    def close(self) -> None:
        """Do nothing: the content stays for the next user of this object."""
