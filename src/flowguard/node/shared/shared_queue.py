"""The queue of one shared subscription: every message waits here until a member takes it.

Theory of operation. A QoS 1 or 2 message enters the queue like that of a client, by an Append under
the group's own key. After its commit, the first member in turn with capacity takes it (`pump`). A
member without capacity is asked again when it has some (`Membership.asked`).

A QoS 1 message is only lent: PUBACK settles it here. If the connection ends before, the message
waits again at its old position. The row in the store never moved, so it survives a crash. The
packet identifier follows from the position, from the top of the range; those of clients' own
messages start at the bottom. So the same identifier is not soon used for another message.

A QoS 2 message is the member's once it was sent, crash or not ([MQTT-4.8.2-4], [MQTT-4.8.2-5]). So
it moves first, in one batch: `Release` here, `Append` there. After the commit it waits in the
member's own queue. (`Settle` may be lost in a crash, and the message would be in both queues. The
empty row that `Release` leaves is settled when it is read.) If the two queues are in different
stores, the batch has a note that the release is owed (`HandOver`). If the member's session has
ended meanwhile, the message returns to the end of this queue. QoS 0, for members that were granted
no more, leaves like QoS 2, but enters no other queue.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from flowguard.flow import Reason
from flowguard.node.journal import Continuation, Journal
from flowguard.node.publish.plans import Shared
from flowguard.records import (
    QOS_1_IDS,
    Append,
    Delivery,
    Release,
    SessionRecord,
    SinkKind,
    StoreOp,
    key_of,
)
from flowguard.session.membership import Lender, Loan
from flowguard.session.node_state import NodeState
from flowguard.session.outbound.backlog import PAGE_MAX, Backlog
from flowguard.session.outbound.dispatch import LARGE_INFLIGHT_MAX
from flowguard.session.outbound.inflight import SHARED_BYTES
from flowguard.session.outbound.memory_backlog import Waiting
from flowguard.session.outbound.messages import Outbound
from flowguard.session.outbound.receiver import membership_of
from flowguard.session.owner import (
    MessageSink,
    drop_message,
    expire_message,
    fetch_page,
    left_gaps,
    own_queue,
    settle_message,
    trim_queue,
)
from flowguard.session.session import Session
from flowguard.types import Publish, SubscriptionOptions

NO_PACKET_ID: Final = 0
"""Packet identifier of a message that was released to another owner, not to a client."""
MEMBERS_ASKED: Final = 64
"""Members that are asked whether they take a message that is too large for another one."""
LOOK_MAX: Final = 16
"""Members that are checked for each message: one on disk stays there if none is connected."""
HandOver = Callable[[Release, list[StoreOp]], Continuation | None]
"""`ApplicationLane.hand_over`."""


class SharedQueue(Lender):
    """The messages of a group, and the choice of the member that gets the next one."""

    __slots__ = ("_backlog_end", "_group", "_hand_over", "_node", "_journal", "filter", "name")

    def __init__(
        self,
        name: str,
        queue: Backlog,
        group: Shared,
        node: NodeState,
        journal: Journal,
        hand_over: HandOver,
    ) -> None:
        """`name` is the filter with `$share/`."""
        super().__init__(key_of(self.kind, name), queue, durable=True)
        self.name = name
        self._group = group
        self.filter = group.filter
        self._node = node
        self._journal = journal
        self._hand_over = hand_over
        self._backlog_end = 1
        """Messages before this position waited for a member to connect."""

    @property
    def kind(self) -> SinkKind:
        return SinkKind.SHARED

    def restore(self, record: SessionRecord) -> None:
        """Restore the queue from its record; no member has any of its messages."""
        self.next_pos = record.next_pos
        count, size_bytes = record.unsettled_count, record.unsettled_bytes
        self.queue.restore(0, record.next_pos - 1, count, size_bytes)

    def end(self) -> None:
        """Drop the messages that wait: the last member has left."""
        self.ended = True
        self.queue.clear()

    def offer(self, pos: int, delivery: Delivery, node: NodeState, now_s: float) -> bool:
        if not self.ended:
            self.queue.put(pos, delivery, delivery.size_bytes, connected=self._is_attended)
            self.pump(now_s)
            trim_queue(self, node, now_s)
        return True

    @property
    def _is_attended(self) -> bool:
        """True if a member is connected, or the group has many members or is of applications."""
        if self.is_application or len(self._group) > LOOK_MAX:
            return True
        return any([member.outbound is not None for member, _ in self._group.members()])

    @property
    def keeps_up(self) -> bool:
        """True if no message waits, and one of its members keeps up."""
        if self.queue.waits:
            return False
        return any(member.keeps_up for member, _ in self._group.members())

    def welcome(self, member: Session) -> None:
        """Let a member that connects or subscribes have messages when it is pumped."""
        self._backlog_end = self.next_pos
        self._group.wake(member)
        membership_of(member).asked[self] = None

    def wake(self, member: MessageSink, now_s: float) -> None:
        assert isinstance(member, Session)
        self._group.wake(member)
        self.pump(now_s)

    def pump(self, now_s: float) -> None:
        """Give messages to members with capacity, in turn."""
        queue = self.queue
        expired_count = 0
        while queue.waits:
            chosen = self._group.first(self._ready)
            if chosen is None:
                return
            head = queue.peek()
            if head is None:
                fetch_page(self, self._node)
                return
            if head[1].expires_at_s <= now_s:
                queue.take()
                expire_message(self, head[0], head[1], self._node, now_s)
                expired_count += 1
                if expired_count == PAGE_MAX:
                    self._node.when_durable(self.pump, now_s, self.client_id)
                    return
                continue
            member, options = chosen
            outbound = member.outbound
            assert outbound is not None
            if self._give(member, outbound, options, head, now_s):
                queue.take()
                self._group.turn(member)
            else:
                self._ask(member, outbound)
                self._group.park(member)

    def _ready(self, member: Session) -> int:
        """Return the rank of a member, as for `SharedGroup.pick`."""
        outbound = member.outbound
        head = self.queue.peek()
        if outbound is None or (head and not member.may_receive(head[1].message.topic)):
            return -1  # The right is withdrawn and the subscription is about to end.
        if outbound.has_room(member, membership_of(member)) and self._may_send(member):
            return 0
        self._ask(member, outbound)
        return -1

    def _may_send(self, member: Session) -> bool:
        """Return True if a member may get the first message.

        A backlog is replayed no faster than a client's own (`Outbound.take_turn`).
        """
        head = self.queue.peek()
        is_new = head is not None and head[0] >= self._backlog_end
        return is_new or len(member.inflight.messages) < self._node.window.limit

    def _ask(self, member: Session, outbound: Outbound) -> None:
        """Let a member without capacity ask again.

        An acknowledgement, or a socket that accepts more, will pump it.
        """
        membership_of(member).asked[self] = None
        outbound.has_more = True

    # --- to members --------------------------------------------------------------------------

    def _give(
        self,
        member: Session,
        outbound: Outbound,
        options: SubscriptionOptions,
        head: Waiting,
        now_s: float,
    ) -> bool:
        """Send a message to a member, or move it there; False if the member has no capacity."""
        pos, waiting, _ = head
        delivery = granted(waiting.message, options, waiting.expires_at_s, self._group)
        if not outbound.takes_size(delivery, now_s):
            self._give_another(pos, waiting, delivery, now_s)
            return True
        if delivery.qos == 2:
            return self._move(member, pos, waiting, delivery, now_s)
        if delivery.qos == 1:
            return self._lend(member, outbound, pos, waiting, delivery, now_s)
        self._let_go(pos, waiting, [], partial(self._send_qos_0, outbound, delivery), now_s)
        return True

    def _give_another(self, pos: int, waiting: Delivery, delivery: Delivery, now_s: float) -> None:
        """Move a message that is too large for a member to another connected one, or drop it.

        It does not wait for that member, as all other messages would wait behind it.
        """
        for member, options in self._group.members()[:MEMBERS_ASKED]:
            outbound = member.outbound
            if outbound is not None and outbound.takes_size(delivery, now_s):
                other = granted(waiting.message, options, waiting.expires_at_s, self._group)
                if not other.qos:
                    send = partial(self._send_qos_0, outbound, other)
                    self._let_go(pos, waiting, [], send, now_s)
                    return
                if self._move(member, pos, waiting, other, now_s):
                    return
        drop_message(self, pos, waiting, Reason.PACKET_TOO_LARGE, self._node)

    def _send_qos_0(self, outbound: Outbound, delivery: Delivery, now_s: float) -> None:
        if outbound.ended:
            self._node.counters.drop(Reason.OFFLINE_QOS_0)
        else:
            outbound.send_qos_0(delivery, now_s)

    def _lend(
        self,
        member: Session,
        outbound: Outbound,
        pos: int,
        waiting: Delivery,
        delivery: Delivery,
        now_s: float,
    ) -> bool:
        inflight = member.inflight.messages
        frame = outbound.encode(delivery, now_s)
        if frame is None:
            drop_message(self, pos, waiting, Reason.PACKET_TOO_LARGE, self._node)
            return True
        packet_id = membership_of(member).unused_id(QOS_1_IDS - pos % QOS_1_IDS, inflight)
        large = len(frame[1]) >= SHARED_BYTES and len(inflight) >= LARGE_INFLIGHT_MAX
        # (The message still waits, and is charged.)
        if large or not member.inflight.take_place(
            packet_id,
            delivery,
            self._node.inflight,
            member.queue.charged_bytes,
            plain=True,
            charged=True,
            keeps_up=member.keeps_up,
        ):
            outbound.forget_alias(delivery)
            return False
        member.inflight.add(packet_id, delivery)
        membership_of(member).loans[packet_id] = Loan(self, pos, waiting)
        outbound.write_publish(packet_id, frame, delivery)
        return True

    def take_back(self, loan: Loan) -> None:
        self.queue.put_back(loan.pos, loan.delivery, loan.delivery.size_bytes)

    def _move(
        self, member: Session, pos: int, waiting: Delivery, delivery: Delivery, now_s: float
    ) -> bool:
        queue, size_bytes = own_queue(member, self._node), delivery.size_bytes
        if queue.count and queue.refusal(size_bytes) is not None:
            # Messages on their way fill the member's queue; none waits in it (`Outbound.has_room`).
            self._node.when_durable(member.pump, now_s, member.client_id)
            return False
        queue.promise(size_bytes)
        member_pos = member.take_position()
        membership = membership_of(member)
        membership.moving_count += 1

        def moved(now_s: float) -> None:
            membership.moving_count -= 1
            if member.ended:
                self._return(waiting, now_s)
            else:
                member.enqueue(member_pos, delivery, self._node, now_s)
                member.pump(now_s)

        ops: list[StoreOp] = []
        if member.durable:
            ops.append(Append(member.client_id, member_pos, delivery))
        self._let_go(pos, waiting, ops, moved, now_s)
        return True

    def _return(self, waiting: Delivery, now_s: float) -> None:
        """Put back a message that was not sent, in a new row, as its old one is empty."""
        if self.ended:
            return
        pos = self.take_position()
        delivery = Delivery(
            waiting.message,
            waiting.qos,
            waiting.retain,
            waiting.identifiers,
            waiting.expires_at_s,
        )
        self.queue.promise(delivery.size_bytes)

        def done(now_s: float) -> None:
            self.offer(pos, delivery, self._node, now_s)

        self._journal.append([Append(self.client_id, pos, delivery)], done, now_s)

    def _let_go(
        self, pos: int, waiting: Delivery, ops: list[StoreOp], then: Continuation, now_s: float
    ) -> None:
        """Release a message from the group for good; `then` sends it after the commit."""

        left = partial(self._left, pos, then)
        release = Release(self.client_id, pos, NO_PACKET_ID, waiting)
        handed_over = self._hand_over(release, ops)
        if handed_over is None:
            self._journal.append([release, *ops], left, now_s)
        else:
            # The member is a device: it does not wait for the store of applications.
            self._journal.append(ops, partial(_both, handed_over, left), now_s)

    def _left(self, pos: int, then: Continuation, now_s: float) -> None:
        settle_message(self, pos, None, self._node)
        then(now_s)

    def let_go_again(self, pos: int, then: Continuation, now_s: float) -> None:
        """Release a message again that had left before a crash, before any page is read."""
        self._journal.append([Release(self.client_id, pos, NO_PACKET_ID)], then, now_s)
        left_gaps(self, self._node, now_s)


def _both(first: Continuation, second: Continuation, now_s: float) -> None:
    first(now_s)
    second(now_s)


def granted(
    message: Publish, options: SubscriptionOptions, expires_at_s: float, group: Shared
) -> Delivery:
    """Return a message of a group as the member with these options gets it [MQTT-4.8.2-3]."""
    identifiers = (options.identifier,) if options.identifier else ()
    qos = min(message.qos, options.qos)
    retain = message.retain and options.retain_as_published
    delivery = Delivery(message, qos, retain, identifiers, expires_at_s)
    delivery.share = group.share
    return delivery
