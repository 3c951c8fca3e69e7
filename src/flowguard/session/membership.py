"""Membership: what a session has of the queues of shared subscriptions, and owes them.

A message of a group waits in the group's own queue (`flowguard.node.shared.shared_queue`). At QoS 1
it is lent to a member: in the store it stays where it is until PUBACK, and who lends it is
remembered here alone. So a connection that ends gives it back with a word, and a crash gives back
all of them. At QoS 2 it moves to the member's own queue before it is sent, and is lent to nobody.
"""

from dataclasses import dataclass
from typing import final

from flowguard.records import QOS_1_IDS, Delivery
from flowguard.session.node_state import NodeState
from flowguard.session.outbound.inflight import InflightExchanges
from flowguard.session.owner import MessageSink


class Lender(MessageSink):
    """The queue of a group, seen from one of its members."""

    __slots__ = ()

    def wake(self, member: MessageSink, now_s: float) -> None:
        """The member may have room again."""
        raise NotImplementedError

    def take_back(self, loan: "Loan") -> None:
        """The member is gone; `pump` follows."""
        raise NotImplementedError


@dataclass(init=False, slots=True, eq=False)
class Loan:
    """A QoS 1 message in flight to a member; `pos` and `delivery` as the group has it."""

    lender: Lender
    pos: int
    delivery: Delivery

    def __init__(self, lender: Lender, pos: int, delivery: Delivery) -> None:
        self.lender = lender
        self.pos = pos
        self.delivery = delivery


@final
class Membership:
    """One session's; made when a group asks for it first."""

    __slots__ = ("_searched_id", "asked", "loans", "moving_count")

    def __init__(self) -> None:
        self.asked: dict[Lender, None] = {}
        """Groups that found no room, in turn: `Outbound.pump` tells them when there is some."""
        self.loans: dict[int, Loan] = {}
        """By packet identifier."""
        self.moving_count = 0
        """QoS 2 messages on their way into the session's own queue."""
        self._searched_id = QOS_1_IDS
        """Found when an identifier was searched for last."""

    def unused_id(self, wanted_id: int, inflight: dict[int, Delivery | None]) -> int:
        """This identifier, or else the next one below that is free. O(1) amortised.

        Many groups want the same one, so a search goes on where the last one ended.
        """
        if wanted_id not in inflight:
            return wanted_id
        packet_id = self._searched_id
        while packet_id in inflight:
            packet_id = packet_id - 1 or QOS_1_IDS
        self._searched_id = packet_id
        return packet_id

    def leave(self, inflight: InflightExchanges, node: NodeState, now_s: float) -> None:
        """The connection is over: what is lent goes back, for others.

        What a group without members lent stays in flight: it must still be delivered
        ([MQTT-3.10.4-3]), and there is nobody else.
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
