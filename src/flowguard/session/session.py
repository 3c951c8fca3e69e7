"""Session: what outlives a connection ([MQTT 5.0, 4.1]; [MQTT 3.1.1, 4.1])."""

from typing import TYPE_CHECKING, Final, final

from flowguard.flow import FairBudget, Reason
from flowguard.records import Append, Delivery, WillRecord
from flowguard.session.backlog import Backlog
from flowguard.session.owner import QueueOwner, new_backlog
from flowguard.types import SESSION_NEVER_EXPIRES, SubscriptionOptions

if TYPE_CHECKING:
    from flowguard.session.host import Host
    from flowguard.session.inflight import Charge
    from flowguard.session.membership import Membership


KEEPS_UP_MAX: Final = 2
"""Who has fewer messages to acknowledge keeps up: one is on its way while the other one's
acknowledgement is on its way back."""


@final
class Session(QueueOwner):
    """One client id's state: subscriptions, messages sent and waiting, inbound QoS 2 identifiers.

    `inflight` maps packet identifier to the message sent (None once PUBREC came: only PUBREL is
    owed), in send order. `durable` sessions outlive their connection, at least when they begin, and
    are told to the store, which knows messages by position: `positions` has those of `inflight`
    (durable sessions only).
    """

    __slots__ = (
        "backlog_end",
        "ends_at_s",
        "expiry_interval_s",
        "inbound_ids",
        "inflight",
        "is_matched_widely",
        "membership",
        "charges",
        "state_bytes",
        "subscriptions",
        "will",
    )

    def __init__(self, client_id: str, queue: Backlog, expiry_interval_s: int) -> None:
        # Even where a resumed session is to end with its connection: its messages are stored.
        super().__init__(client_id, queue, durable=expiry_interval_s > 0)
        self.expiry_interval_s = expiry_interval_s
        self.subscriptions: dict[str, SubscriptionOptions] = {}
        self.is_matched_widely = False
        """It has had a filter with a wildcard."""
        self.inflight: dict[int, Delivery | None] = {}
        self.charges: dict[int, Charge] | None = None
        """What of `inflight` is accounted for by charges, not by the formula (`Inflight`)."""
        self.inbound_ids: dict[int, bool] | None = None
        """QoS 2 identifiers of the client in use; True once their PUBLISH is durable."""
        self.membership: Membership | None = None
        """What it has to do with the queues of shared subscriptions; None: nothing yet."""
        self.backlog_end = 1
        """Messages before this position waited for the client to come back."""
        self.will: WillRecord | None = None
        self.ends_at_s: float | None = None
        self.state_bytes = 0
        """What `session.state` counts for this client; the node's budget holds as much."""

    @classmethod
    def create(
        cls, client_id: str, host: "Host", budget: FairBudget, expiry_interval_s: int
    ) -> "Session":
        """An empty session with the node's queue limits."""
        queue = new_backlog(host, budget, durable=expiry_interval_s > 0)
        return cls(client_id, queue, expiry_interval_s)

    @property
    def never_expires(self) -> bool:
        return self.expiry_interval_s == SESSION_NEVER_EXPIRES

    def charge_state(self, more_bytes: int, host: "Host") -> Reason | None:
        """Something is kept for the client, or (negative) no longer; a reason: it must not be.

        A session that has ended holds nothing, and who tidies up behind it need not know.
        """
        if self.ended:
            return None
        if more_bytes > 0:
            if self.state_bytes + more_bytes > host.settings.session.state_bytes_max:
                return Reason.STATE_BYTES
            if not host.state_budget.take(more_bytes, self.state_bytes):
                return Reason.NODE_STATE_BYTES
        else:
            host.state_budget.give_back(-more_bytes, self.state_bytes + more_bytes)
        self.state_bytes += more_bytes
        return None

    def charge_state_restored(self, size_bytes: int, host: "Host") -> None:
        """What a store remembers was promised: it is kept even where limits are lower now."""
        host.state_budget.hold(size_bytes, self.state_bytes)
        self.state_bytes += size_bytes

    @property
    def keeps_up(self) -> bool:
        """Its client is connected, takes what it is sent and acknowledges it: at most one message
        is not acknowledged, and none waits."""
        outbound = self.outbound
        return (
            outbound is not None
            and len(self.inflight) < KEEPS_UP_MAX
            and not self.queue.waits
            and not outbound.blocked
        )

    def offer(self, pos: int, delivery: Delivery, host: "Host", now_s: float) -> bool:
        """Take a message that is durable now, and was admitted if it had to be: send it, or queue.

        One that needs no store is admitted only here, unless publishers wait for room: then all are
        when they are routed.
        """
        if self.ended:
            return True
        outbound = self.outbound
        admitted = self.durable or host.blocks
        charged = admitted and not self.queue.spills
        if (
            outbound is not None
            and not outbound.has_more
            and outbound.send(pos, delivery, now_s, charged)
        ):
            if admitted:
                self.queue.forget(delivery.size_bytes)
        elif admitted:
            self.enqueue(pos, delivery, host, now_s)
        else:
            return self.wait(pos, delivery, host, now_s)
        return True

    def offer_retained(self, delivery: Delivery, host: "Host", now_s: float) -> bool:
        """Take a retained message; False: it waits in the queue, and others should not follow."""
        outbound = self.outbound
        assert outbound is not None
        reason = self.admit(delivery.size_bytes, host, now_s)
        if reason is not None:
            host.counters.drop(reason)
            return True
        pos = self.reserve()
        if self.durable:
            host.note(Append(self.client_id, pos, delivery))
        if outbound.send(pos, delivery, now_s, charged=not self.queue.spills):
            self.queue.forget(delivery.size_bytes)
            return True
        self.enqueue(pos, delivery, host, now_s)
        if self.queue.spills:
            self.left_gaps(host, now_s)  # The store does not know it yet.
        return False

    def pump(self, now_s: float) -> None:
        if self.outbound is None:
            self.queue.leave()
        else:
            self.outbound.pump(now_s)

    def enqueue(self, pos: int, delivery: Delivery, host: "Host", now_s: float) -> None:
        """An admitted message waits."""
        outbound = self.outbound
        self.queue.put(pos, delivery, delivery.size_bytes, connected=outbound is not None)
        if outbound is not None:
            outbound.has_more = True
            if not self.inflight:
                outbound.pump_again()  # No acknowledgement will come that does.
        self.trim(host, now_s)

    def wait(self, pos: int, delivery: Delivery, host: "Host", now_s: float) -> bool:
        """Take a place in the queue, or be dropped with a counted reason; see `offer`."""
        if self.ended:
            return True
        reason = self.admit(delivery.size_bytes, host, now_s)
        if reason is None:
            self.enqueue(pos, delivery, host, now_s)
            return True
        self.drop(pos, delivery, reason, host)
        return not self.keeps_up
