"""MessageSink: an owner of QoS 1 and 2 messages that wait: positions, limits, drops.

A client's session is one (`session`), the queue of a shared subscription another
(`flowguard.node.shared.shared_queue`).
"""

import sys
from typing import Final

from flowguard.errors import CorruptionError
from flowguard.flow import FairBudget, Reason
from flowguard.records import Delivery, QueueEntry, Settle, SinkKind
from flowguard.session.backlog import Backlog, Waiting
from flowguard.session.fetch import Fetch, PageOwner, ReadProgress
from flowguard.session.node_state import NodeState
from flowguard.stores import Store

UNBOUNDED: Final = sys.maxsize
"""Instead of a bound on messages, or bytes."""
ITS_OWN: Final = (Reason.QUEUE_MESSAGES, Reason.QUEUE_BYTES)
"""Bounds of one queue, not of the node."""


class MessageSink(PageOwner):
    """An owner of messages that wait in `queue`; if `durable`, the store has them, too."""

    __slots__ = (
        "behind",
        "durable",
        "is_application",
        "is_logged",
        "next_pos",
        "queue",
        "reads_log",
    )

    def __init__(self, client_id: str, queue: Backlog, *, durable: bool) -> None:
        super().__init__(client_id)
        self.durable = durable
        self.reads_log = False
        """Its client is away or catching up: what is logged is not put into its queue."""
        self.behind = False
        """Something was logged for it since."""
        self.is_application = False
        """Its client is one that consumes everything, however far it falls behind."""
        self.is_logged = False
        """All that is for it is logged: what finds no room in its queue is read from there."""
        self.queue = queue
        self.next_pos = 1

    # --- what each kind does its own way -----------------------------------------------------

    @property
    def kind(self) -> SinkKind:
        raise NotImplementedError

    def offer(self, pos: int, delivery: Delivery, node: NodeState, now_s: float) -> bool:
        """Take a message that is durable now, and was admitted if it had to be.

        False: it is dropped though whoever reads it keeps up, and its publisher should know.
        """
        raise NotImplementedError

    @property
    def keeps_up(self) -> bool:
        """Whether somebody is there who reads and acknowledges all that comes."""
        raise NotImplementedError

    def pump(self, now_s: float) -> None:
        """Send what waits, as far as there is room; what has nobody to go to need not be here."""
        raise NotImplementedError

    @property
    def damage(self) -> str:
        return self.queue.damage

    def cut_off(self, now_s: float) -> None:
        """Disconnect whoever is connected for it: what waits cannot be read."""

    # --- places ------------------------------------------------------------------------------

    def take_position(self, count: int = 1) -> int:
        """The position of the next QoS 1 or 2 message, the first of `count`; each is used exactly
        once."""
        pos = self.next_pos
        self.next_pos = pos + count
        return pos

    # --- room --------------------------------------------------------------------------------

    def own_queue(self, node: NodeState) -> Backlog:
        """`queue`, for whoever changes it: until then an empty one serves all who have none."""
        if self.queue is node.empty_queue:
            self.queue = new_backlog(node, node.queue_budget, durable=False)
        return self.queue

    def admit(self, size_bytes: int, node: NodeState, now_s: float) -> Reason | None:
        """Keep a place for a message that has to be durable first; else why there is none.

        Who keeps up may have one that is larger than its share. Room is made of what has expired,
        then, with `drop-oldest`, of its own oldest, if that would help. Where those are on disk, or
        on their way to it, it is made when they have been found, or have arrived, and until then
        the queue is a page above its limits, no more.
        """
        queue = self.own_queue(node)
        reason = queue.reserve(size_bytes)
        if reason is None or not queue.could_hold(size_bytes):
            return reason
        if self.keeps_up and queue.reserve_spare(size_bytes):
            return None
        self.expire_some(node, now_s)
        reason = queue.reserve(size_bytes)
        is_own = reason in ITS_OWN and queue.node_refusal(size_bytes) is None
        if is_own and queue.may_have_expired(now_s):
            return queue.reserve(size_bytes, overshoot=True)
        if not node.drops_oldest:
            return reason
        while reason is not None and (reason in ITS_OWN or queue.could_have(size_bytes)):
            oldest = queue.take()
            if oldest is None:
                reason = queue.reserve(size_bytes, overshoot=True)
                if queue.is_away:
                    self.fetch(node)
                return reason
            self.drop(oldest[0], oldest[1], reason, node)
            reason = queue.reserve(size_bytes)
        return reason

    def lacks_room(self, size_bytes: int, node: NodeState, now_s: float) -> bool:
        """Whether a message would not find room now, and may later."""
        queue = self.queue
        if self.ended or self.is_logged:
            return False
        if queue.refusal(size_bytes) is None or not queue.could_hold(size_bytes):
            return False
        if self.keeps_up and queue.has_spare(size_bytes):
            return False
        self.expire_some(node, now_s)
        return queue.refusal(size_bytes) is not None

    @property
    def is_unbounded(self) -> bool:
        """Whether nothing but the store bounds what waits for it."""
        return self.queue.messages_max == UNBOUNDED

    def messages_max(self, node: NodeState) -> int:
        """Messages that may wait for it as for a device."""
        return node.settings.session.queue_messages_max

    def full_by(self) -> list[Reason]:
        """The limits that leave no room for a message like those that wait, the node's included."""
        queue = self.queue
        found: list[Reason] = []
        if self.is_logged:
            return found
        if queue.count >= queue.messages_max:
            found.append(Reason.QUEUE_MESSAGES)
        if queue.size_bytes >= queue.bytes_max:
            found.append(Reason.QUEUE_BYTES)
        of_node = queue.node_refusal(queue.size_bytes // queue.count if queue.count else 1)
        return found if of_node is None else [*found, of_node]

    def expire_some(self, node: NodeState, now_s: float) -> None:
        """Give up what has expired here, a page at most; on disk, begin to look for it."""
        self._expire(self.queue.take_expired(now_s), node, now_s)
        fetch = self.queue.look(self, now_s)
        if fetch is not None:
            node.fetches.append(fetch)

    def fetch(self, node: NodeState) -> None:
        """Ask for the next page, unless one is on its way."""
        fetch = self.queue.fetch(self)
        if fetch is not None:
            node.fetches.append(fetch)

    def fetched(
        self, fetch: Fetch, entries: list[QueueEntry], node: NodeState, now_s: float
    ) -> None:
        """A page of the backlog is there: on with it."""
        queue = self.queue
        if fetch.damage:
            self._refuse(fetch, node, now_s)
            return
        if fetch.looks:
            self._expire(queue.looked(fetch, entries, now_s), node, now_s)
        else:
            queue.fetched(fetch, entries)
            self._count_progress(len(entries), node, now_s)
        self._settle_empty(fetch, entries, node)
        self._go_on(node, now_s)

    def _count_progress(self, count: int, node: NodeState, now_s: float) -> None:
        """Count messages that have come from the disk."""
        progress = node.progress.get(self)
        if progress is not None:
            progress.count += count
            if not self.queue.away_count:
                del node.progress[self]
        elif self.queue.away_count and self.connected:
            # This page was asked for a while ago: the next one is the first to be timed.
            node.progress[self] = ReadProgress(now_s)

    def _refuse(self, fetch: Fetch, node: NodeState, now_s: float) -> None:
        """The store cannot read a page: its client is told, and not given less than it is owed.

        Nothing is dropped; when the client comes back, the same page is asked for again.
        """
        self.queue.unreadable(fetch)
        node.counters.pages_unreadable += 1
        self.cut_off(now_s)

    def load(self, store: Store, node: NodeState) -> None:
        """Everything that waits into memory, where no disk holds it. Raises `CorruptionError`."""
        while (fetch := self.queue.fetch(self)) is not None:
            entries = fetch.entries(store)
            if fetch.damage:
                raise CorruptionError(fetch.damage)
            self.queue.fetched(fetch, entries)
            self._settle_empty(fetch, entries, node)

    def _settle_empty(self, fetch: Fetch, entries: list[QueueEntry], node: NodeState) -> None:
        """Settle positions without a message that were not sent: it went to another owner.

        Nobody could settle it before a crash.
        """
        for entry in entries:
            if entry.delivery is None and entry.pos not in fetch.sent:
                self.settle(entry.pos, None, node)

    def left_gaps(self, node: NodeState, now_s: float) -> None:
        """Positions changed out of their order: no page until that is durable."""

        def done(now_s: float) -> None:
            self.queue.gaps -= 1
            if not self.ended:
                self._go_on(node, now_s)

        self.queue.gaps += 1
        node.when_durable(done, now_s, self.client_id)

    def _go_on(self, node: NodeState, now_s: float) -> None:
        self.trim(node, now_s)
        self.pump(now_s)

    def trim(self, node: NodeState, now_s: float) -> None:
        """Bring a queue that is above its limits back to them: by what has expired, then, with
        `drop-oldest`, by its oldest."""
        queue = self.queue
        if self.is_logged or queue.excess() is None:
            return
        self.expire_some(node, now_s)
        if not node.drops_oldest or queue.may_have_expired(now_s):
            return
        while (reason := queue.excess()) is not None:
            oldest = queue.take()
            if oldest is None:
                if queue.is_away:
                    self.fetch(node)
                return
            self.drop(oldest[0], oldest[1], reason, node)

    # --- messages given up -------------------------------------------------------------------

    def drop(self, pos: int, delivery: Delivery, reason: Reason, node: NodeState) -> None:
        """Give a message up: counted, and settled in the store."""
        node.counters.drop(reason)
        self.settle(pos, delivery, node)

    def settle(self, pos: int, delivery: Delivery | None, node: NodeState) -> None:
        """The store need not keep this position; one of the same name may have come since."""
        if self.durable and not self.ended:
            node.journal.note(Settle(self.client_id, pos, delivery))

    def expire(self, pos: int, delivery: Delivery, node: NodeState, now_s: float) -> None:
        """[MQTT-3.3.2-5] give up a message whose time has passed before it was sent."""
        node.counters.drop(Reason.MESSAGE_EXPIRED)
        if self.durable and not self.ended:
            node.expired(Settle(self.client_id, pos, delivery), now_s)

    def _expire(self, expired: list[Waiting], node: NodeState, now_s: float) -> None:
        """Expire messages, first of the queue or not."""
        for pos, delivery, _ in expired:
            self.expire(pos, delivery, node, now_s)
        if expired and self.queue.spills:
            self.left_gaps(node, now_s)


def new_backlog(node: NodeState, budget: FairBudget, *, durable: bool) -> Backlog:
    """An empty one with the node's limits."""
    limits = node.settings.session
    disk_budget = node.disk_queue_budget if node.spills and durable else None
    return Backlog(limits.queue_messages_max, limits.queue_bytes_max, budget, disk_budget)
