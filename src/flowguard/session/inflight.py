"""Messages sent and not acknowledged, in bytes: what all clients of a node together may hold.

Each one counts INFLIGHT_BYTES for the client that holds it, from its first PUBLISH to PUBACK or
PUBCOMP. A plain message (small, no properties, a short topic: nearly all of them) counts its
payload twice besides, for it was encoded: per client, by a formula that the hot path can afford
(`Outbound.send`). All others are shared, and count once however many clients hold them. PUBREC
gives back all but INFLIGHT_BYTES.

Where the budget is spent, messages wait in their queues. But a client with nothing in flight may
always have one, or silent clients could stop everybody for as long as their sessions live. That one
counts against the budget of the queues, where it would wait otherwise: what it takes is bounded in
any case. (Only its INFLIGHT_BYTES may exceed the limit, once per client.)
"""

from typing import TYPE_CHECKING, Final, final

from flowguard.flow import Budget
from flowguard.records import Delivery

if TYPE_CHECKING:
    from flowguard.session.session import Session

INFLIGHT_BYTES: Final = 800
"""Identifier, position, record, frame and store entry of one message; measured, rounded up."""
PLAIN_HEAD_MAX: Final = 128
"""Beside its payload a plain message has no more than this, encoded, bytes."""


@final
class Share:
    """Content in flight to some clients, and the budget that holds its bytes."""

    __slots__ = ("budget", "holders", "size_bytes")

    def __init__(self, budget: Budget, size_bytes: int) -> None:
        self.budget = budget
        self.size_bytes = size_bytes
        self.holders = 0


@final
class Inflight:
    """The account of a node; `budget` is open, for the hot path to charge plain messages itself."""

    __slots__ = ("_queue_budget", "_shares", "budget")

    def __init__(self, budget: Budget, queue_budget: Budget) -> None:
        self.budget = budget
        self._queue_budget = queue_budget
        self._shares: dict[Delivery, Share] = {}

    def take(
        self, session: "Session", packet_id: int, delivery: Delivery, *, plain: bool, charged: bool
    ) -> bool:
        """Charge what the hot path does not; False: it has to wait. `charged`: it did already."""
        share = None if plain else self._shares.get(delivery)
        budget = self.budget
        content_bytes = _content_bytes(delivery) if share is None else 0
        if budget.take(INFLIGHT_BYTES + content_bytes):
            if share is None:
                share = Share(budget, content_bytes)
        elif session.inflight:
            return False
        else:
            if share is None:
                share = self._share_of_queue(delivery, charged=charged)
                if share is None:
                    return False
            budget.used_bytes += INFLIGHT_BYTES
        if not plain:
            self._shares[delivery] = share
        _hold(session, packet_id, share)
        return True

    def _share_of_queue(self, delivery: Delivery, *, charged: bool) -> Share | None:
        budget = self._queue_budget
        if charged:
            # The queue gives the same number back in this stretch, when the message leaves it.
            budget.used_bytes += delivery.size_bytes
        elif not budget.take(delivery.size_bytes):
            return None
        return Share(budget, delivery.size_bytes)

    def restore(self, session: "Session", packet_id: int, delivery: Delivery | None) -> None:
        """A store remembers that this was sent: it is in flight even where limits are lower now."""
        self.budget.used_bytes += INFLIGHT_BYTES
        if delivery is None:
            return
        share = self._shares.get(delivery)
        if share is None:
            share = self._shares[delivery] = Share(self.budget, _content_bytes(delivery))
            self.budget.used_bytes += share.size_bytes
        _hold(session, packet_id, share)

    def release(self, session: "Session", packet_id: int, delivery: Delivery) -> None:
        """PUBREC: the content is the client's, the identifier still in use."""
        share = session.shares.pop(packet_id, None) if session.shares else None
        if share is None:
            self.budget.give_back(2 * len(delivery.message.payload))
            return
        share.holders -= 1
        if not share.holders:
            share.budget.give_back(share.size_bytes)
            if self._shares.get(delivery) is share:
                del self._shares[delivery]

    def settle(self, session: "Session", packet_id: int, delivery: Delivery | None) -> None:
        """The exchange is over; `delivery` None: its content was released before."""
        if delivery is not None:
            self.release(session, packet_id, delivery)
        self.budget.give_back(INFLIGHT_BYTES)


def _hold(session: "Session", packet_id: int, share: Share) -> None:
    share.holders += 1
    if session.shares is None:
        session.shares = {}
    session.shares[packet_id] = share


def _content_bytes(delivery: Delivery) -> int:
    """Once as it came, once encoded."""
    return 2 * delivery.size_bytes
