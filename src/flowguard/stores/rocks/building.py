"""Builds a batch from operations, and applies a written batch to the state in memory.

This is the hot path of the store: an Append, its Sent and its Settle cost a few microseconds.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, final

from flowguard import records
from flowguard.records import Append, Sent, Settle, StoreOp
from flowguard.stores.log.generations import Generation
from flowguard.stores.log.message_log import MessageLog
from flowguard.stores.rocks.clock import UidClock
from flowguard.stores.rocks.database.engine import RocksEngine
from flowguard.stores.rocks.layouts.codec import INLINE, UID_BYTES, encode_entry
from flowguard.stores.rocks.layouts.keys import HLC_KEY
from flowguard.stores.rocks.layouts.payloads import Payloads
from flowguard.stores.rocks.layouts.queue import Draft, Queue
from flowguard.stores.rocks.layouts.session_codec import encode_retained
from flowguard.stores.rocks.log_home import generation_key
from flowguard.stores.rocks.pending import PendingRecords
from flowguard.stores.rocks.sessions import Sessions

OPS_PIECE: Final = 1_000
"""Number of operations after which other threads may run: up to two milliseconds."""


@final
class Builder:
    """The state from which batches are built: `build`, then write and `apply`, or `take_back`."""

    def __init__(
        self,
        engine: RocksEngine,
        sessions: Sessions,
        payloads: Payloads,
        pending: PendingRecords,
        clock: UidClock,
        log: MessageLog,
    ) -> None:
        self._engine = engine
        self._sessions = sessions
        self._payloads = payloads
        self._pending = pending
        self._clock = clock
        self._log = log
        self._others: dict[type, Callable[[Draft, Any], None]] = {
            records.Release: self._release,
            records.PutSession: sessions.put,
            records.DropSession: sessions.drop,
            records.PutSubscription: sessions.put_subscription,
            records.DropSubscription: sessions.drop_subscription,
            records.PutInbound: sessions.put_inbound,
            records.DropInbound: sessions.drop_inbound,
            records.PutWill: sessions.put_will,
            records.PutRetained: self._put_retained,
            records.DropRetained: self._drop_retained,
            records.AppendToLog: self._append_to_log,
            records.PutLogPlace: self._put_log_place,
            records.PutLogStart: self._put_log_start,
        }

    def work(self) -> Draft:
        return Draft(self._engine, self._clock)

    def build(self, work: Draft, ops: Sequence[StoreOp]) -> Iterator[None]:
        """Add all `ops` in order, and the records that are due; yields after each piece."""
        self._clock.begin()
        shared = self._payloads.shared(ops)
        for start in range(0, len(ops), OPS_PIECE):
            if start:
                yield
            self._add(work, ops[start : start + OPS_PIECE], shared)
        self._sessions.write_counter(work)
        self.finish(work)
        yield

    def _add(self, work: Draft, ops: Sequence[StoreOp], shared: dict[int, bytes]) -> None:
        payloads, clock, sessions = self._payloads, self._clock, self._sessions
        node = clock.node
        for op in ops:
            if isinstance(op, Append):
                queue = sessions.queue_of(op.client_id)
                if queue is None or op.pos < queue.next_pos:
                    continue
                delivery = op.delivery
                size_bytes = delivery.size_bytes
                if len(delivery.place) == UID_BYTES or (shared and id(delivery.message) in shared):
                    value = payloads.entry(work, queue, op.pos, delivery, size_bytes, shared)
                else:
                    clock.hlc += 1
                    delivery.place = INLINE
                    value = encode_entry(delivery, size_bytes, clock.hlc, node)
                queue.append(work, op.pos, value, size_bytes, delivery)
            elif isinstance(op, Sent):
                queue = sessions.queue_of(op.client_id)
                if queue is not None:
                    queue.sent(work, op.pos)
            elif isinstance(op, Settle):
                queue = sessions.queue_of(op.client_id)
                if queue is not None:
                    queue.settle(work, op.pos, op.delivery)
            else:
                self._others[op.__class__](work, op)
                work.is_promised = True

    def finish(self, work: Draft, tidy: Sequence[Queue] = ()) -> None:
        """Add the records that are due; delete shared messages without a reference."""
        quiet = set(tidy)
        for queue in dict.fromkeys((*self._pending.due(), *work.records, *tidy)):
            if not queue.dropped:
                queue.write_record(work, tidy=queue in quiet)
        if work.forgotten:
            self._payloads.delete_forgotten(work)
        clock = self._clock
        if work.logged_to is not None:
            handle = self._engine.slices[work.logged_to.number].handle
            for key, value in self._log.learned():
                work.batch.put(key, value, handle)
            record = self._grown(work.logged_to, work).encode()
            work.batch.put(generation_key(work.logged_to.number), record, self._engine.meta.handle)
        if clock.is_due:
            work.batch.put(HLC_KEY, clock.hlc.to_bytes(8, "big"), self._engine.meta.handle)
            work.hlc = clock.hlc

    def take_back(self, work: Draft) -> None:
        self._payloads.take_back(work)
        work.take_back()

    def apply(self, work: Draft) -> None:
        """Apply the written batch, including the deferred operations."""
        pending = self._pending
        for queue, mark, trimmed, forgets in work.recorded:
            queue.recorded(mark, trimmed, forgets)
            pending.recorded(queue)
        if work.forgotten:
            self._payloads.forget(work)
        if work.hlc:
            self._clock.written = self._log.high = work.hlc
        if work.logged_to is not None:
            self._log.appended(self._grown(work.logged_to, work))
        self._sessions.counter_written()
        pending.advance()
        for queue, pos in work.sent:
            queue.apply_sent(pos)
        unknown: list[tuple[Queue, int]] = []
        for queue, pos, delivery in work.settled:
            if not queue.apply_settled(pos, delivery):
                unknown.append((queue, pos))
            if not queue.waiting:
                pending.add(queue)
        if unknown:
            self._look_up(unknown)

    def _look_up(self, unknown: list[tuple[Queue, int]]) -> None:
        for queue, pos in unknown:
            # An unreadable entry is settled, too, but its size counts until its queue is empty.
            value = self._engine.queues.get_readable(queue.entry_key(pos))
            if value is not None:
                queue.apply_looked_up(pos, value)

    def _release(self, work: Draft, op: records.Release) -> None:
        queue = self._sessions.queue_of(op.client_id)
        if queue is not None:
            queue.release(work, op.pos, op.packet_id, op.delivery)

    def _put_retained(self, work: Draft, op: records.PutRetained) -> None:
        clock = self._clock
        clock.hlc += 1
        value = encode_retained(op.message, op.expires_at_s, clock.hlc, clock.node)
        work.batch.put(op.message.topic.encode(), value, self._engine.retained.handle)

    def _drop_retained(self, work: Draft, op: records.DropRetained) -> None:
        work.batch.delete(op.topic.encode(), self._engine.retained.handle)

    def _append_to_log(self, work: Draft, op: records.AppendToLog) -> None:
        generation = work.logged_to
        if generation is None:
            generation = work.logged_to = self._log.begin()
        clock = self._clock
        clock.hlc += 1
        if not work.logged_count:
            work.logged_first = clock.hlc
        handle = self._engine.slices[generation.number].handle
        for key, value in self._log.rows_of(clock.hlc, op.publisher, op.message, op.expires_at_s):
            work.batch.put(key, value, handle)
            work.logged_bytes += len(key) + len(value)
        work.logged_last = clock.hlc
        work.logged_count += 1

    def _put_log_place(self, work: Draft, op: records.PutLogPlace) -> None:
        # Sessions that have missed the same messages get the same place, and so share reads.
        self._sessions.put_log_place(work, op, work.logged_last or self._log.last)

    def _put_log_start(self, work: Draft, op: records.PutLogStart) -> None:
        self._sessions.put_log_start(work, op, self._log, work.logged_last or self._log.high)

    def _grown(self, generation: Generation, work: Draft) -> Generation:
        return generation.with_more(
            work.logged_first, work.logged_last, work.logged_count, work.logged_bytes
        )
