"""MessageSink: an owner of QoS 1 and 2 messages that wait: positions, limits, drops.

A client's session is one (`session`), the queue of a shared subscription another
(`flowguard.node.shared.shared_queue`).
"""

import sys
from typing import Final

from flowguard.errors import CorruptionError
from flowguard.flow import FairBudget, Reason
from flowguard.records import Delivery, QueueEntry, Settle, SinkKind
from flowguard.session.node_state import NodeState
from flowguard.session.outbound.backlog import Backlog
from flowguard.session.outbound.fetch import Fetch, PageOwner, ReadProgress
from flowguard.session.outbound.memory_backlog import Waiting
from flowguard.stores import Store

UNBOUNDED: Final = sys.maxsize
"""Limit of a sink without a limit on messages or bytes."""
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
        """True if its messages are read from the log: its client is offline, or catching up."""
        self.behind = False
        """True if a message was logged for it since."""
        self.is_application = False
        """True if its client is an application, which gets every message, however late."""
        self.is_logged = False
        """True if all its messages are logged; those beyond its queue are read from the log."""
        self.queue = queue
        self.next_pos = 1

    # --- differs between kinds ---------------------------------------------------------------

    @property
    def kind(self) -> SinkKind:
        raise NotImplementedError

    def offer(self, pos: int, delivery: Delivery, node: NodeState, now_s: float) -> bool:
        """Take a message that is durable now, and was admitted if it had to be.

        Return False if it is dropped although the client keeps up; its publisher gets an error.
        """
        raise NotImplementedError

    @property
    def keeps_up(self) -> bool:
        """True if a connected client reads and acknowledges all its messages."""
        raise NotImplementedError

    def pump(self, now_s: float) -> None:
        """Send waiting messages, as far as the client has capacity."""
        raise NotImplementedError

    @property
    def damage(self) -> str:
        return self.queue.disk.damage

    def cut_off(self, now_s: float) -> None:
        """Disconnect the client of a queue that cannot be read."""

    def settled(self, pos: int) -> None:
        """Note that the message at this position neither waits nor is in flight any more."""

    def take_position(self, count: int = 1) -> int:
        """Return the first of `count` positions for QoS 1 or 2 messages; each is used once."""
        pos = self.next_pos
        self.next_pos = pos + count
        return pos


def is_unbounded(sink: MessageSink) -> bool:
    """Return True if only the store limits the waiting messages of a sink."""
    return sink.queue.messages_max == UNBOUNDED


def own_queue(sink: MessageSink, node: NodeState) -> Backlog:
    """Return `queue` to change it; sinks without messages share an empty one until then."""
    if sink.queue is node.empty_queue or sink.queue is node.empty_stored:
        sink.queue = new_backlog(node, node.queue_budget, durable=sink.durable)
    return sink.queue


def admit_message(
    sink: MessageSink, size_bytes: int, node: NodeState, now_s: float
) -> Reason | None:
    """Reserve a slot for a message that has to be durable first; return a reason if there is none.

    A sink that keeps up may have a message larger than its share. If the queue is full, expired
    messages are dropped, then, with `drop-oldest`, its oldest ones, if that would help. Messages on
    disk, or on their way to it, are dropped when they have been read. Until then the queue may
    exceed its limits by a page at most.
    """
    queue = own_queue(sink, node)
    reason = queue.reserve(size_bytes)
    if reason is None or size_bytes > queue.bytes_max:
        return reason
    if sink.keeps_up and queue.has_spare(size_bytes):
        queue.promise(size_bytes)
        return None
    expire_some(sink, node, now_s)
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
                fetch_page(sink, node)
            return reason
        drop_message(sink, oldest[0], oldest[1], reason, node)
        reason = queue.reserve(size_bytes)
    return reason


def lacks_room(sink: MessageSink, size_bytes: int, node: NodeState, now_s: float) -> bool:
    """Return True if a message would be dropped now, but may be accepted later."""
    queue = sink.queue
    if sink.ended or sink.is_logged:
        return False
    if queue.refusal(size_bytes) is None or size_bytes > queue.bytes_max:
        return False
    if sink.keeps_up and queue.has_spare(size_bytes):
        return False
    expire_some(sink, node, now_s)
    return queue.refusal(size_bytes) is not None


def full_by(sink: MessageSink) -> list[Reason]:
    """Return the limits, the node's included, that reject a message of the mean waiting size."""
    queue = sink.queue
    found: list[Reason] = []
    if sink.is_logged:
        return found
    if queue.count >= queue.messages_max:
        found.append(Reason.QUEUE_MESSAGES)
    if queue.size_bytes >= queue.bytes_max:
        found.append(Reason.QUEUE_BYTES)
    of_node = queue.node_refusal(queue.size_bytes // queue.count if queue.count else 1)
    return found if of_node is None else [*found, of_node]


def expire_some(sink: MessageSink, node: NodeState, now_s: float) -> None:
    """Drop expired messages in memory, a page at most; on disk, begin to look for them."""
    _expire(sink, sink.queue.take_expired(now_s), node, now_s)
    fetch = sink.queue.look(sink, now_s)
    if fetch is not None:
        node.fetches.append(fetch)


def fetch_page(sink: MessageSink, node: NodeState) -> None:
    """Ask for the next page, unless one is on its way."""
    fetch = sink.queue.fetch(sink)
    if fetch is not None:
        node.fetches.append(fetch)


def page_fetched(
    sink: MessageSink, fetch: Fetch, entries: list[QueueEntry], node: NodeState, now_s: float
) -> None:
    """Take a page of the backlog into the queue, and go on."""
    queue = sink.queue
    if fetch.damage:
        _refuse(sink, fetch, node, now_s)
        return
    if fetch.looks:
        _expire(sink, queue.looked(fetch, entries, now_s), node, now_s)
    else:
        queue.fetched(fetch, entries)
        _count_progress(sink, len(entries), node, now_s)
    _settle_empty(sink, fetch, entries, node)
    _go_on(sink, node, now_s)


def _count_progress(sink: MessageSink, count: int, node: NodeState, now_s: float) -> None:
    """Count messages that have come from the disk."""
    progress = node.progress.get(sink)
    if progress is not None:
        progress.count += count
        if not sink.queue.disk.count:
            del node.progress[sink]
    elif sink.queue.disk.count and sink.connected:
        # This page was requested a while ago: the next one is the first that is timed.
        node.progress[sink] = ReadProgress(now_s)


def _refuse(sink: MessageSink, fetch: Fetch, node: NodeState, now_s: float) -> None:
    """Disconnect the client of a queue with a page that the store cannot read.

    Nothing is dropped; when the client reconnects, the same page is read again.
    """
    sink.queue.own_disk().unreadable(fetch)
    node.counters.pages_unreadable += 1
    sink.cut_off(now_s)


def load_queue(sink: MessageSink, store: Store, node: NodeState) -> None:
    """Load a queue into memory, from a store without a disk. Raises `CorruptionError`."""
    while (fetch := sink.queue.fetch(sink)) is not None:
        entries = fetch.entries(store)
        if fetch.damage:
            raise CorruptionError(fetch.damage)
        sink.queue.fetched(fetch, entries)
        _settle_empty(sink, fetch, entries, node)


def _settle_empty(
    sink: MessageSink, fetch: Fetch, entries: list[QueueEntry], node: NodeState
) -> None:
    """Settle positions without a message that were not sent: another owner has the message.

    A crash prevented their settlement before.
    """
    for entry in entries:
        if entry.delivery is None and entry.pos not in fetch.sent:
            settle_message(sink, entry.pos, None, node)


def left_gaps(sink: MessageSink, node: NodeState, now_s: float) -> None:
    """Request no page until changes out of the order of positions are durable."""

    def done(now_s: float) -> None:
        sink.queue.disk.gaps -= 1
        if not sink.ended:
            _go_on(sink, node, now_s)

    sink.queue.own_disk().gaps += 1
    node.when_durable(done, now_s, sink.client_id)


def _go_on(sink: MessageSink, node: NodeState, now_s: float) -> None:
    trim_queue(sink, node, now_s)
    sink.pump(now_s)


def trim_queue(sink: MessageSink, node: NodeState, now_s: float) -> None:
    """Reduce a queue to its limits: drop expired messages, then, with `drop-oldest`, the oldest."""
    queue = sink.queue
    if sink.is_logged or queue.excess() is None:
        return
    expire_some(sink, node, now_s)
    if not node.drops_oldest or queue.may_have_expired(now_s):
        return
    while (reason := queue.excess()) is not None:
        oldest = queue.take()
        if oldest is None:
            if queue.is_away:
                fetch_page(sink, node)
            return
        drop_message(sink, oldest[0], oldest[1], reason, node)


def drop_message(
    sink: MessageSink, pos: int, delivery: Delivery, reason: Reason, node: NodeState
) -> None:
    """Count a dropped message, and settle it in the store."""
    node.counters.drop(reason)
    settle_message(sink, pos, delivery, node)


def settle_message(sink: MessageSink, pos: int, delivery: Delivery | None, node: NodeState) -> None:
    """Remove a position from the store, unless the sink has ended: its name may be in use again."""
    sink.settled(pos)
    if sink.durable and not sink.ended:
        node.journal.note(Settle(sink.client_id, pos, delivery))


def expire_message(
    sink: MessageSink, pos: int, delivery: Delivery, node: NodeState, now_s: float
) -> None:
    """Drop a message that has expired before it was sent [MQTT-3.3.2-5]."""
    sink.settled(pos)
    node.counters.drop(Reason.MESSAGE_EXPIRED)
    if sink.durable and not sink.ended:
        node.expired(Settle(sink.client_id, pos, delivery), now_s)


def _expire(sink: MessageSink, expired: list[Waiting], node: NodeState, now_s: float) -> None:
    """Expire messages, at any place of the queue."""
    for pos, delivery, _ in expired:
        expire_message(sink, pos, delivery, node, now_s)
    if expired and sink.queue.spills:
        left_gaps(sink, node, now_s)


def new_backlog(node: NodeState, budget: FairBudget, *, durable: bool) -> Backlog:
    """Return an empty backlog with the node's limits."""
    limits = node.settings.session
    disk_budget = node.disk_queue_budget if node.spills and durable else None
    return Backlog(limits.queue_messages_max, limits.queue_bytes_max, budget, disk_budget)


def use_disk(node: NodeState) -> None:
    """Keep waiting messages of durable sessions on disk; before there are sessions."""
    node.spills = True
    node.empty_stored = new_backlog(node, node.queue_budget, durable=True)
