"""Messages sent and not acknowledged, in bytes: what all clients of a node together may hold.

Each one counts INFLIGHT_BYTES for the client that holds it, from its first PUBLISH to PUBACK or
PUBCOMP. A plain message (small, no properties, a short topic: nearly all of them) counts its
payload twice besides, for it was encoded: per client, by a formula that the hot path can afford
(`Outbound.send`). All others are shared, and count once however many clients hold them. PUBREC
gives back all but INFLIGHT_BYTES.

Where a client may not have more of the budget (see `FairBudget`), its messages wait in its queue.
But one that keeps up (`Session.keeps_up`) may have messages that are larger than its share: it is
about to acknowledge them, and its queue has no larger share for them. And with nothing in flight
everybody may have one, or silent clients could stop all others for as long as their sessions live.
That one counts against the budget of the queues, where it would wait otherwise: what it takes is
bounded in any case. (Only its INFLIGHT_BYTES may exceed the limit, once per client.)
"""

from typing import TYPE_CHECKING, Final, final

from flowguard.bounds import Bounds
from flowguard.flow import FairBudget
from flowguard.records import Delivery

if TYPE_CHECKING:
    from flowguard.session.session import Session

INFLIGHT_BYTES: Final = 800
"""Identifier, position, record, frame and store entry of one message; measured, rounded up."""
SHARED_BYTES: Final = 4 * 1024
"""A message is encoded once for all who get it, but for its head, from here on."""
PLAIN_HEAD_MAX: Final = 128
"""Beside its payload a plain message has no more than this, encoded, bytes."""


@final
class Charge:
    """Content in flight to some clients, and the budget that holds its bytes."""

    __slots__ = ("budget", "holders", "size_bytes")

    def __init__(self, budget: FairBudget, size_bytes: int) -> None:
        self.budget = budget
        self.size_bytes = size_bytes
        self.holders = 0


@final
class Inflight:
    """The account of a node; `budget` is open, for the hot path to charge plain messages itself."""

    __slots__ = ("_charges", "_queue_budget", "budget", "client_bytes_max", "plain_bytes_max")

    def __init__(self, bounds: Bounds, queue_budget: FairBudget) -> None:
        self.budget = FairBudget(bounds.inflight_bytes)
        self.client_bytes_max = bounds.settings.session.inflight_bytes_max
        """Of one client, in the same bytes; None: whatever the budget has."""
        self.plain_bytes_max = SHARED_BYTES if self.client_bytes_max is None else 0
        """Above it no message is plain: a client with a limit has all of its messages looked at."""
        self._queue_budget = queue_budget
        self._charges: dict[Delivery, Charge] = {}

    def take(
        self, session: "Session", packet_id: int, delivery: Delivery, *, plain: bool, charged: bool
    ) -> bool:
        """Charge what the hot path does not; False: it has to wait. `charged`: it did already."""
        if self.client_bytes_max is not None and not self._may_have(session, delivery):
            return False
        charge = None if plain else self._charges.get(delivery)
        budget = self.budget
        content_bytes = _content_bytes(delivery) if charge is None else 0
        size_bytes = INFLIGHT_BYTES + content_bytes
        if self._fits(size_bytes, session) or (session.keeps_up and budget.has_spare(size_bytes)):
            if charge is None:
                charge = Charge(budget, content_bytes)
                budget.used_bytes += content_bytes
        elif session.inflight:
            return False
        elif charge is None:
            charge = self._charge_to_queue(session, delivery, charged=charged)
            if charge is None:
                return False
        budget.hold(INFLIGHT_BYTES, len(session.inflight))
        if not plain:
            self._charges[delivery] = charge
        _hold(session, packet_id, charge)
        return True

    def _may_have(self, session: "Session", delivery: Delivery) -> bool:
        """Whether a client stays within its own limit; one message it may always have."""
        limit_bytes = self.client_bytes_max
        if limit_bytes is None or not session.inflight:
            return True
        size_bytes = INFLIGHT_BYTES + _content_bytes(delivery)
        return size_bytes + _held_bytes(session, limit_bytes) <= limit_bytes

    def _fits(self, size_bytes: int, session: "Session") -> bool:
        """What a client holds is added up only where the budget asks for it, as far as it matters.

        Who holds more than what is left by the number of holders may have nothing more.
        """
        budget = self.budget
        if budget.used_bytes + size_bytes <= budget.common_bytes:
            return True
        left_bytes = budget.limit_bytes - budget.used_bytes
        enough_bytes = left_bytes // max(1, budget.holders_count)
        return budget.fits(size_bytes, _held_bytes(session, enough_bytes))

    def _charge_to_queue(
        self, session: "Session", delivery: Delivery, *, charged: bool
    ) -> Charge | None:
        budget, size_bytes = self._queue_budget, delivery.size_bytes
        # Charged: the queue gives the same number back in this stretch, when the message leaves it.
        fits = charged or budget.fits(size_bytes, session.queue.charged_bytes)
        if not fits and not (session.keeps_up and budget.has_spare(size_bytes)):
            return None
        budget.hold(size_bytes, 0)
        return Charge(budget, size_bytes)

    def restore(self, session: "Session", packet_id: int, delivery: Delivery | None) -> None:
        """A store remembers that this was sent: it is in flight even where limits are lower now.

        As with `take`, `session.inflight` has it afterwards.
        """
        self.budget.hold(INFLIGHT_BYTES, len(session.inflight))
        if delivery is None:
            return
        charge = self._charges.get(delivery)
        if charge is None:
            charge = self._charges[delivery] = Charge(self.budget, _content_bytes(delivery))
            self.budget.used_bytes += charge.size_bytes
        _hold(session, packet_id, charge)

    def release(self, session: "Session", packet_id: int, delivery: Delivery) -> None:
        """PUBREC: the content is the client's, the identifier still in use."""
        charge = session.charges.pop(packet_id, None) if session.charges else None
        if charge is None:
            self.budget.give_back(2 * len(delivery.message.payload), INFLIGHT_BYTES)
            return
        charge.holders -= 1
        if not charge.holders:
            # On the account of the queues each charge is a holder of its own.
            held_bytes = INFLIGHT_BYTES if charge.budget is self.budget else 0
            charge.budget.give_back(charge.size_bytes, held_bytes)
            if self._charges.get(delivery) is charge:
                del self._charges[delivery]

    def settle(self, session: "Session", packet_id: int, delivery: Delivery | None) -> None:
        """The exchange is over, and out of `session.inflight`.

        `delivery` None: its content was released before.
        """
        if delivery is not None:
            self.release(session, packet_id, delivery)
        self.budget.give_back(INFLIGHT_BYTES, len(session.inflight))


def _hold(session: "Session", packet_id: int, charge: Charge) -> None:
    charge.holders += 1
    if session.charges is None:
        session.charges = {}
    session.charges[packet_id] = charge


def _held_bytes(session: "Session", enough_bytes: int) -> int:
    """What a client has in flight, all that it shares with others included; or more than enough."""
    charges = session.charges
    held_bytes = INFLIGHT_BYTES * len(session.inflight)
    for packet_id, delivery in session.inflight.items():
        if held_bytes > enough_bytes:
            break
        charge = charges.get(packet_id) if charges else None
        if charge is not None:
            held_bytes += charge.size_bytes
        elif delivery is not None:
            payload_bytes = len(delivery.message.payload)
            held_bytes += payload_bytes + payload_bytes
    return held_bytes


def _content_bytes(delivery: Delivery) -> int:
    """Once as it came, once encoded."""
    return 2 * delivery.size_bytes
