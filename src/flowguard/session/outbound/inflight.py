"""Messages sent and not acknowledged, in bytes: the budget of all clients of a node together.

Each message counts INFLIGHT_BYTES for its client, from its first PUBLISH to PUBACK or PUBCOMP. A
plain message (small, no properties, a short topic: nearly all of them) also counts its payload
twice, as it was encoded. It counts per client, by a formula that the hot path can afford
(`Outbound.send`). All others are shared, and count once for all clients. PUBREC returns all but
INFLIGHT_BYTES.

If a client may not have more of the budget (see `FairBudget`), its messages wait in its queue. But
a client that keeps up (`MessageSink.keeps_up`) may have messages that are larger than its share: it
is about to acknowledge them, and its queue has no larger share for them. And each client with
nothing in flight may have one message, or silent clients could stop all others as long as their
sessions live. This message counts against the budget of the queues, in which it would wait
otherwise, so its memory is bounded. (Only its INFLIGHT_BYTES may exceed the limit, once per
client.)
"""

from typing import Final, final

from flowguard.bounds import Bounds
from flowguard.codec.bodies import PUBACK_BYTES
from flowguard.codec.burst import Burst
from flowguard.flow import FairBudget
from flowguard.records import Delivery, Settle, StoreOp

INFLIGHT_BYTES: Final = 800
"""Identifier, position, record, frame and store entry of one message; measured, rounded up."""
SHARED_BYTES: Final = 4 * 1024
"""Size from which on a message is encoded once for all clients, except for its head."""
PLAIN_HEAD_MAX: Final = 128
"""Maximum encoded size of a plain message besides its payload, bytes."""

NONE_SENT: Final[dict[int, Delivery | None]] = {}
"""The messages in flight of all clients without any: shared, and never changed."""
NO_POSITIONS: Final[dict[int, int]] = {}
"""The positions of durable sessions without messages in flight share this; it never changes."""


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

    `InflightExchanges.take_place` charges all other messages.
    """

    def __init__(self, bounds: Bounds, queue_budget: FairBudget) -> None:
        self.budget = FairBudget(bounds.inflight_bytes)
        self.client_bytes_max = bounds.settings.session.inflight_bytes_max
        """Limit of one client, in the same bytes, or None for that of the budget."""
        self.plain_bytes_max = SHARED_BYTES if self.client_bytes_max is None else 0
        """Payload size from which on no message is plain; 0 if clients have limits."""
        self.queue_budget = queue_budget
        self.charges: dict[Delivery, Charge] = {}
        """Charges of shared messages."""

    def has_common_room(self, burst: Burst, receivers: int) -> bool:
        """Return True if any `receivers` clients may have a burst in flight, as plain messages."""
        if burst.payload_bytes_max >= self.plain_bytes_max:
            return False
        if burst.head_bytes_max > PLAIN_HEAD_MAX:
            return False
        more_bytes = plain_bytes(burst.payload_bytes, burst.count) * receivers
        return self.budget.used_bytes + more_bytes <= self.budget.common_bytes


@final
class InflightExchanges:
    """Messages that were sent to one client at QoS 1 and 2 and are not acknowledged.

    `messages` maps packet identifier to the message sent (None once PUBREC came: only PUBREL is
    owed), in send order. A store knows messages by position: `positions` has those of `messages`,
    or is None if the session is not durable.
    """

    __slots__ = ("charges", "messages", "positions")

    def __init__(self, *, durable: bool) -> None:
        self.messages = NONE_SENT
        self.positions: dict[int, int] | None = NO_POSITIONS if durable else None
        self.charges: dict[int, Charge] | None = None
        """Charges of messages that the formula (`Inflight`) does not account for."""

    def add(self, packet_id: int, delivery: Delivery | None) -> None:
        """Add a message in flight whose slot has been charged."""
        self.own_messages()[packet_id] = delivery

    def own_messages(self) -> dict[int, Delivery | None]:
        """Return `messages` to change them; from then on `positions` may be changed, too."""
        if self.messages is NONE_SENT:
            self.messages = {}
            if self.positions is NO_POSITIONS:
                self.positions = {}
        return self.messages

    def take_place(
        self,
        packet_id: int,
        delivery: Delivery,
        account: Inflight,
        queue_bytes: int,
        *,
        plain: bool,
        charged: bool,
        keeps_up: bool,
    ) -> bool:
        """Charge a message that the hot path does not (`Outbound.send`); False if it has to wait.

        If `charged`, the budget of the queues holds it already, else its queue has `queue_bytes`.
        The caller adds it to `messages` afterwards.
        """
        if account.client_bytes_max is not None and not self._may_have(
            delivery, account.client_bytes_max
        ):
            return False
        charge = None if plain else account.charges.get(delivery)
        budget = account.budget
        more_bytes = content_bytes(delivery) if charge is None else 0
        size_bytes = INFLIGHT_BYTES + more_bytes
        if self._fits(size_bytes, budget) or (keeps_up and budget.has_spare(size_bytes)):
            if charge is None:
                charge = Charge(budget, more_bytes)
                budget.used_bytes += more_bytes
        elif self.messages:
            return False
        elif charge is None:
            queue_budget, size_bytes = account.queue_budget, delivery.size_bytes
            # If charged, the queue returns the same number in this time slice.
            fits = charged or queue_budget.fits(size_bytes, queue_bytes)
            if not fits and not (keeps_up and queue_budget.has_spare(size_bytes)):
                return False
            queue_budget.hold(size_bytes, 0)
            charge = Charge(queue_budget, size_bytes)
        budget.hold(INFLIGHT_BYTES, len(self.messages))
        if not plain:
            account.charges[delivery] = charge
        self._hold(packet_id, charge)
        return True

    def _may_have(self, delivery: Delivery, limit_bytes: int) -> bool:
        """Return True if a client stays within its own limit; one message is always allowed."""
        if not self.messages:
            return True
        size_bytes = INFLIGHT_BYTES + content_bytes(delivery)
        return size_bytes + self._size_bytes(limit_bytes) <= limit_bytes

    def _fits(self, size_bytes: int, budget: FairBudget) -> bool:
        """Return True if the budget has capacity; the client's bytes are added up only if needed.

        A client with more than the free bytes divided by the number of holders may have no more.
        """
        if budget.used_bytes + size_bytes <= budget.common_bytes:
            return True
        left_bytes = budget.limit_bytes - budget.used_bytes
        enough_bytes = left_bytes // max(1, budget.holders_count)
        return budget.fits(size_bytes, self._size_bytes(enough_bytes))

    def restore_place(self, packet_id: int, delivery: Delivery | None, account: Inflight) -> None:
        """Charge a message that was in flight before a start, even if limits are lower now.

        As with `take_place`, the caller adds it to `messages` afterwards.
        """
        account.budget.hold(INFLIGHT_BYTES, len(self.messages))
        if delivery is None:
            return
        charge = account.charges.get(delivery)
        if charge is None:
            charge = Charge(account.budget, content_bytes(delivery))
            account.charges[delivery] = charge
            account.budget.used_bytes += charge.size_bytes
        self._hold(packet_id, charge)

    def free_content(self, packet_id: int, delivery: Delivery, account: Inflight) -> None:
        """Free the content after PUBREC; the identifier is still in use."""
        charge = self.charges.pop(packet_id, None) if self.charges else None
        if charge is None:
            account.budget.give_back(2 * len(delivery.message.payload), INFLIGHT_BYTES)
            return
        charge.holders -= 1
        if not charge.holders:
            # On the account of the queues each charge is a holder of its own.
            held_bytes = INFLIGHT_BYTES if charge.budget is account.budget else 0
            charge.budget.give_back(charge.size_bytes, held_bytes)
            if account.charges.get(delivery) is charge:
                del account.charges[delivery]

    def free_place(self, packet_id: int, delivery: Delivery | None, account: Inflight) -> None:
        """Free the slot of an ended exchange, which is not in `messages`.

        `delivery` is None if its content was freed before.
        """
        if delivery is not None:
            self.free_content(packet_id, delivery, account)
        account.budget.give_back(INFLIGHT_BYTES, len(self.messages))

    def end(self, packet_id: int, delivery: Delivery | None, account: Inflight) -> None:
        """End an exchange after PUBACK, PUBCOMP or a PUBREC that rejects the message."""
        del self.messages[packet_id]
        if delivery is None or self.charges:
            self.free_place(packet_id, delivery, account)
            return
        budget = account.budget
        budget.used_bytes -= plain_bytes(len(delivery.message.payload))
        if not self.messages:
            budget.holders_count -= 1

    def end_plain(
        self, pubacks: bytes, account: Inflight, client_id: str, settled: list[StoreOp]
    ) -> int:
        """End the exchanges of these PUBACKs up to the first one that is not of a plain message.

        Add their operations for the store to `settled`. Return the number of bytes that were
        handled; the others are for `end`.
        """
        if self.charges:
            return 0
        messages, positions = self.messages, self.positions
        freed_bytes = end = 0
        while end < len(pubacks):
            packet_id = pubacks[end + 2] << 8 | pubacks[end + 3]
            delivery = messages.get(packet_id)
            if delivery is None or delivery.qos != 1:
                break
            del messages[packet_id]
            freed_bytes += plain_bytes(len(delivery.message.payload))
            if positions is not None:
                settled.append(Settle(client_id, positions.pop(packet_id), delivery))
            end += PUBACK_BYTES
        budget = account.budget
        budget.used_bytes -= freed_bytes
        if end and not messages:
            budget.holders_count -= 1
        return end

    def _hold(self, packet_id: int, charge: Charge) -> None:
        charge.holders += 1
        if self.charges is None:
            self.charges = {}
        self.charges[packet_id] = charge

    def _size_bytes(self, enough_bytes: int) -> int:
        """Return the bytes in flight, shared ones included, or any number above `enough_bytes`."""
        charges = self.charges
        held_bytes = INFLIGHT_BYTES * len(self.messages)
        for packet_id, delivery in self.messages.items():
            if held_bytes > enough_bytes:
                break
            charge = charges.get(packet_id) if charges else None
            if charge is not None:
                held_bytes += charge.size_bytes
            elif delivery is not None:
                payload_bytes = len(delivery.message.payload)
                held_bytes += payload_bytes + payload_bytes
        return held_bytes


def plain_bytes(payload_bytes: int, count: int = 1) -> int:
    """Return the bytes that `count` plain messages count."""
    return INFLIGHT_BYTES * count + 2 * payload_bytes


def content_bytes(delivery: Delivery) -> int:
    """Return the size of a message as received and as encoded together."""
    return 2 * delivery.size_bytes
