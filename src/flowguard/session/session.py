"""Session: what outlives a connection ([MQTT 5.0, 4.1]; [MQTT 3.1.1, 4.1])."""

from typing import TYPE_CHECKING, final

from flowguard.flow import Budget, Reason
from flowguard.records import Append, Delivery, QueueEntry, Settle, WillRecord
from flowguard.session.backlog import Backlog, Fetch, Waiting
from flowguard.types import SESSION_NEVER_EXPIRES, SubscriptionOptions

if TYPE_CHECKING:
    from flowguard.session.host import Host
    from flowguard.session.inflight import Share
    from flowguard.session.outbound import Outbound


@final
class Session:
    """One client id's state: subscriptions, messages sent and waiting, inbound QoS 2 identifiers.

    `inflight` maps packet identifier to the message sent (None once PUBREC came: only PUBREL is
    owed), in send order. `durable` sessions outlive their connection, at least when they begin, and
    are told to the store, which knows messages by position: `positions` has those of `inflight`
    (durable sessions only).
    """

    __slots__ = (
        "backlog_end",
        "client_id",
        "durable",
        "ended",
        "ends_at_s",
        "expiry_interval_s",
        "inbound_ids",
        "inflight",
        "next_pos",
        "outbound",
        "positions",
        "queue",
        "shares",
        "state_bytes",
        "subscriptions",
        "will",
    )

    def __init__(self, client_id: str, queue: Backlog, expiry_interval_s: int) -> None:
        self.client_id = client_id
        self.expiry_interval_s = expiry_interval_s
        self.durable = expiry_interval_s > 0
        """Even where a resumed session is to end with its connection: its messages are stored."""
        self.subscriptions: dict[str, SubscriptionOptions] = {}
        self.queue = queue
        self.inflight: dict[int, Delivery | None] = {}
        self.positions: dict[int, int] = {}
        self.shares: dict[int, Share] | None = None
        """What of `inflight` is accounted for by shares, not by the formula (`Inflight`)."""
        self.inbound_ids: dict[int, bool] | None = None
        """QoS 2 identifiers of the client in use; True once their PUBLISH is durable."""
        self.next_pos = 1
        self.backlog_end = 1
        """Messages before this position waited for the client to come back."""
        self.outbound: Outbound | None = None
        self.will: WillRecord | None = None
        self.ends_at_s: float | None = None
        self.ended = False
        self.state_bytes = 0
        """What `session.state` counts for this client; the node's budget holds as much."""

    @classmethod
    def create(
        cls, client_id: str, host: "Host", budget: Budget, expiry_interval_s: int
    ) -> "Session":
        """An empty session with the node's queue limits."""
        limits = host.settings.session
        spills = host.spills and expiry_interval_s > 0
        queue = Backlog(limits.queue_messages_max, limits.queue_bytes_max, budget, spills=spills)
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
            if not host.state_budget.take(more_bytes):
                return Reason.NODE_STATE_BYTES
        else:
            host.state_budget.give_back(-more_bytes)
        self.state_bytes += more_bytes
        return None

    def charge_state_restored(self, size_bytes: int, host: "Host") -> None:
        """What a store remembers was promised: it is kept even where limits are lower now."""
        self.state_bytes += size_bytes
        host.state_budget.used_bytes += size_bytes

    def reserve(self) -> int:
        """The position of the next QoS 1 or 2 message; each is used exactly once."""
        pos = self.next_pos
        self.next_pos = pos + 1
        return pos

    def may_send(self, pos: int, host: "Host") -> bool:
        """Whether the first of the queue may go now, as far as the node is concerned.

        A backlog is replayed no faster than the node's window allows its clients to publish: a
        crowd that comes back wants all of it at once (design/overload.md 5.15).
        """
        return pos >= self.backlog_end or len(self.inflight) < host.window.limit

    # --- room --------------------------------------------------------------------------------

    def admit(self, size_bytes: int, host: "Host", now_s: float) -> Reason | None:
        """Keep a place for a message that has to be durable first; else why there is none.

        Room is made of what has expired, then, with `drop-oldest`, of the oldest. Where those are
        on disk, or on their way to it, it is made when they have been fetched, or have arrived, and
        until then the queue is a page above its limits, no more.
        """
        queue = self.queue
        reason = queue.reserve(size_bytes)
        if reason is None or not queue.could_hold(size_bytes):
            return reason
        self.expire_some(host, now_s)
        reason = queue.reserve(size_bytes)
        if not host.drops_oldest:
            return reason
        while reason is not None and reason is not Reason.NODE_QUEUE_BYTES:
            oldest = queue.take()
            if oldest is None:
                reason = queue.reserve(size_bytes, overshoot=True)
                if queue.is_away:
                    self.fetch(host)
                return reason
            self.drop(oldest[0], oldest[1], reason, host)
            reason = queue.reserve(size_bytes)
        return reason

    def lacks_room(self, size_bytes: int, host: "Host", now_s: float) -> bool:
        """Whether a message would not find room now, and may later."""
        queue = self.queue
        if self.ended or queue.refusal(size_bytes) is None or not queue.could_hold(size_bytes):
            return False
        self.expire_some(host, now_s)
        return queue.refusal(size_bytes) is not None

    def expire_some(self, host: "Host", now_s: float) -> None:
        """Give up what has expired while it waits, a page at most.

        What is on disk is looked through page by page, unless it has to make room anyway.
        """
        queue = self.queue
        self._expire(queue.take_expired(now_s), host, now_s)
        fetch = None if host.drops_oldest else queue.look(self, now_s)
        if fetch is not None:
            host.fetches.append(fetch)

    def fetch(self, host: "Host") -> None:
        """Ask for the next page, unless one is on its way."""
        fetch = self.queue.fetch(self)
        if fetch is not None:
            host.fetches.append(fetch)

    def fetched(self, fetch: Fetch, entries: list[QueueEntry], host: "Host", now_s: float) -> None:
        """A page of the backlog is there: on with it."""
        queue = self.queue
        if fetch.looks:
            self._expire(queue.looked(fetch, entries, now_s), host, now_s)
        else:
            queue.fetched(fetch, entries)
        self._go_on(host, now_s)

    def left_gaps(self, host: "Host", now_s: float) -> None:
        """Positions changed out of their order: no page until that is durable."""

        def done(now_s: float) -> None:
            self.queue.gaps -= 1
            if not self.ended:
                self._go_on(host, now_s)

        self.queue.gaps += 1
        host.when_durable(done, now_s)

    def _go_on(self, host: "Host", now_s: float) -> None:
        self.trim(host, now_s)
        if self.outbound is None:
            self.queue.leave()
        else:
            self.outbound.pump(now_s)

    def trim(self, host: "Host", now_s: float) -> None:
        """With `drop-oldest`: bring a queue that is above its limits back to them."""
        queue = self.queue
        if not host.drops_oldest or queue.excess() is None:
            return
        self.expire_some(host, now_s)
        while (reason := queue.excess()) is not None:
            oldest = queue.take()
            if oldest is None:
                if queue.is_away:
                    self.fetch(host)
                return
            self.drop(oldest[0], oldest[1], reason, host)

    # --- messages ----------------------------------------------------------------------------

    def offer(self, pos: int, delivery: Delivery, host: "Host", now_s: float) -> None:
        """Take a message that is durable now, and was admitted if it had to be: send it, or queue.

        One that needs no store is admitted only here, unless publishers wait for room: then all are
        when they are routed.
        """
        if self.ended:
            return
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
            self.wait(pos, delivery, host, now_s)

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

    def enqueue(self, pos: int, delivery: Delivery, host: "Host", now_s: float) -> None:
        """An admitted message waits."""
        outbound = self.outbound
        self.queue.put(pos, delivery, delivery.size_bytes, connected=outbound is not None)
        if outbound is not None:
            outbound.has_more = True
        self.trim(host, now_s)

    def wait(self, pos: int, delivery: Delivery, host: "Host", now_s: float) -> None:
        """Take a place in the queue, or be dropped with a counted reason."""
        if self.ended:
            return
        reason = self.admit(delivery.size_bytes, host, now_s)
        if reason is None:
            self.enqueue(pos, delivery, host, now_s)
        else:
            self.drop(pos, delivery, reason, host)

    def drop(self, pos: int, delivery: Delivery, reason: Reason, host: "Host") -> None:
        """Give a message up: counted, and settled in the store."""
        host.counters.drop(reason)
        if self.durable:
            host.note(Settle(self.client_id, pos, delivery))

    def expire(self, pos: int, delivery: Delivery, host: "Host", now_s: float) -> None:
        """[MQTT-3.3.2-5] give up a message whose time has passed before it was sent."""
        host.counters.drop(Reason.MESSAGE_EXPIRED)
        if self.durable:
            host.expired(Settle(self.client_id, pos, delivery), now_s)

    def _expire(self, expired: list[Waiting], host: "Host", now_s: float) -> None:
        """The same for messages that need not have been the first of the queue."""
        for pos, delivery, _ in expired:
            self.expire(pos, delivery, host, now_s)
        if expired and self.queue.spills:
            self.left_gaps(host, now_s)
