"""Sessions and their data except their queue: family s."""

from collections.abc import Callable, Iterator
from itertools import islice
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
from flowguard.stores.rocks.database.engine import SCAN_ROWS, RocksEngine
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

OWN_BYTES: Final = 2**40
"""Limit of a scan that never applies: a session's rows are bounded, so only SCAN_ROWS ends it."""
NewQueue = Callable[[int], Queue]


@final
class Sessions:
    """The queues of all sessions by client id, and their numbers."""

    def __init__(self, engine: RocksEngine, new_queue: NewQueue) -> None:
        self._engine = engine
        self._new_queue = new_queue
        self.queues: dict[str, Queue] = {}
        self.dropped: dict[int, Queue | None] = {}
        """Queues by number whose rows must still be deleted, or None if dropped before the start.
        """
        counter = engine.meta.get(keys.QNO_KEY)
        self.next_qno = 1 if counter is None else int.from_bytes(counter, "big")
        self._qno_written = self.next_qno

    def restore(self, *, clean: bool) -> None:
        """Restore all queues. `clean` is False if the store was not closed properly."""
        engine = self._engine
        sessions = self.rows()
        while rows := list(islice(sessions, SCAN_ROWS)):
            found = [(client_id, decode_session(value)) for client_id, value in rows]
            places = [keys.record_key(qno) for _, (qno, _, _) in found]
            records = engine.queues.get_many(places)
            for (client_id, (qno, _, ends_at_s)), record in zip(found, records, strict=True):
                queue = self._new_queue(qno)
                queue.connected = ends_at_s is None
                queue.restore(engine, record, clean=clean)
                self.queues[client_id] = queue

    def rows(self) -> Iterator[tuple[str, bytes]]:
        """Yield client ids and the sessions' own rows, in the order of client ids."""
        for key, value in self._engine.own.rows(keys.SESSION, keys.SESSION_END):
            yield keys.client_id_of(key), value

    def records(self) -> Iterator[SessionRecord]:
        for client_id, value in self.rows():
            queue = self.queues.get(client_id)
            if queue is not None:
                yield self.record(client_id, queue, value)

    def record(self, client_id: str, queue: Queue, value: bytes) -> SessionRecord:
        """Return the record of a session and its queue; `value` is its row."""
        qno, expiry_interval_s, ends_at_s = decode_session(value)
        record = SessionRecord(client_id, expiry_interval_s, ends_at_s)
        record.is_application = is_applications(value)
        record.user = session_user(value)
        record.next_pos = queue.next_pos
        record.sent_pos = queue.sent_pos
        record.unsettled_count = queue.count
        record.unsettled_bytes = queue.size_bytes
        start, end = keys.own_prefix(qno), keys.own_prefix(qno + 1)
        while rows := self._engine.own.scan(start, end, SCAN_ROWS, OWN_BYTES):
            for key, own in rows:
                self._add_own(record, key[keys.OWN_KIND_AT], key[keys.OWN_KIND_AT + 1 :], own)
            if len(rows) < SCAN_ROWS:
                break
            start = rows[-1][0] + b"\0"
        return record

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
        queue = self.queues.get(client_id)
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
        queue = self.queues.pop(client_id, None)
        if queue is None:
            return
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
        queue = self.queues.get(op.client_id)
        if queue is not None:
            clock = work.clock
            clock.hlc += 1
            value = encode_subscription(op.options, op.retained_after, clock.hlc, clock.node)
            key = keys.subscription_key(queue.qno, op.filter)
            work.batch.put(key, value, self._engine.own.handle)

    def drop_subscription(self, work: Draft, op: DropSubscription) -> None:
        queue = self.queues.get(op.client_id)
        if queue is not None:
            key = keys.subscription_key(queue.qno, op.filter)
            work.batch.delete(key, self._engine.own.handle)

    def put_inbound(self, work: Draft, op: PutInbound) -> None:
        queue = self.queues.get(op.client_id)
        if queue is not None:
            clock = work.clock
            clock.hlc += 1
            key = keys.inbound_key(queue.qno, op.packet_id)
            value = encode_inbound(clock.hlc, clock.node)
            work.batch.put(key, value, self._engine.own.handle)

    def drop_inbound(self, work: Draft, op: DropInbound) -> None:
        queue = self.queues.get(op.client_id)
        if queue is not None:
            work.batch.delete(keys.inbound_key(queue.qno, op.packet_id), self._engine.own.handle)

    def put_will(self, work: Draft, op: PutWill) -> None:
        queue = self.queues.get(op.client_id)
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
        queue = self.queues.get(op.client_id)
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
        queue = self.queues.get(op.client_id)
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
        queue = self.queues.get(client_id)
        if queue is None:
            return {}
        start = keys.log_start_key(queue.qno, "")
        end = start[:-1] + bytes([keys.LOG_START + 1])
        rows = self._engine.own.rows(start, end)
        return {key[keys.OWN_KIND_AT + 1 :].decode(): token for key, token in rows}

    def log_place(self, client_id: str) -> bytes:
        """Return the session's place in the durable log, empty if it has none."""
        queue = self.queues.get(client_id)
        return b"" if queue is None else self._engine.own.get(keys.log_place_key(queue.qno)) or b""
