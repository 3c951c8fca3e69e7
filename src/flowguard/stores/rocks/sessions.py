"""Sessions and their data except their queue: family s."""

from collections.abc import Callable, Iterator
from itertools import islice
from operator import itemgetter
from typing import Final, final

from flowguard.errors import CorruptionError
from flowguard.records import (
    DropInbound,
    DropSession,
    DropSubscription,
    PutInbound,
    PutLogPlace,
    PutLogStart,
    PutSession,
    PutSubscription,
    PutWill,
    SessionRecord,
    owner_name,
)
from flowguard.stores.log.message_log import MessageLog
from flowguard.stores.log.replays import LogPlace, LogStart
from flowguard.stores.rocks.database.engine import RocksEngine
from flowguard.stores.rocks.layouts import keys
from flowguard.stores.rocks.layouts.queue import Draft, Queue
from flowguard.stores.rocks.layouts.session_codec import (
    check_inbound,
    decode_session,
    decode_subscription,
    encode_inbound,
    encode_session,
    encode_subscription,
    is_applications,
    session_user,
)
from flowguard.stores.rows import decode_will, encode_will

PORTION: Final = 16_384
"""Sessions that are read at once. In the order of their numbers, neighbours lie in one block."""
NewQueue = Callable[[int], Queue]


def count_entries(engine: RocksEngine, queues: list[Queue]) -> None:
    """Count the entries that were appended after the records of restored queues were written."""
    found = [(queue, ends) for queue in queues if (ends := queue.uncounted) is not None]

    def count(number: int, key: bytes, value: bytes) -> None:
        found[number][0].count_entry(key, value)

    engine.queues.visit([ends for _, ends in found], count)


def _is_idle(queue: Queue) -> bool:
    """Return True if it has no entry, and its record in the store says all that it knows."""
    return not (queue.count or queue.needs_record or queue.is_untidy or queue.pending_forgets)


def _number(queue: Queue) -> int:
    return queue.qno


@final
class Sessions:
    """The queues of sessions by client id, and their numbers."""

    def __init__(self, engine: RocksEngine, new_queue: NewQueue) -> None:
        self._engine = engine
        self._new_queue = new_queue
        self.queues: dict[str, Queue] = {}
        """Those with work to do at the start or an operation since; `queue_of` makes others."""
        self.dropped: dict[int, Queue | None] = {}
        """Queues by number whose rows must still be deleted, or None if dropped before the start.
        """
        counter = engine.meta.get(keys.QNO_KEY)
        self.next_qno = 1 if counter is None else int.from_bytes(counter, "big")
        self._qno_written = self.next_qno

    def restore(self, *, clean: bool) -> None:
        """Restore the queues with work to do. `clean` is False if the store was not closed
        properly."""
        sessions = self.rows()
        while rows := list(islice(sessions, PORTION)):
            queues = self._restored(rows)
            if not clean:
                count_entries(self._engine, sorted(queues, key=_number))
            for (client_id, _), queue in zip(rows, queues, strict=True):
                if not _is_idle(queue):
                    self.queues[client_id] = queue

    def _restored(self, rows: list[tuple[str, bytes]]) -> list[Queue]:
        """Return the queues of sessions, by their records; `rows` as from `self.rows`."""
        found: list[Queue] = []
        for _, value in rows:
            qno, _, ends_at_s = decode_session(value)
            queue = self._new_queue(qno)
            queue.connected = ends_at_s is None
            found.append(queue)
        ordered = sorted(found, key=_number)
        records = self._engine.queues.get_many([keys.record_key(queue.qno) for queue in ordered])
        for queue, record in zip(ordered, records, strict=True):
            queue.restore(self._engine, record)
        return found

    def queue_of(self, client_id: str) -> Queue | None:
        """Return the queue of a session, or None if there is no session."""
        queue = self.queues.get(client_id)
        if queue is None:
            value = self._engine.own.get(keys.session_key(client_id))
            if value is None:
                return None
            (queue,) = self._restored([(client_id, value)])
            if queue.qno in self.dropped:
                return None  # The batch in the making deletes the row.
            self.queues[client_id] = queue
        return queue

    def rows(self) -> Iterator[tuple[str, bytes]]:
        """Yield client ids and the sessions' own rows, in the order of client ids."""
        for key, value in self._engine.own.rows(keys.SESSION, keys.SESSION_END):
            yield keys.client_id_of(key), value

    def records(self) -> Iterator[SessionRecord]:
        sessions = self.rows()
        while rows := list(islice(sessions, PORTION)):
            idle = [row for row in rows if row[0] not in self.queues]
            restored = iter(self._restored(idle))
            found = [
                self._begin(name, self.queues.get(name) or next(restored), value)
                for name, value in rows
            ]
            self._add_all_own(found)
            found.reverse()
            while found:
                yield found.pop()[0]

    def record(self, client_id: str, queue: Queue, value: bytes) -> SessionRecord:
        """Return the record of a session and its queue; `value` is its row."""
        found = self._begin(client_id, queue, value)
        self._add_all_own([found])
        return found[0]

    def _begin(self, client_id: str, queue: Queue, value: bytes) -> tuple[SessionRecord, int]:
        """Return the record of a session without its other rows, and its number."""
        qno, expiry_interval_s, ends_at_s = decode_session(value)
        record = SessionRecord(client_id, expiry_interval_s, ends_at_s)
        record.is_application = is_applications(value)
        record.user = session_user(value)
        record.next_pos = queue.next_pos
        record.sent_pos = queue.sent_pos
        record.unsettled_count = queue.count
        record.unsettled_bytes = queue.size_bytes
        return record, qno

    def _add_all_own(self, found: list[tuple[SessionRecord, int]]) -> None:
        """Add the other rows of sessions."""
        ordered = sorted(found, key=itemgetter(1))

        def add(number: int, key: bytes, value: bytes) -> None:
            kind, rest = key[keys.OWN_KIND_AT], key[keys.OWN_KIND_AT + 1 :]
            self._add_own(ordered[number][0], kind, rest, value)

        ranges = [(keys.own_prefix(qno), keys.own_prefix(qno + 1)) for _, qno in ordered]
        self._engine.own.visit(ranges, add)

    def _add_own(self, record: SessionRecord, kind: int, rest: bytes, value: bytes) -> None:
        if kind == keys.SUBSCRIPTION:
            filter = rest.decode()
            record.subscriptions[filter], after = decode_subscription(value)
            if after is not None:
                record.retained_after[filter] = after
        elif kind == keys.INBOUND:
            check_inbound(value)
            record.inbound_ids.add(int.from_bytes(rest, "big"))
        elif kind == keys.WILL:
            record.will = decode_will(value)
        elif kind == keys.LOG_PLACE:
            record.log_place = value
        elif kind == keys.LOG_START:
            record.log_starts[rest.decode()] = value
        else:
            raise CorruptionError(f"{owner_name(record.client_id)} has a row of kind {kind}")

    def write_counter(self, work: Draft) -> None:
        """Write the counter with the batch that used numbers; an unused number does no harm."""
        if self.next_qno != self._qno_written:
            work.batch.put(keys.QNO_KEY, self.next_qno.to_bytes(8, "big"), self._engine.meta.handle)

    def counter_written(self) -> None:
        self._qno_written = self.next_qno

    # --- operations ---------------------------------------------------------------------------

    def put(self, work: Draft, op: PutSession) -> None:
        client_id = op.client_id
        queue = self.queue_of(client_id)
        if queue is None:
            qno = self.next_qno
            self.next_qno = qno + 1
            queue = self._new_queue(qno)
            self.queues[client_id] = queue
            work.undo.append(lambda: self.queues.pop(client_id))
        before, connected = queue.connected, op.ends_at_s is None
        if before != connected:
            queue.connected = connected
            changed = queue
            work.undo.append(lambda: setattr(changed, "connected", before))
            if not connected:
                work.records.append(queue)
        clock = work.clock
        clock.hlc += 1
        value = encode_session(
            queue.qno,
            op.expiry_interval_s,
            op.ends_at_s,
            clock.hlc,
            clock.node,
            is_application=op.is_application,
            user=op.user,
        )
        work.batch.put(keys.session_key(client_id), value, self._engine.own.handle)

    def drop(self, work: Draft, op: DropSession) -> None:
        client_id = op.client_id
        queue = self.queue_of(client_id)
        if queue is None:
            return
        del self.queues[client_id]
        queue.dropped = True
        self.dropped[queue.qno] = queue
        work.undo.append(lambda: self._undrop(client_id, queue))
        work.batch.delete(keys.session_key(client_id), self._engine.own.handle)
        work.batch.put(keys.sweep_key(queue.qno), b"", self._engine.meta.handle)

    def _undrop(self, client_id: str, queue: Queue) -> None:
        queue.dropped = False
        del self.dropped[queue.qno]
        self.queues[client_id] = queue

    def put_subscription(self, work: Draft, op: PutSubscription) -> None:
        queue = self.queue_of(op.client_id)
        if queue is not None:
            clock = work.clock
            clock.hlc += 1
            value = encode_subscription(op.options, op.retained_after, clock.hlc, clock.node)
            key = keys.subscription_key(queue.qno, op.filter)
            work.batch.put(key, value, self._engine.own.handle)

    def drop_subscription(self, work: Draft, op: DropSubscription) -> None:
        queue = self.queue_of(op.client_id)
        if queue is not None:
            key = keys.subscription_key(queue.qno, op.filter)
            work.batch.delete(key, self._engine.own.handle)

    def put_inbound(self, work: Draft, op: PutInbound) -> None:
        queue = self.queue_of(op.client_id)
        if queue is not None:
            clock = work.clock
            clock.hlc += 1
            key = keys.inbound_key(queue.qno, op.packet_id)
            value = encode_inbound(clock.hlc, clock.node)
            work.batch.put(key, value, self._engine.own.handle)

    def drop_inbound(self, work: Draft, op: DropInbound) -> None:
        queue = self.queue_of(op.client_id)
        if queue is not None:
            work.batch.delete(keys.inbound_key(queue.qno, op.packet_id), self._engine.own.handle)

    def put_will(self, work: Draft, op: PutWill) -> None:
        queue = self.queue_of(op.client_id)
        if queue is None:
            return
        key = keys.will_key(queue.qno)
        if op.will is None:
            work.batch.delete(key, self._engine.own.handle)
        else:
            work.batch.put(key, encode_will(op.will), self._engine.own.handle)

    def put_log_place(self, work: Draft, op: PutLogPlace, last: int) -> None:
        """`last` is the stamp of the last message logged before the operation, or a later unused
        stamp."""
        queue = self.queue_of(op.client_id)
        if queue is None:
            return
        key = keys.log_place_key(queue.qno)
        place = LogPlace(last).encode() if op.place is None else op.place
        if place:
            work.batch.put(key, place, self._engine.own.handle)
        else:
            work.batch.delete(key, self._engine.own.handle)

    def put_log_start(self, work: Draft, op: PutLogStart, log: MessageLog, last: int) -> None:
        """`last` is as in `put_log_place`."""
        queue = self.queue_of(op.client_id)
        if queue is None:
            return
        key = keys.log_start_key(queue.qno, op.filter)
        token = op.place
        if token is None:
            token = LogStart.new(log, op.since_s, last).encode()
        if token:
            work.batch.put(key, token, self._engine.own.handle)
        else:
            work.batch.delete(key, self._engine.own.handle)

    def log_starts(self, client_id: str) -> dict[str, bytes]:
        """Return the positions of subscriptions that started in the past, by filter."""
        queue = self.queue_of(client_id)
        if queue is None:
            return {}
        start = keys.log_start_key(queue.qno, "")
        end = start[:-1] + bytes([keys.LOG_START + 1])
        rows = self._engine.own.rows(start, end)
        return {key[keys.OWN_KIND_AT + 1 :].decode(): token for key, token in rows}

    def log_place(self, client_id: str) -> bytes:
        """Return the session's place in the durable log, empty if it has none."""
        queue = self.queue_of(client_id)
        return b"" if queue is None else self._engine.own.get(keys.log_place_key(queue.qno)) or b""
