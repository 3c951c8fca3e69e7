"""Receiver: a client as the one who gets QoS 1 and 2 messages ([MQTT 5.0, 4.3]): what was sent to
it and is not acknowledged, what that counts, and what else is kept for it in bytes.

It knows no connection: `session` does, which it is the lower half of.
"""

from typing import TYPE_CHECKING, Final

from flowguard.access.rights import NOTHING, Rights, decision_bytes
from flowguard.codec.bodies import PUBACK_BYTES
from flowguard.flow import Reason
from flowguard.flow.window import UNBOUNDED
from flowguard.records import Delivery, Settle, StoreOp, packet_id_of
from flowguard.session.backlog import Backlog
from flowguard.session.inflight import INFLIGHT_BYTES, Charge, content_bytes, plain_bytes
from flowguard.session.node_state import NodeState
from flowguard.session.owner import MessageSink

if TYPE_CHECKING:
    from flowguard.session.membership import Membership
    from flowguard.session.retained_sends import RetainedSends

NONE_SENT: Final[dict[int, Delivery | None]] = {}
"""In flight to all to whom nothing has been sent yet: shared, and never changed."""


class Receiver(MessageSink):
    """The lower half of a `Session`.

    `inflight` maps packet identifier to the message sent (None once PUBREC came: only PUBREL is
    owed), in send order. A store knows messages by position: `positions` has those of `inflight`
    (durable sessions only).
    """

    __slots__ = (
        "backlog_end",
        "charges",
        "inflight",
        "membership",
        "rights",
        "rights_pos",
        "state_bytes",
    )

    def __init__(self, client_id: str, queue: Backlog, *, durable: bool) -> None:
        super().__init__(client_id, queue, durable=durable)
        self.inflight = NONE_SENT
        self.charges: dict[int, Charge] | None = None
        """What of `inflight` is accounted for by charges, not by the formula (`Inflight`)."""
        self.membership: Membership | None = None
        """What it has to do with the queues of shared subscriptions; None: nothing yet."""
        self.backlog_end = 1
        """Messages before this position waited for the client to come back."""
        self.state_bytes = 0
        """What `state_bytes` counts for this client; the node's budget holds as much."""
        self.rights: Rights | None = None
        """None: there are no rules, or the client has not been here since the broker's start."""
        self.rights_pos = 1
        """Messages before this position were routed under other rights: these are asked again."""

    def offer_retained(self, delivery: Delivery, node: NodeState, now_s: float) -> bool:
        """Take a retained message that needs no store; False: it waits in the queue, and others
        should not follow."""
        raise NotImplementedError

    def store_retained(
        self, page: list[Delivery], sends: "RetainedSends", node: NodeState, now_s: float
    ) -> None:
        """Take retained messages that were admitted: sent when the store has them, and knows how
        far those of each filter have come. Until then `sends` is storing."""
        raise NotImplementedError

    def retained_taken(self, filter: str, topic: str, node: NodeState) -> None:
        """Go on after that topic with what is owed by `filter`; `store_retained` follows."""
        raise NotImplementedError

    # --- what is kept for it -----------------------------------------------------------------

    def charge_state(self, more_bytes: int, node: NodeState) -> Reason | None:
        """Something is kept for the client, or (negative) no longer; a reason: it must not be.

        A session that has ended holds nothing, and who tidies up behind it need not know.
        """
        if self.ended:
            return None
        if more_bytes > 0:
            if self.state_bytes + more_bytes > node.state_bytes_max:
                return Reason.STATE_BYTES
            if not node.state_budget.take(more_bytes, self.state_bytes):
                return Reason.NODE_STATE_BYTES
        else:
            node.state_budget.give_back(-more_bytes, self.state_bytes + more_bytes)
        self.state_bytes += more_bytes
        return None

    def charge_state_restored(self, size_bytes: int, node: NodeState) -> None:
        """Charge what a store remembers, which is kept even where limits are lower now."""
        node.state_budget.hold(size_bytes, self.state_bytes)
        self.state_bytes += size_bytes

    # --- what it may do ----------------------------------------------------------------------

    def use_rights(self, rights: Rights, node: NodeState) -> Reason | None:
        """These hold from now on, instead of others; a reason: there is no room for them."""
        before = self.rights
        if before is not None:
            self.charge_state(-before.size_bytes - before.forget(), node)
        reason = self.charge_state(rights.size_bytes, node)
        self.rights = rights if reason is None else None
        self.rights_pos = self.next_pos
        if not self.is_unbounded:
            most = self.messages_max(node)
            if most != self.queue.messages_max:
                self.own_queue(node).messages_max = most
        return reason

    def messages_max(self, node: NodeState) -> int:
        most = node.settings.session.queue_messages_max
        quota = None if self.rights is None else self.rights.quotas.queue_messages_max
        return most if quota is None else min(most, quota)

    @property
    def window_max(self) -> int:
        """Cost units that its roles let it have in process."""
        quota = None if self.rights is None else self.rights.quotas.window_max
        return UNBOUNDED if quota is None else quota

    def may_receive(self, topic: str) -> bool:
        """Whether its rights let it; who was not here since the start is asked when it comes."""
        rights = self.rights
        return rights is None or rights.may_receive(topic)

    def decision(self, rights: Rights, topic: str, node: NodeState) -> int:
        """Ask its rights of a topic; worked out once, and remembered while there is room."""
        decision = rights.remembered(topic)
        if decision == NOTHING:
            decision = rights.decide(topic)
            if not rights.has_room(topic):
                self.charge_state(-rights.forget(), node)
            if rights.has_room(topic) and self.charge_state(decision_bytes(topic), node) is None:
                rights.remember(topic, decision)
        return decision

    # --- in flight ---------------------------------------------------------------------------

    def take_position(self, count: int = 1) -> int:
        """As for every owner; a single position is skipped if its identifier is in flight.

        A free one exists in each QoS, because not all identifiers of a QoS can be in flight.
        """
        inflight, pos = self.inflight, self.next_pos
        while count == 1 and (packet_id_of(pos, 1) in inflight or packet_id_of(pos, 2) in inflight):
            pos += 1
        self.next_pos = pos + count
        return pos

    def another_id(self, qos: int) -> int:
        """Return a free packet identifier; 0 if a store knows the position that it follows from."""
        return 0 if self.durable else packet_id_of(self.take_position(), qos)

    def sends(self, packet_id: int, delivery: Delivery | None) -> None:
        """It is in flight now; its place has been charged."""
        if self.inflight is NONE_SENT:
            self.inflight = {}
        self.inflight[packet_id] = delivery

    def take_place(
        self, packet_id: int, delivery: Delivery, node: NodeState, *, plain: bool, charged: bool
    ) -> bool:
        """Charge what the hot path does not (`Outbound.send`); False: it has to wait. `charged`:
        the budget of the queues holds it already. `inflight` has it afterwards."""
        account = node.inflight
        if account.client_bytes_max is not None and not self._may_have(
            delivery, account.client_bytes_max
        ):
            return False
        charge = None if plain else account.charges.get(delivery)
        budget = account.budget
        more_bytes = content_bytes(delivery) if charge is None else 0
        size_bytes = INFLIGHT_BYTES + more_bytes
        if self._fits(size_bytes, node) or (self.keeps_up and budget.has_spare(size_bytes)):
            if charge is None:
                charge = Charge(budget, more_bytes)
                budget.used_bytes += more_bytes
        elif self.inflight:
            return False
        elif charge is None:
            charge = self._charge_to_queue(delivery, node, charged=charged)
            if charge is None:
                return False
        budget.hold(INFLIGHT_BYTES, len(self.inflight))
        if not plain:
            account.charges[delivery] = charge
        self._hold(packet_id, charge)
        return True

    def _may_have(self, delivery: Delivery, limit_bytes: int) -> bool:
        """Whether a client stays within its own limit; one message it may always have."""
        if not self.inflight:
            return True
        size_bytes = INFLIGHT_BYTES + content_bytes(delivery)
        return size_bytes + self._inflight_bytes(limit_bytes) <= limit_bytes

    def _fits(self, size_bytes: int, node: NodeState) -> bool:
        """Whether the budget has room; what the client holds is added up only where it matters.

        A client that holds more than what is left by the number of holders may have no more.
        """
        budget = node.inflight.budget
        if budget.used_bytes + size_bytes <= budget.common_bytes:
            return True
        left_bytes = budget.limit_bytes - budget.used_bytes
        enough_bytes = left_bytes // max(1, budget.holders_count)
        return budget.fits(size_bytes, self._inflight_bytes(enough_bytes))

    def _charge_to_queue(
        self, delivery: Delivery, node: NodeState, *, charged: bool
    ) -> Charge | None:
        budget, size_bytes = node.queue_budget, delivery.size_bytes
        # Charged: the queue gives the same number back in this stretch, when the message leaves it.
        fits = charged or budget.fits(size_bytes, self.queue.charged_bytes)
        if not fits and not (self.keeps_up and budget.has_spare(size_bytes)):
            return None
        budget.hold(size_bytes, 0)
        return Charge(budget, size_bytes)

    def restore_place(self, packet_id: int, delivery: Delivery | None, node: NodeState) -> None:
        """A store remembers that this was sent: it is in flight even where limits are lower now.

        As with `take_place`, `inflight` has it afterwards.
        """
        account = node.inflight
        account.budget.hold(INFLIGHT_BYTES, len(self.inflight))
        if delivery is None:
            return
        charge = account.charges.get(delivery)
        if charge is None:
            charge = Charge(account.budget, content_bytes(delivery))
            account.charges[delivery] = charge
            account.budget.used_bytes += charge.size_bytes
        self._hold(packet_id, charge)

    def free_content(self, packet_id: int, delivery: Delivery, node: NodeState) -> None:
        """PUBREC: the content is the client's, the identifier still in use."""
        account = node.inflight
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

    def free_place(self, packet_id: int, delivery: Delivery | None, node: NodeState) -> None:
        """The exchange is over, and out of `inflight`.

        `delivery` None: its content was freed before.
        """
        if delivery is not None:
            self.free_content(packet_id, delivery, node)
        node.inflight.budget.give_back(INFLIGHT_BYTES, len(self.inflight))

    def end_exchange(self, packet_id: int, delivery: Delivery | None, node: NodeState) -> None:
        """PUBACK, PUBCOMP or a PUBREC that refuses: the store need not keep the message either."""
        del self.inflight[packet_id]
        if delivery is None or self.charges:
            self.free_place(packet_id, delivery, node)
        else:
            payload_bytes = len(delivery.message.payload)
            budget = node.inflight.budget
            budget.used_bytes -= INFLIGHT_BYTES + payload_bytes + payload_bytes
            if not self.inflight:
                budget.holders_count -= 1
        membership = self.membership
        loan = membership.loans.pop(packet_id, None) if membership is not None else None
        if loan is not None:
            loan.lender.settle(loan.pos, loan.delivery, node)
        elif self.durable:
            assert self.positions is not None
            pos = self.positions.pop(packet_id)
            node.journal.note(Settle(self.client_id, pos, delivery))

    def end_plain(self, pubacks: bytes, node: NodeState) -> int:
        """End the exchanges that these PUBACKs begin with, while all are of plain messages.

        Returns how many bytes of them were; the others are for `end_exchange`.
        """
        if self.charges or self.membership is not None:
            return 0
        inflight, positions = self.inflight, self.positions
        settled: list[StoreOp] | None = None if positions is None else []
        freed_bytes = end = 0
        while end < len(pubacks):
            packet_id = pubacks[end + 2] << 8 | pubacks[end + 3]
            delivery = inflight.get(packet_id)
            if delivery is None or delivery.qos != 1:
                break
            del inflight[packet_id]
            freed_bytes += plain_bytes(len(delivery.message.payload))
            if settled is not None:
                assert positions is not None
                settled.append(Settle(self.client_id, positions.pop(packet_id), delivery))
            end += PUBACK_BYTES
        budget = node.inflight.budget
        budget.used_bytes -= freed_bytes
        if end and not inflight:
            budget.holders_count -= 1
        if settled:
            node.journal.note_all(settled)
        return end

    def _hold(self, packet_id: int, charge: Charge) -> None:
        charge.holders += 1
        if self.charges is None:
            self.charges = {}
        self.charges[packet_id] = charge

    def _inflight_bytes(self, enough_bytes: int) -> int:
        """Bytes in flight, those shared with others included; or more than `enough_bytes`."""
        charges = self.charges
        held_bytes = INFLIGHT_BYTES * len(self.inflight)
        for packet_id, delivery in self.inflight.items():
            if held_bytes > enough_bytes:
                break
            charge = charges.get(packet_id) if charges else None
            if charge is not None:
                held_bytes += charge.size_bytes
            elif delivery is not None:
                payload_bytes = len(delivery.message.payload)
                held_bytes += payload_bytes + payload_bytes
        return held_bytes
