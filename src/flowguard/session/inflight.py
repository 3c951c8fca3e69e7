"""Messages sent and not acknowledged, in bytes: what all clients of a node together may hold.

Each one counts INFLIGHT_BYTES for the client that holds it, from its first PUBLISH to PUBACK or
PUBCOMP. A plain message (small, no properties, a short topic: nearly all of them) counts its
payload twice besides, for it was encoded: per client, by a formula that the hot path can afford
(`Outbound.send`). All others are shared, and count once however many clients hold them. PUBREC
gives back all but INFLIGHT_BYTES.

Where a client may not have more of the budget (see `FairBudget`), its messages wait in its queue.
But one that keeps up (`MessageSink.keeps_up`) may have messages that are larger than its share: it
is about to acknowledge them, and its queue has no larger share for them. And with nothing in flight
everybody may have one, or silent clients could stop all others for as long as their sessions live.
That one counts against the budget of the queues, where it would wait otherwise: what it takes is
bounded in any case. (Only its INFLIGHT_BYTES may exceed the limit, once per client.)
"""

from typing import Final, final

from flowguard.bounds import Bounds
from flowguard.codec.burst import Burst
from flowguard.flow import FairBudget
from flowguard.records import Delivery

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
    """The account of a node; `budget` is open, for the hot path to charge plain messages itself.

    What the hot path does not charge, `Receiver.take_place` does.
    """

    def __init__(self, bounds: Bounds, queue_budget: FairBudget) -> None:
        self.budget = FairBudget(bounds.inflight_bytes)
        self.client_bytes_max = bounds.settings.session.inflight_bytes_max
        """Of one client, in the same bytes; None: whatever the budget has."""
        self.plain_bytes_max = SHARED_BYTES if self.client_bytes_max is None else 0
        """Above it no message is plain: a client with a limit has all of its messages looked at."""
        self.queue_budget = queue_budget
        self.charges: dict[Delivery, Charge] = {}
        """Of what is shared."""

    def has_common_room(self, burst: Burst, receivers: int) -> bool:
        """Whether so many may have all of it in flight, as plain messages, whoever they are."""
        if burst.payload_bytes_max >= self.plain_bytes_max:
            return False
        if burst.head_bytes_max > PLAIN_HEAD_MAX:
            return False
        more_bytes = plain_bytes(burst.payload_bytes, burst.count) * receivers
        return self.budget.used_bytes + more_bytes <= self.budget.common_bytes


def plain_bytes(payload_bytes: int, count: int = 1) -> int:
    """Bytes that so many plain messages count."""
    return INFLIGHT_BYTES * count + 2 * payload_bytes


def content_bytes(delivery: Delivery) -> int:
    """Once as it came, once encoded."""
    return 2 * delivery.size_bytes
