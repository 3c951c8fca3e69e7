"""Membership: what a session has of the queues of shared subscriptions, and owes them.

A message of a group waits in the group's own queue (`flowguard.node.shared_queue`) and is lent to
the member that is to have it. At QoS 1 it stays where it is in the store until PUBACK: whose
connection ends gives it back with a word, and a crash gives back all of them. At QoS 2 it has to be
the member's own before it is sent ([MQTT-4.8.2-4]): the loan ends when the store says so.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from flowguard.records import QOS_1_IDS, Delivery
from flowguard.session.owner import QueueOwner

if TYPE_CHECKING:
    from flowguard.session.outbound import Outbound
    from flowguard.session.session import Session


class Lender(QueueOwner):
    """The queue of a group, seen from one of its members."""

    __slots__ = ()

    def wake(self, member: "Session", now_s: float) -> None:
        """The member may have room again."""
        raise NotImplementedError

    def take_back(self, member: "Session", packet_id: int, loan: "Loan", now_s: float) -> None:
        """The member is gone; `pump` follows."""
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class Loan:
    """A message in flight to a member that is still the group's; `delivery` as it was there.

    `moves`: the store is being told that it is the member's own now; it is sent after that.
    """

    lender: Lender
    pos: int
    delivery: Delivery
    moves: bool


@final
class Membership:
    """One session's; made when a group asks for it first."""

    __slots__ = ("_packet_id", "asked", "loans")

    def __init__(self) -> None:
        self.asked: dict[Lender, None] = {}
        """Groups that found no room, in turn: `Outbound.pump` tells them when there is some."""
        self.loans: dict[int, Loan] = {}
        """By packet identifier."""
        self._packet_id = 0

    def unused_id(self, inflight: dict[int, Delivery | None]) -> int:
        """A packet identifier for QoS 1; from above, where positions come late."""
        while True:
            self._packet_id = self._packet_id - 1 if self._packet_id > 1 else QOS_1_IDS
            if self._packet_id not in inflight:
                return self._packet_id

    def tell(self, member: "Session", outbound: "Outbound", now_s: float) -> None:
        """There may be room: whoever asked is told, until there is none."""
        asked = self.asked
        while asked and has_room(member, outbound):
            lender = next(iter(asked))
            del asked[lender]
            lender.wake(member, now_s)
        if asked:
            outbound.has_more = True

    def leave(self, member: "Session", now_s: float) -> None:
        """The connection is over: what is lent goes back, for others.

        What a group without members lent stays in flight: it must still be delivered
        ([MQTT-3.10.4-3]), and there is nobody else.
        """
        self.asked.clear()
        lenders: dict[Lender, None] = {}
        for packet_id, loan in list(self.loans.items()):
            if not loan.lender.ended:
                del self.loans[packet_id]
                loan.lender.take_back(member, packet_id, loan, now_s)
                lenders[loan.lender] = None
        for lender in lenders:
            lender.pump(now_s)


def has_room(member: "Session", outbound: "Outbound") -> bool:
    """Whether a message of a group could be sent now, with none of the client's own before it."""
    return not outbound.has_more and outbound.is_open(member)


def membership_of(session: "Session") -> Membership:
    """Its membership, from now on."""
    if session.membership is None:
        session.membership = Membership()
    return session.membership
