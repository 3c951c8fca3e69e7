"""Copies one store to another one, of any kind; no broker may use either of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from flowguard import records
from flowguard.errors import StoreError
from flowguard.stores.base import Store, session_ops
from flowguard.types import Publish

PAGE: Final = 256
Commit = Callable[[Sequence[records.StoreOp]], object]
"""`Store.commit`, or a function that calls it."""


@dataclass(slots=True)
class Transferred:
    sessions: int = 0
    groups: int = 0
    entries: int = 0
    retained: int = 0


def transfer(
    source: Store, target: Store, progress: Callable[[int, int], None] = lambda done, total: None
) -> Transferred:
    """Copy sessions, queues at their positions, and retained messages.

    Times are converted from the clock of `source` to that of `target`, in whole seconds.

    Raises `StoreError` if the target is not empty, or a session of the source reads the durable
    log, which is not copied.
    """
    if next(target.sessions(), None) is not None or next(target.retained(), None) is not None:
        raise StoreError("the target is not empty: name a new one, or another prefix")
    later_s = 0
    if source.clock is not None and target.clock is not None:
        later_s = round(target.clock() - source.clock())
    sessions = list(source.sessions())
    for record in sessions:
        reject_log_reader(record)
    found = Transferred()
    for done, record in enumerate(sessions):
        progress(done, len(sessions))
        found.entries += copy_session(source, record, later_s, target.commit)
        if records.is_group(record.client_id):
            found.groups += 1
        else:
            found.sessions += 1
    batch: list[records.StoreOp] = []
    for message, expires_at_s in source.retained():
        batch.append(records.PutRetained(message, expires_at_s + later_s))
        found.retained += 1
        if len(batch) == PAGE:
            target.commit(batch)
            batch = []
    target.commit(batch)
    return found


def reject_log_reader(record: records.SessionRecord) -> None:
    """Raises `StoreError` if a session reads the durable log."""
    if record.log_place:
        raise StoreError(
            f"session {record.client_id!r} reads the durable log, which only RocksDB keeps: "
            "it is not copied"
        )


def copy_session(source: Store, record: records.SessionRecord, later_s: int, commit: Commit) -> int:
    """Copy a session with its queue. Return the number of entries.

    Times are moved by `later_s`. `commit` is that of the target.
    """
    if record.ends_at_s is not None:
        record.ends_at_s += later_s
    name, count, after_pos = record.client_id, 0, 0
    commit(session_ops(record))
    while page := source.fetch(name, after_pos, PAGE):
        ops: list[records.StoreOp] = []
        for entry in page:
            ops += _entry_ops(name, entry, later_s)
        commit(ops)
        count += len(page)
        after_pos = page[-1].pos
    ops = []
    if record.next_pos > after_pos + 1:  # The last positions are settled, but stay used.
        last_pos = record.next_pos - 1
        ops += (records.Append(name, last_pos, nothing(1)), records.Settle(name, last_pos))
    if record.sent_pos:
        ops.append(records.Sent(name, record.sent_pos))
    commit(ops)
    return count


def _entry_ops(name: str, entry: records.QueueEntry, later_s: int) -> list[records.StoreOp]:
    delivery, pos = entry.delivery, entry.pos
    if delivery is None:
        owed = nothing(2)
        return [records.Append(name, pos, owed), records.Release(name, pos, entry.packet_id, owed)]
    return [records.Append(name, pos, copy_of(delivery, later_s))]


def copy_of(delivery: records.Delivery, later_s: int) -> records.Delivery:
    """Return a delivery without the source's place of the message."""
    return records.Delivery(
        delivery.message,
        delivery.qos,
        delivery.retain,
        delivery.identifiers,
        delivery.expires_at_s + later_s,
    )


def nothing(qos: int) -> records.Delivery:
    """Return a placeholder for a message whose content is not needed."""
    return records.Delivery(Publish("-", b"", qos), qos, False, (), records.NEVER_S)
