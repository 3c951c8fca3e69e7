"""The store in memory: the reference for every other, and the default until one is durable.

It survives the broker object, not the process: a test that drops a broker and builds another one
over the same store sees what a restart would see.
"""

from collections.abc import Iterator, Sequence
from typing import final

from flowguard.records import (
    Append,
    DropInbound,
    DropRetained,
    DropSession,
    DropSubscription,
    Durability,
    PutInbound,
    PutRetained,
    PutSession,
    PutSubscription,
    PutWill,
    QueueEntry,
    Release,
    Sent,
    SessionRecord,
    Settle,
    StoreOp,
    packet_id_of,
)
from flowguard.stores.base import StoreLoad
from flowguard.types import Publish


@final
class MemoryStore:
    """Dictionaries in the shape of the contract; operations on unknown sessions are ignored."""

    durability = Durability.MEMORY
    immediate = True

    def __init__(self) -> None:
        self._sessions: dict[str, SessionRecord] = {}
        self._queues: dict[str, dict[int, QueueEntry]] = {}
        self._retained: dict[str, tuple[Publish, float]] = {}

    def commit(self, ops: Sequence[StoreOp]) -> None:
        for op in ops:
            self._apply(op)

    def _apply(self, op: StoreOp) -> None:
        match op:
            case PutSession(client_id, expiry_interval_s, ends_at_s):
                record = self._sessions.get(client_id)
                if record is None:
                    record = SessionRecord(client_id, expiry_interval_s)
                    self._sessions[client_id] = record
                    self._queues[client_id] = {}
                record.expiry_interval_s = expiry_interval_s
                record.ends_at_s = ends_at_s
            case DropSession(client_id):
                self._sessions.pop(client_id, None)
                self._queues.pop(client_id, None)
            case PutRetained(message, expires_at_s):
                self._retained[message.topic] = (message, expires_at_s)
            case DropRetained(topic):
                self._retained.pop(topic, None)
            case _:
                if op.client_id in self._sessions:
                    self._apply_to_session(op, self._sessions[op.client_id])

    def _apply_to_session(self, op: StoreOp, record: SessionRecord) -> None:
        queue = self._queues[record.client_id]
        match op:
            case Append(_, pos, delivery):
                queue[pos] = QueueEntry(pos, packet_id_of(pos, delivery.qos), delivery)
                record.next_pos = max(record.next_pos, pos + 1)
            case Sent(_, pos):
                record.sent_pos = max(record.sent_pos, pos)
            case Settle(_, pos):
                queue.pop(pos, None)
            case Release(_, pos, packet_id):
                queue[pos] = QueueEntry(pos, packet_id, None)
            case PutSubscription(_, filter, options):
                record.subscriptions[filter] = options
            case DropSubscription(_, filter):
                record.subscriptions.pop(filter, None)
            case PutInbound(_, packet_id):
                record.inbound_ids.add(packet_id)
            case DropInbound(_, packet_id):
                record.inbound_ids.discard(packet_id)
            case PutWill(_, will):
                record.will = will

    def sessions(self) -> Iterator[SessionRecord]:
        for client_id in sorted(self._sessions):
            yield self._sessions[client_id]

    def retained(self) -> Iterator[tuple[Publish, float]]:
        for topic in sorted(self._retained):
            yield self._retained[topic]

    def fetch(self, client_id: str, after_pos: int, limit: int) -> list[QueueEntry]:
        queue = self._queues.get(client_id, {})
        return [queue[pos] for pos in sorted(queue) if pos > after_pos][:limit]

    def load(self) -> StoreLoad:
        return StoreLoad()

    def close(self) -> None:
        """Nothing to release: the content stays for whoever opens this object again."""
