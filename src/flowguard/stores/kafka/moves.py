"""Moves of whole queues into a topic and out of it. A moved queue passes through memory."""

from collections.abc import Iterator
from typing import Final

from flowguard import records
from flowguard.stores.base import Store, session_ops
from flowguard.stores.kafka.plan import CommitPlan
from flowguard.stores.kafka.queue import ApplicationQueue
from flowguard.types import Publish

PAGE: Final = 500
MOVED: Final = records.Delivery(Publish("", b"", 2), 2, False, (), 0.0)
"""Stands for a message that the client has already received, and that still needs a PUBREL."""


def plan_move_in(plan: CommitPlan, base: Store, client_id: str, next_pos: int) -> None:
    """Move the queue from the other store to the topic, which has all entries below `next_pos`."""
    for entry in _entries(base, client_id):
        delivery = entry.delivery or MOVED
        if entry.pos >= next_pos:
            plan.appends.setdefault(client_id, []).append(
                records.Append(client_id, entry.pos, delivery)
            )
        if entry.delivery is None:
            plan.changes.append(records.Release(client_id, entry.pos, entry.packet_id, delivery))
        plan.rest.append(records.Settle(client_id, entry.pos, entry.delivery))


def plan_move_out(
    plan: CommitPlan, base: Store, store: Store, client_id: str, queue: ApplicationQueue
) -> None:
    """Move the queue from the topic to the other store, with the same positions."""
    entries = list(_entries(store, client_id))
    next_pos, sent_pos = queue.next_pos, queue.window.sent_pos
    if entries:
        # The other store rejects positions that it has had before, so the session is recreated.
        record = next(each for each in base.sessions() if each.client_id == client_id)
        next_pos, sent_pos = max(next_pos, record.next_pos), max(sent_pos, record.sent_pos)
        plan.rest += [records.DropSession(client_id), *session_ops(record)]
        if record.log_place:
            plan.rest.append(records.PutLogPlace(client_id, record.log_place))
        plan.rest += [records.PutLogStart(client_id, *each) for each in record.log_starts.items()]
    last_pos = 0
    for entry in entries:
        last_pos = entry.pos
        plan.rest.append(records.Append(client_id, last_pos, entry.delivery or MOVED))
        if entry.delivery is None:
            plan.rest.append(records.Release(client_id, last_pos, entry.packet_id, MOVED))
    if last_pos < next_pos - 1:
        # Positions never go back, even if no entry has the highest one.
        last_pos = next_pos - 1
        plan.rest += [
            records.Append(client_id, last_pos, MOVED),
            records.Settle(client_id, last_pos, MOVED),
        ]
    plan.rest.append(records.Sent(client_id, sent_pos))


def _entries(store: Store, client_id: str) -> Iterator[records.QueueEntry]:
    after_pos = 0
    while page := store.fetch(client_id, after_pos, PAGE):
        yield from page
        after_pos = page[-1].pos
