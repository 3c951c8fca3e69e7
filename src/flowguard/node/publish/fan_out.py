"""FanOut: a PUBLISH with more subscribers than one time slice can serve, piece by piece.

Meanwhile it fills its publisher's window, which keeps its place among that client's packets.
It also makes its plan, if that is not made yet. A durable message still goes to the store in one
batch, in three steps:

1. Reserve a slot in each queue with capacity, and prepare the store operations, piece by piece.
2. Take the positions of all queues, and append the operations to the journal, in one time slice.
3. After the commit, deliver the message, piece by piece, before messages of later commits.

Step 2 takes one time slice, so that any other message is either before this one in all queues and
in the store, or behind it in all of them. The slice is short, as it only assigns numbers.
"""

from collections.abc import Iterator
from typing import Final, final

from flowguard.node.applications.lane import ApplicationLane
from flowguard.node.journal import OP_BYTES, Continuation
from flowguard.node.peers.relay import PeerSource
from flowguard.node.publish.deliveries import Admitted, Deliveries, Target
from flowguard.node.publish.in_process import InProcess
from flowguard.node.publish.incoming import Incoming
from flowguard.node.publish.plans import Plan, cut
from flowguard.records import Append, PutInbound, Settle, StoreOp, message_bytes
from flowguard.session.inbound.packets import Inbound
from flowguard.session.owner import MessageSink
from flowguard.types import ReasonCode

OFFERS_PIECE: Final = 250
"""Deliveries in one time slice after the commit: up to four milliseconds if all are sent."""
DELIVERY_BYTES: Final = 200
"""Memory of a message under way for each delivery, without its plan: measured with tracemalloc on
CPython 3.11, compiled and not, and rounded up."""
SUCCESS: Final = ReasonCode.SUCCESS
UNSPECIFIED_ERROR: Final = ReasonCode.UNSPECIFIED_ERROR


@final
class FanOut:
    """One message. The node's own message is always queued."""

    def __init__(
        self,
        deliveries: Deliveries,
        lane: ApplicationLane,
        incoming: Incoming,
        plan: Plan,
        *,
        is_queued: bool = True,
        settle: Settle | None = None,
        source: PeerSource | None = None,
    ) -> None:
        """`source` is given if a peer forwards the message."""
        self._deliveries = deliveries
        self._node = deliveries.node
        self._journal = deliveries.journal
        self._lane = lane
        self._incoming = incoming
        self._plan = plan
        self._pieces: Iterator[Plan] | None = None
        self._is_queued = is_queued
        """True if it goes through the journal, False if it is delivered without it."""
        self._settle = settle
        """Settles the message that this one replaces, in the same commit, or None."""
        self._source = source
        self._last: InProcess | None = None
        """The message for the last of its targets, after it was forwarded to peers."""
        self._then: Continuation | None = None
        """A continuation that is called when all targets have it."""
        self._promised_count = plan.ops if is_queued and incoming.inbound is not None else 0
        self._journal.promise(self._promised_count)
        self._passes_by = True
        """True until the message is in the log; readers of the log may have been skipped before."""
        deliveries.log.wide_count += 1
        self._owners: list[MessageSink] = []
        """Sessions and queues that have reserved a slot for it."""
        self._appends: list[Append] = []
        """Operations of the owners, without positions yet.
        They are no pairs with the owners, as the garbage collector would count the pairs."""
        self._plain: list[Target] = []
        """Targets at QoS 0, and applications, which have it in the store before all others."""
        self._ops: list[StoreOp] = []
        self._ops_bytes = 0
        self._complete = True
        """False if a client that keeps up misses it."""
        self._reason_code: int = SUCCESS
        self._at = 0
        """Number of targets that it was given to."""

    def step(self, now_s: float) -> bool:
        plan, message, inbound = self._plan, self._incoming.message, self._incoming.inbound
        if plan.making is not None:
            plan.making.step()
            return True
        if self._pieces is None:
            self._pieces = cut(plan)
        piece = next(self._pieces, None)
        if piece is None:
            if self._is_queued:
                self._queue(now_s)
            elif inbound is not None:
                self._end(inbound, now_s)
            return False
        deliveries = self._deliveries
        session = None if inbound is None else inbound.session
        sent = self._node.counters.publish_sent
        if self._is_queued or session is None:
            admitted: list[Admitted] = []
            try:
                self._complete &= deliveries.admit(admitted, piece, message, session, now_s)
            finally:
                self._prepare(admitted)
            if inbound is not None:
                inbound.window.worked(len(admitted))
            return True
        if message.qos:
            code = deliveries.deliver_now(piece, message, session, now_s)
            self._complete &= code < UNSPECIFIED_ERROR
        else:
            deliveries.deliver_qos_0(piece, message, session, now_s)
        assert inbound is not None
        inbound.window.worked(self._node.counters.publish_sent - sent)
        return True

    def _prepare(self, admitted: list[Admitted]) -> None:
        owners, appends, ops = self._owners, self._appends, self._ops
        for owner, delivery in admitted:
            if not delivery.qos:
                self._plain.append((owner, 0, delivery))
                continue
            append = Append(owner.client_id, 0, delivery)
            owners.append(owner)
            appends.append(append)
            if owner.durable:
                ops.append(append)
                self._ops_bytes += OP_BYTES + delivery.size_bytes

    def _queue(self, now_s: float) -> None:
        """Append it to the journal for all targets that have not ended since."""
        message, inbound = self._incoming.message, self._incoming.inbound
        log = self._deliveries.log
        self._journal.promise(-self._promised_count)
        self._promised_count = 0
        owed: list[StoreOp] = []
        if inbound is None:
            self._owe(owed)
        elif self._applications_first(now_s):
            return
        self._passed()
        self._place()
        for op in owed:
            self._add(op)
        if self._plan.logs and message.qos:
            self._add(log.append(self._publisher, message, now_s))
            self._ops_bytes += message_bytes(message)
        if inbound is not None:
            session = inbound.session
            if not self._complete:
                self._reason_code = self._deliveries.answer(session, message, SUCCESS)
            is_taken = self._reason_code < UNSPECIFIED_ERROR
            if message.qos == 2 and session.durable and not session.ended and is_taken:
                self._add(PutInbound(session.client_id, message.packet_id))
        self._last = self._relay(now_s)
        self._journal.append_prepared(self._ops, self._ops_bytes, self._go_on, now_s)
        self._ops = []
        if self._source is not None:
            self._source.queued(now_s)

    @property
    def _publisher(self) -> str:
        if self._source is not None:
            return self._source.publisher
        return self._incoming.publisher

    def _relay(self, now_s: float) -> InProcess:
        """Forward it to peers."""
        peers, plan, message = self._deliveries.peers, self._plan, self._incoming.message
        ops: list[StoreOp] = []
        if self._source is not None:
            relay, ops = self._source.relay, self._source.ops
        elif self._incoming.inbound is None:
            relay = peers.relay_own(plan, message, ops, now_s)
        else:
            relay = peers.relay(plan, message, self._publisher, ops, now_s)
        for op in ops:
            self._add(op)
        code, then = self._reason_code, self._then
        last = InProcess(self._deliveries, self._incoming, [], code, then=then, relay=relay)
        last.begin()
        return last

    def _owe(self, ops: list[StoreOp]) -> None:
        """Prepare a message of the node; see `ApplicationLane.owe`."""
        message = self._incoming.message
        pairs = zip(self._owners, self._appends, strict=True)
        admitted = [(owner, append.delivery) for owner, append in pairs]
        self._then = self._lane.owe(self._deliveries, message, admitted, ops, self._settle)
        if len(admitted) != len(self._owners):
            self._owners, self._appends, self._ops, self._ops_bytes = [], [], [], 0
            self._prepare(admitted)

    def _applications_first(self, now_s: float) -> bool:
        """Store it for applications before all others, as `Staged` does; False if none gets it."""
        names, admitted = self._lane.names, list[Admitted]()
        if not names:
            return False
        ops: list[StoreOp] = []
        for owner, append in zip(self._owners, self._appends, strict=True):
            if owner.client_id not in names:
                admitted.append((owner, append.delivery))
            elif not owner.ended:
                append.pos = owner.take_position()
                self._plain.append((owner, append.pos, append.delivery))
                ops.append(append)
        if len(admitted) == len(self._owners):
            return False
        self._owners, self._appends, self._ops, self._ops_bytes = [], [], [], 0
        self._prepare(admitted)
        self._lane.hold(self._incoming, ops, self._came_back, now_s)
        return True

    def _came_back(self, now_s: float) -> None:
        self._lane.give_back(self._incoming)
        self._queue(now_s)

    def _passed(self) -> None:
        """Note that it is in the journal, or will never be."""
        if self._passes_by:
            self._passes_by = False
            self._deliveries.log.wide_count -= 1

    def _add(self, op: StoreOp) -> None:
        self._ops.append(op)
        self._ops_bytes += OP_BYTES
        if isinstance(op, Append):
            self._ops_bytes += op.delivery.size_bytes

    def _place(self) -> None:
        """Take the positions of all subscribers, in one time slice."""
        logs = self._plan.logs
        if any([owner.ended or (logs and owner.reads_log) for owner in self._owners]):
            pairs = zip(self._owners, self._appends, strict=True)
            left: list[Admitted] = []
            for owner, append in pairs:
                if owner.ended:
                    continue
                if logs and owner.reads_log:  # The client left since, and finds it in the log.
                    owner.behind = True
                    owner.queue.forget(append.delivery.size_bytes)
                else:
                    left.append((owner, append.delivery))
            self._owners, self._appends, self._ops, self._ops_bytes = [], [], [], 0
            self._prepare(left)
        appends = self._appends
        for index, owner in enumerate(self._owners):
            appends[index].pos = owner.take_position()

    def _go_on(self, now_s: float) -> bool:
        """Deliver the durable message to the next targets; True if there are more."""
        start, stop = self._at, self._at + OFFERS_PIECE
        self._at = stop
        piece = zip(self._owners[start:stop], self._appends[start:stop], strict=True)
        targets: list[Target] = [(owner, append.pos, append.delivery) for owner, append in piece]
        if len(targets) < OFFERS_PIECE:
            count = len(self._owners)
            targets += self._plain[max(0, start - count) : stop - count]
        if stop < len(self._owners) + len(self._plain):
            if self._incoming.inbound is not None:
                self._incoming.inbound.window.worked(len(targets))
            self._complete &= self._deliveries.deliver_to(targets, now_s)
            return True
        assert self._last is not None
        self._last.committed_last(targets, self._complete, now_s)
        return False

    def _end(self, inbound: Inbound, now_s: float) -> None:
        """Answer the publisher of a message that needed no commit, after all deliveries."""
        deliveries, incoming = self._deliveries, self._incoming
        message = incoming.message
        self._passed()
        if message.qos:
            if not self._complete:
                self._reason_code = deliveries.answer(inbound.session, message, SUCCESS)
            inbound.published(message, self._reason_code)
            deliveries.acknowledgements.came(incoming.since_s, now_s)
        incoming.settle()

    def failed(self, error: Exception, now_s: float) -> bool:
        """Release all slots after an error; nothing is durable, and nothing is answered."""
        self._journal.promise(-self._promised_count)
        self._passed()
        for owner, append in zip(self._owners, self._appends, strict=True):
            if (owner.durable or self._node.blocks) and not owner.ended:
                owner.queue.forget(append.delivery.size_bytes)
        self._owners, self._appends = [], []
        inbound = self._incoming.inbound
        if inbound is None:
            if self._source is not None:
                self._source.queued(now_s)
            return False
        self._incoming.settle()
        inbound.failed(error, now_s)
        return True
