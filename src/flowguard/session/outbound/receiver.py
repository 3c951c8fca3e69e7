"""Receiver: a session as the connection of its client sees it ([MQTT 5.0, 4.3]).

It has parts: a queue, messages in flight, subscriptions, rights, an account of its memory. It knows
no connection; `session` does.
"""

from flowguard.access.rights import Rights
from flowguard.flow.windows.window import UNBOUNDED
from flowguard.records import Delivery, Settle, packet_id_of
from flowguard.session.filters import Filters
from flowguard.session.membership import Membership
from flowguard.session.node_state import NodeState
from flowguard.session.outbound.backlog import Backlog
from flowguard.session.outbound.inflight import InflightExchanges
from flowguard.session.outbound.retained_sends import RetainedSends
from flowguard.session.owner import MessageSink, settle_message
from flowguard.session.state_bytes import StateAccount


class Receiver(MessageSink):
    """The parts of a `Session` that its connection uses."""

    __slots__ = (
        "account",
        "backlog_end",
        "inflight",
        "membership",
        "rights",
        "rights_pos",
        "subscriptions",
    )

    def __init__(self, client_id: str, queue: Backlog, *, durable: bool) -> None:
        super().__init__(client_id, queue, durable=durable)
        self.inflight = InflightExchanges(durable=durable)
        self.membership: Membership | None = None
        """What it has to do with the queues of shared subscriptions; None: nothing yet."""
        self.backlog_end = 1
        """Messages before this position waited for the client to come back."""
        self.account = StateAccount()
        self.subscriptions = Filters()
        self.rights: Rights | None = None
        """None: there are no rules, or the client has not been here since the broker's start."""
        self.rights_pos = 1
        """Messages before this position were routed under other rights: these are asked again."""

    def store_retained(
        self, page: list[Delivery], sends: RetainedSends, node: NodeState, now_s: float
    ) -> None:
        """Take retained messages that were admitted: sent when the store has them, and knows how
        far those of each filter have come. Until then `sends` is storing."""
        raise NotImplementedError

    @property
    def window_max(self) -> int:
        """Cost units that its roles let it have in process."""
        quota = None if self.rights is None else self.rights.quotas.window_max
        return UNBOUNDED if quota is None else quota

    def may_receive(self, topic: str) -> bool:
        """Whether its rights let it; who was not here since the start is asked when it comes."""
        rights = self.rights
        return rights is None or rights.may_receive(topic)

    @property
    def positions(self) -> dict[int, int] | None:
        return self.inflight.positions

    def take_position(self, count: int = 1) -> int:
        """As for every owner; a single position is skipped if its identifier is in flight.

        A free one exists in each QoS, because not all identifiers of a QoS can be in flight.
        """
        inflight, pos = self.inflight.messages, self.next_pos
        while count == 1 and (packet_id_of(pos, 1) in inflight or packet_id_of(pos, 2) in inflight):
            pos += 1
        self.next_pos = pos + count
        return pos


def membership_of(member: Receiver) -> Membership:
    """Its membership, from now on."""
    if member.membership is None:
        member.membership = Membership()
    return member.membership


def end_exchange(
    member: Receiver, packet_id: int, delivery: Delivery | None, node: NodeState
) -> None:
    """PUBACK, PUBCOMP or a PUBREC that rejects: the store need not keep the message either."""
    inflight, membership = member.inflight, member.membership
    inflight.end(packet_id, delivery, node.inflight)
    loan = membership.loans.pop(packet_id, None) if membership is not None else None
    if loan is not None:
        settle_message(loan.lender, loan.pos, loan.delivery, node)
    elif inflight.positions is not None:
        pos = inflight.positions.pop(packet_id)
        node.journal.note(Settle(member.client_id, pos, delivery))
