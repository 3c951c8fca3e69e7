"""Owed: work that the store of applications does not have yet. It is messages of the node's own
(wills, dead letters), and releases of messages that groups of applications gave to devices.

No publisher waits with such a message, and its cause ends without Kafka: the session of a will, the
message that a dead letter replaces. So the message enters the first journal, once for all
applications, under a key of its own. The end of its cause and the devices' part are in the same
batch. The release is in one batch with the messages for shared subscriptions. After a crash the
message is routed again to all applications whose store has nothing as late (`Forward`).

A device that gets a message from a group of applications does not wait for their store. The message
for the device enters the first journal together with a note that it has left the group. After a
crash the release is done again, before any member gets the message.
"""

from dataclasses import dataclass
from functools import partial
from typing import Final, final

from flowguard.node.applications.apart import Apart
from flowguard.node.applications.divided_journal import DividedJournal
from flowguard.node.journal import OP_BYTES, Continuation
from flowguard.node.publish.deliveries import Admitted, Deliveries, placed
from flowguard.node.publish.grouping import Group
from flowguard.node.publish.in_process import appends
from flowguard.node.publish.plans import Plan
from flowguard.node.shared.shared_queue import NO_PACKET_ID
from flowguard.node.shared.shared_queues import SharedQueues
from flowguard.records import (
    NEVER_S,
    OWED,
    Append,
    Delivery,
    Forward,
    PutSession,
    Release,
    SessionRecord,
    Settle,
    SinkKind,
    StoreOp,
    is_group,
)
from flowguard.stores import ApplicationStore, Store
from flowguard.types import SESSION_NEVER_EXPIRES, Publish

PAGE: Final = 1_000
"""Entries that are fetched together."""


@final
@dataclass(frozen=True, slots=True)
class OwedRelease:
    """A release to a group of applications that the node owes, and how the store keeps it."""

    key: str
    """The key of the group's queue."""
    pos: int

    def entry(self) -> Delivery:
        """Return what the store keeps: no message has such a topic."""
        return Delivery(Publish(self.key, b"%d" % self.pos, 1), 1, False, (), NEVER_S)

    @staticmethod
    def of(entry: Delivery) -> "OwedRelease | None":
        """Return the release that an entry of the store is, or None if it is a message."""
        key = entry.message.topic
        return OwedRelease(key, int(entry.message.payload)) if is_group(key) else None


@final
class Owed:
    """One per node with such a store; bounded in both as the journal of applications."""

    def __init__(
        self,
        journal: DividedJournal,
        apart: Apart,
        *,
        ops_max: int,
        bytes_max: int,
    ) -> None:
        self._journal = journal
        self._apart = apart
        self._ops_max = ops_max
        self._bytes_max = bytes_max
        self._next_pos = 1
        self._is_stored = False
        """Whether the store has the name."""
        self.count = 0
        """Messages that are not settled."""
        self.size_bytes = 0

    def take(self, admitted: list[Admitted]) -> list[Admitted]:
        """Take applications out of `admitted`, and return those that get the message."""
        names = self._apart.names
        here = [each for each in admitted if each[1].qos and each[0].client_id in names]
        if not here:
            return here
        admitted[:] = [
            each for each in admitted if not (each[1].qos and each[0].client_id in names)
        ]
        is_full = self.count >= self._ops_max or self.size_bytes >= self._bytes_max
        if not is_full and not self._apart.is_full:
            return here
        for owner, delivery in here:
            self._apart.drop(owner, delivery)
        return []

    def append(
        self,
        deliveries: Deliveries,
        message: Publish,
        here: list[Admitted],
        ops: list[StoreOp],
        settle: Settle | None,
    ) -> Continuation | None:
        """Add to `ops` that these are to get it, and what is settled; what is to be called then."""
        theirs = settle if settle is not None and self._journal.names.take(settle) else None
        if settle is not None and theirs is None:
            ops.append(settle)
        if not here:
            return None if theirs is None else partial(self._settle, theirs)
        expires_at_s = min([delivery.expires_at_s for _, delivery in here], default=NEVER_S)
        delivery = Delivery(message, message.qos, message.retain, (), expires_at_s)
        pos = self._enter(delivery, ops)
        return partial(self._forward, deliveries, pos, delivery, here, theirs)

    def _enter(self, delivery: Delivery, ops: list[StoreOp]) -> int:
        """Add to `ops` that it is owed; its position."""
        if not self._is_stored:
            self._is_stored = True
            ops.append(PutSession(OWED, SESSION_NEVER_EXPIRES, None))
        pos = self._next_pos
        self._next_pos = pos + 1
        ops.append(Append(OWED, pos, delivery))
        self._add(1, delivery)
        return pos

    def _settle(self, settle: Settle, now_s: float) -> None:
        """An application's: it goes to the second journal."""
        self._journal.note(settle)

    def _add(self, count: int, delivery: Delivery) -> None:
        self.count += count
        self.size_bytes += count * (OP_BYTES + delivery.size_bytes)

    def _forward(
        self,
        deliveries: Deliveries,
        pos: int,
        delivery: Delivery,
        admitted: list[Admitted],
        settle: Settle | None,
        now_s: float,
    ) -> None:
        """Give it to applications, then to those that became devices meanwhile."""
        if settle is not None:
            self._journal.note(settle)
        names, left = self._apart.names, [each for each in admitted if not each[0].ended]
        here = [each for each in left if each[0].client_id in names]
        rest = [each for each in left if each[0].client_id not in names] if here else []
        targets = placed(here or left)
        ops = appends(targets)
        ops += [
            Forward(owner.client_id, place, pos)
            for owner, place, _ in targets
            if place and owner.client_id in names and owner.kind is SinkKind.SESSION
        ]
        if not rest:
            # As what leaves a shared subscription: a settlement may be lost in a crash.
            ops.append(Release(OWED, pos, NO_PACKET_ID, delivery))

        def done(now_s: float) -> None:
            deliveries.deliver_to(targets, now_s)
            if rest:
                self._forward(deliveries, pos, delivery, rest, None, now_s)
                return
            self._add(-1, delivery)
            self._released(pos, now_s)

        self._journal.append(ops, done, now_s)

    def _released(self, pos: int, now_s: float) -> None:
        self._journal.note(Settle(OWED, pos))

    # --- groups ------------------------------------------------------------------------------

    def hand_over(self, release: Release, ops: list[StoreOp]) -> Continuation | None:
        """Add to `ops`, by which a member gets a message of its group, that the release is owed.

        Returns the continuation for when they are durable, or None if one store has both."""
        names = self._journal.names
        if not ops or names.take_any(ops, "") or not names.take(release):
            return None
        delivery = OwedRelease(release.client_id, release.pos).entry()
        return partial(self._release, self._enter(delivery, ops), delivery, release)

    def _release(self, pos: int, delivery: Delivery, release: Release, now_s: float) -> None:
        self._journal.append([release], partial(self._handed_over, pos, delivery), now_s)

    def _handed_over(self, pos: int, delivery: Delivery, now_s: float) -> None:
        self._add(-1, delivery)
        self._released(pos, now_s)

    def _release_again(
        self,
        queues: SharedQueues,
        release: OwedRelease,
        pos: int,
        delivery: Delivery,
        now_s: float,
    ) -> None:
        queue = queues.named(release.key)
        if queue is None:
            self._released(pos, now_s)
            return
        self._add(1, delivery)
        released = partial(self._handed_over, pos, delivery)
        queue.let_go_again(release.pos, released, now_s)

    # --- restart -----------------------------------------------------------------------------

    def recover(
        self, deliveries: Deliveries, record: SessionRecord, store: Store, now_s: float
    ) -> None:
        """Give applications the messages that they are owed, before all others."""
        apart: object = store
        assert isinstance(apart, ApplicationStore)
        self._is_stored = True
        self._next_pos = record.next_pos
        after_pos = 0
        while entries := store.fetch(OWED, after_pos, PAGE):
            for entry in entries:
                after_pos = entry.pos
                delivery = entry.delivery
                if delivery is None:
                    self._released(after_pos, now_s)
                    continue
                release = OwedRelease.of(delivery)
                if release is not None:
                    self._release_again(deliveries.queues, release, after_pos, delivery, now_s)
                    continue
                admitted: list[Admitted] = []
                if delivery.expires_at_s > now_s:
                    plan = self._plan(deliveries, delivery.message, apart, after_pos)
                    deliveries.admit(admitted, plan, delivery.message, None, now_s)
                for _, each in admitted:
                    each.expires_at_s = delivery.expires_at_s
                self._add(1, delivery)
                self._forward(deliveries, entry.pos, delivery, admitted, None, now_s)

    def _plan(
        self, deliveries: Deliveries, message: Publish, store: ApplicationStore, pos: int
    ) -> Plan:
        """Applications of the topic's plan that have not got what was owed at this position."""
        plan, names = deliveries.plans.find(message.topic), self._apart.names
        while plan.making is not None:
            plan.making.step()
        groups = [
            Group(
                group.qos,
                group.retain_as_published,
                group.no_local,
                group.identifiers,
                [
                    each
                    for each in group.sessions
                    if each.client_id in names and store.owed_pos(each.client_id) < pos
                ],
            )
            for group in plan.groups
            if group.qos
        ]
        queues = deliveries.queues
        shared = [each for each in plan.shared if queues.is_of_any(each, names)]
        return Plan(groups, shared)
