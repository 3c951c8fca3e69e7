"""Membership: messages that a session has from the queues of shared subscriptions.

A message of a group waits in the group's own queue (`flowguard.node.shared.shared_queue`). At QoS 1
it is lent to a member: in the store it stays in the group's queue until PUBACK, and only the
membership records the loan. So the end of a connection returns it without a commit, and a crash
returns all of them. At QoS 2 it moves to the member's own queue before it is sent.
"""

from dataclasses import dataclass
from typing import final

from flowguard.records import QOS_1_IDS, Delivery
from flowguard.session.node_state import NodeState
from flowguard.session.outbound.inflight import InflightExchanges
from flowguard.session.owner import MessageSink


class Lender(MessageSink):
    """Interface of a group's queue for its members."""

    __slots__ = ()

    def wake(self, member: MessageSink, now_s: float) -> None:
        """Give messages to a member that may have capacity again."""
        raise NotImplementedError

    def take_back(self, loan: "Loan") -> None:
        """Take back a message of a member that has left; `pump` follows."""
        raise NotImplementedError


@dataclass(init=False, slots=True, eq=False)
class Loan:
    """A QoS 1 message in flight to a member; `pos` and `delivery` are those of the group."""

    lender: Lender
    pos: int
    delivery: Delivery

    def __init__(self, lender: Lender, pos: int, delivery: Delivery) -> None:
        self.lender = lender
        self.pos = pos
        self.delivery = delivery


@final
class Membership:
    """The membership of one session, made when a group needs it first."""

    __slots__ = ("_searched_id", "asked", "loans", "moving_count")

    def __init__(self) -> None:
        self.asked: dict[Lender, None] = {}
        """Groups that found no capacity, in turn; `Outbound.pump` wakes them."""
        self.loans: dict[int, Loan] = {}
        """Loans by packet identifier."""
        self.moving_count = 0
        """Number of QoS 2 messages on their way into the session's own queue."""
        self._searched_id = QOS_1_IDS
        """Result of the last search for an identifier."""

    def unused_id(self, wanted_id: int, inflight: dict[int, Delivery | None]) -> int:
        """Return this identifier, or else the next lower one that is free. O(1) amortised.

        Many groups want the same one, so a search continues at the end of the last one.
        """
        if wanted_id not in inflight:
            return wanted_id
        packet_id = self._searched_id
        while packet_id in inflight:
            packet_id = packet_id - 1 or QOS_1_IDS
        self._searched_id = packet_id
        return packet_id

    def leave(self, inflight: InflightExchanges, node: NodeState, now_s: float) -> None:
        """Return loans to their groups at the end of the connection.

        A loan of a group without members stays in flight: it must still be delivered
        ([MQTT-3.10.4-3]), and no other member can get it.
        """
        self.asked.clear()
        lenders: dict[Lender, None] = {}
        for packet_id, loan in list(self.loans.items()):
            if not loan.lender.ended:
                del self.loans[packet_id]
                delivery = inflight.messages.pop(packet_id)
                inflight.free_place(packet_id, delivery, node.inflight)
                loan.lender.take_back(loan)
                lenders[loan.lender] = None
        for lender in lenders:
            lender.pump(now_s)
