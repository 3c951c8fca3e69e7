"""Session: state that outlives a connection ([MQTT 5.0, 4.1]; [MQTT 3.1.1, 4.1])."""

from typing import Final, final

from flowguard.codec.burst import Burst
from flowguard.flow import Reason
from flowguard.records import Append, Delivery, SinkKind, StoreOp, WillRecord
from flowguard.session.node_state import NodeState
from flowguard.session.outbound.backlog import Backlog
from flowguard.session.outbound.messages import Outbound
from flowguard.session.outbound.receiver import Receiver
from flowguard.session.outbound.retained_sends import RetainedSends
from flowguard.session.owner import (
    MessageSink,
    admit_message,
    drop_message,
    full_by,
    trim_queue,
)
from flowguard.session.states import Undelivered
from flowguard.types import SESSION_NEVER_EXPIRES, ReasonCode

KEEPS_UP_MAX: Final = 2
"""A client keeps up with fewer unacknowledged messages than this: one is on its way to the client,
while the acknowledgement of another is on its way back."""


@final
class Session(Receiver):
    """One client id's state: subscriptions, messages sent and waiting, inbound QoS 2 identifiers.

    `durable` sessions outlive their connection, at least when they begin, and are in the store.
    """

    __slots__ = (
        "ends_at_s",
        "expiry_interval_s",
        "inbound_ids",
        "is_lost",
        "is_matched_widely",
        "outbound",
        "user",
        "weight",
        "will",
    )

    def __init__(
        self, client_id: str, queue: Backlog, expiry_interval_s: int, *, durable: bool
    ) -> None:
        # Durable even if a resumed session ends with its connection, as its messages are stored.
        super().__init__(client_id, queue, durable=durable)
        self.expiry_interval_s = expiry_interval_s
        self.user = ""
        """The user that owns it, or "" if no client with a proved name has had it."""
        self.is_lost = False
        """True if another broker owns it now."""
        self.is_matched_widely = False
        """True if it has had a filter with a wildcard."""
        self.inbound_ids: dict[int, bool] | None = None
        """QoS 2 identifiers of the client in use; True once their PUBLISH is durable."""
        self.weight = 1
        """Weight of the last PUBLISH of its former connection, cost units."""
        self.will: WillRecord | None = None
        self.ends_at_s: float | None = None
        self.outbound: Outbound | None = None
        """The connection of its client, or None if it is offline."""

    @classmethod
    def create(
        cls,
        client_id: str,
        node: NodeState,
        expiry_interval_s: int,
        *,
        stored: bool = False,
    ) -> "Session":
        """Return an empty session; `stored` if the store has it."""
        durable = stored or expiry_interval_s > 0
        queue = node.empty_stored if durable else node.empty_queue
        return cls(client_id, queue, expiry_interval_s, durable=durable)

    @property
    def kind(self) -> SinkKind:
        return SinkKind.SESSION

    @property
    def never_expires(self) -> bool:
        return self.expiry_interval_s == SESSION_NEVER_EXPIRES

    @property
    def connected(self) -> bool:
        return self.outbound is not None

    def cut_off(self, now_s: float) -> None:
        if self.outbound is not None:
            self.outbound.connection.end(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, now_s)

    @property
    def keeps_up(self) -> bool:
        """True if its client is connected, and receives and acknowledges its messages.

        At most one message is not acknowledged, and none waits.
        """
        outbound = self.outbound
        return (
            outbound is not None
            and len(self.inflight.messages) < KEEPS_UP_MAX
            and not self.queue.waits
            and not outbound.outbox.blocked
        )

    def undelivered(self) -> Undelivered:
        """Return the reason why the client gets no message now."""
        if self.outbound is None:
            return Undelivered.OFFLINE
        cause = self.outbound.undelivered(self)
        if cause is None:
            return Undelivered.LOG if self.behind else Undelivered.NOTHING_MATCHES
        return cause

    def dropped_now(self, node: NodeState) -> list[Reason]:
        """Return the reasons why a message like those that wait would be dropped."""
        outbound = self.outbound
        found = [Reason.OFFLINE_QOS_0] if outbound is None else []
        found += full_by(self)
        return found if outbound is None else found + outbound.full_by()

    def offer(self, pos: int, delivery: Delivery, node: NodeState, now_s: float) -> bool:
        """Send or queue a message that is durable now, and was admitted if it had to be.

        A message that needs no store is admitted only here, unless publishers wait for capacity:
        then all are admitted when they are routed.
        """
        if self.ended:
            return not self.is_lost
        outbound = self.outbound
        admitted = self.durable or node.blocks
        charged = admitted and not self.queue.spills
        if (
            outbound is not None
            and not outbound.has_more
            and pos >= self.rights_pos
            and outbound.send(pos, delivery, now_s, charged)
        ):
            if admitted:
                self.queue.forget(delivery.size_bytes)
        elif admitted:
            self.enqueue(pos, delivery, node, now_s)
        else:
            return self.wait(pos, delivery, node, now_s)
        return True

    def offer_burst(
        self, burst: Burst, first_pos: int, deliveries: list[Delivery], node: NodeState
    ) -> bool:
        """Send a burst that is durable now and was admitted, as `offer` does each of `deliveries`.

        Return False if nothing was done, as it cannot be sent as one.
        """
        outbound = self.outbound
        if (
            outbound is None
            or self.ended
            or first_pos < self.rights_pos
            or not node.inflight.has_common_room(burst, 1)
            or not outbound.takes_in_flight(burst, self, first_pos)
        ):
            return False
        outbound.send_stored(burst, self, first_pos, deliveries)
        count, counters = burst.count, node.counters
        self.queue.forget(sum(delivery.size_bytes for delivery in deliveries), count)
        counters.publish_sent += count
        counters.publish_bytes_sent += burst.payload_bytes
        return True

    def store_retained(
        self, page: list[Delivery], sends: RetainedSends, node: NodeState, now_s: float
    ) -> None:
        subscriptions = self.subscriptions
        places = [(self.take_position(), delivery) for delivery in page]
        ops: list[StoreOp] = [Append(self.client_id, pos, delivery) for pos, delivery in places]
        for filter, is_done in sends.moved.items():
            if subscriptions.is_owed(filter):
                if is_done:
                    subscriptions.owe_retained(filter, None, self.account, node)
                ops.append(subscriptions.stored(self.client_id, filter))
        sends.moved.clear()
        if not page:
            node.journal.note_all(ops)
            return
        sends.is_storing = True
        node.moving.count += len(page)

        def done(now_s: float) -> None:
            node.moving.count = max(0, node.moving.count - len(page))
            for pos, delivery in places:
                self.offer(pos, delivery, node, now_s)
            sends.is_storing = False
            if self.outbound is not None:
                self.outbound.outbox.pump_again()
            node.wake_later()

        node.journal.append_for_reader(ops, done, now_s)

    def pump(self, now_s: float) -> None:
        if self.outbound is None:
            self.queue.leave()
        else:
            self.outbound.pump(now_s)

    def enqueue(self, pos: int, delivery: Delivery, node: NodeState, now_s: float) -> None:
        """Queue an admitted message."""
        outbound = self.outbound
        self.queue.put(pos, delivery, delivery.size_bytes, connected=outbound is not None)
        if outbound is not None:
            outbound.has_more = True
            if not self.inflight.messages:
                outbound.outbox.pump_again()  # No acknowledgement will cause it.
        trim_queue(self, node, now_s)

    def wait(self, pos: int, delivery: Delivery, node: NodeState, now_s: float) -> bool:
        """Queue a message, or drop it with a counted reason; see `offer`."""
        if self.ended:
            return True
        reason = admit_message(self, delivery.size_bytes, node, now_s)
        if reason is None:
            self.enqueue(pos, delivery, node, now_s)
            return True
        drop_message(self, pos, delivery, reason, node)
        return not self.keeps_up


def queue_messages_max(sink: MessageSink, node: NodeState) -> int:
    """Return the number of messages that may wait for a sink as for a device."""
    most = node.settings.session.queue_messages_max
    rights = sink.rights if isinstance(sink, Session) else None
    quota = None if rights is None else rights.quotas.queue_messages_max
    return most if quota is None else min(most, quota)
