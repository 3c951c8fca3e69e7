"""CommitPlan: a batch that is being committed to Kafka and to the other store."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from flowguard.records import (
    Append,
    DropSession,
    Forward,
    PutSession,
    Release,
    Sent,
    Settle,
    StoreOp,
)
from flowguard.stores.kafka.queue import ApplicationQueue

CHANGES_MAX: Final = 500
"""Number of changes (acknowledgements and sent marks) after which a window is committed."""


@dataclass(slots=True)
class CommitPlan:
    """The remaining steps of a batch."""

    created: dict[str, ApplicationQueue] = field(default_factory=dict)
    """New queues by client id."""
    dropped: list[str] = field(default_factory=list)
    """Topics to be deleted."""
    appends: dict[str, list[Append]] = field(default_factory=dict)
    """Operations with new positions, by client id."""
    next_pos: dict[str, int] = field(default_factory=dict)
    """The position after the last one that this batch appends, by client id."""
    forwards: dict[tuple[str, int], int] = field(default_factory=dict)
    """Owed positions by client id and position."""
    changes: list[Sent | Release | Settle] = field(default_factory=list)
    rest: list[StoreOp] = field(default_factory=list)
    """Operations for the other store."""
    due: set[str] = field(default_factory=set)
    """Client ids of queues whose windows are to be committed before the batch is done."""
    changed: set[str] = field(default_factory=set)
    """Client ids of queues whose windows are committed in the background."""
    offsets: dict[str, list[int]] | None = None
    """Offsets of the appended records by client id, or None before they are written."""
    claims: list[tuple[str, bool]] = field(default_factory=list)
    """Filters of shared subscriptions of several brokers; True if this broker has members."""
    group_appends: dict[str, list[tuple[int, bytes]]] = field(default_factory=dict)
    """Records by filter, each with the number that selects its partition."""
    group_settled: dict[str, list[int]] = field(default_factory=dict)
    """Settled positions by filter."""
    group_due: set[str] = field(default_factory=set)
    """Filters whose settled positions are to be committed before the batch is done."""

    def take(
        self, ops: Sequence[StoreOp], first: int, queues: Mapping[str, ApplicationQueue]
    ) -> int:
        """Note operations from index `first` on, up to one that is about a session. Return the
        index of that one, or the end. `queues` is by client id."""
        for index in range(first, len(ops)):
            op = ops[index]
            if isinstance(op, (PutSession, DropSession)):
                return index
            if isinstance(op, Append) and op.client_id in queues:
                expected = self.next_pos.get(op.client_id, queues[op.client_id].next_pos)
                if op.pos >= expected:
                    self.next_pos[op.client_id] = op.pos + 1
                    self.appends.setdefault(op.client_id, []).append(op)
            elif isinstance(op, (Sent, Release, Settle)) and op.client_id in queues:
                self.changes.append(op)
            else:
                self.rest.append(op)
        return len(ops)

    def change(
        self,
        queues: Mapping[str, ApplicationQueue],
        size_of: Callable[[str, int], int | None],
    ) -> None:
        """Apply its changes to `queues`, by client id. `size_of` is called for a record whose size
        is not in memory, with client id and offset; it returns None for a deleted record."""
        for change in self.changes:
            queue = queues[change.client_id]
            queue.unsaved_count += 1
            if isinstance(change, Release):
                self.due.add(change.client_id)
            elif queue.unsaved_count > CHANGES_MAX:
                self.changed.add(change.client_id)
            if isinstance(change, Sent):
                queue.window.sent_pos = max(queue.window.sent_pos, change.pos)
                continue
            offset = queue.offset_of(change.pos)
            if offset is None or not queue.window.floor <= offset < queue.window.end:
                continue
            delivery = change.delivery
            size_bytes = queue.size_of(offset) if delivery is None else delivery.size_bytes
            if size_bytes is None:
                size_bytes = size_of(change.client_id, offset)
            if size_bytes is None:
                continue
            if isinstance(change, Settle):
                queue.settle(offset, size_bytes)
            else:
                queue.window.sent_pos = max(queue.window.sent_pos, change.pos)
                queue.window.release(offset, size_bytes)
        self.changes = []


def take_forwards(plan: CommitPlan, ops: Sequence[StoreOp]) -> list[StoreOp]:
    """Note the forwarded positions. Return all other operations."""
    others: list[StoreOp] = []
    for op in ops:
        if isinstance(op, Forward):
            plan.forwards[op.client_id, op.pos] = op.owed_pos
        else:
            others.append(op)
    return others


def parts_of(ops: Sequence[StoreOp], here: Iterable[str]) -> list[Sequence[StoreOp]]:
    """Return the parts of a batch, to be committed one after the other. `here` has the client ids
    that have a topic before the batch.

    A session is deleted in both stores before one of the same name has a topic, so that the owner
    of a topic is certain after a crash. A queue moves with all earlier operations of the batch.
    """
    parts: list[Sequence[StoreOp]] = []
    has_topic = set(here)
    first = 0
    for index, op in enumerate(ops):
        cut = first
        if isinstance(op, DropSession) and op.client_id in has_topic:
            has_topic.discard(op.client_id)
            cut = index + 1
        elif isinstance(op, PutSession) and op.is_application != (op.client_id in has_topic):
            has_topic ^= {op.client_id}
            cut = index
        if first < cut < len(ops):
            parts.append(ops[first:cut])
            first = cut
    return [*parts, ops[first:]]
