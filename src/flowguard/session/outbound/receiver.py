"""Receiver: the parts of a session that its connection needs ([MQTT 5.0, 4.3]).

These are a queue, messages in flight, subscriptions, rights and an account of its memory. Only
`session` has the connection.
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
        """Messages from the queues of shared subscriptions, or None before the first one."""
        self.backlog_end = 1
        """Messages before this position waited for the client to reconnect."""
        self.account = StateAccount()
        self.subscriptions = Filters()
        self.rights: Rights | None = None
        """Rights, or None without rules or before the first CONNECT since the broker's start."""
        self.rights_pos = 1
        """Messages before this position were routed under other rights, and are checked again."""

    def store_retained(
        self, page: list[Delivery], sends: RetainedSends, node: NodeState, now_s: float
    ) -> None:
        """Store admitted retained messages and the progress of their filters, then send them.

        Until then `sends` is storing.
        """
        raise NotImplementedError

    @property
    def window_max(self) -> int:
        """Maximum work in process by its roles, cost units."""
        quota = None if self.rights is None else self.rights.quotas.window_max
        return UNBOUNDED if quota is None else quota

    def may_receive(self, topic: str) -> bool:
        """Return True if its rights allow the topic, or are not known before it connects."""
        rights = self.rights
        return rights is None or rights.may_receive(topic)

    @property
    def positions(self) -> dict[int, int] | None:
        return self.inflight.positions

    def take_position(self, count: int = 1) -> int:
        """Take positions as every owner; a single one is skipped if its identifier is in flight.

        A free one exists in each QoS, because not all identifiers of a QoS can be in flight.
        """
        inflight, pos = self.inflight.messages, self.next_pos
        while count == 1 and (packet_id_of(pos, 1) in inflight or packet_id_of(pos, 2) in inflight):
            pos += 1
        self.next_pos = pos + count
        return pos


def membership_of(member: Receiver) -> Membership:
    """Return the membership of a session; make it if it has none."""
    if member.membership is None:
        member.membership = Membership()
    return member.membership


def end_exchange(
    member: Receiver, packet_id: int, delivery: Delivery | None, node: NodeState
) -> None:
    """End an exchange after PUBACK, PUBCOMP or a rejecting PUBREC, in the store as well."""
    inflight, membership = member.inflight, member.membership
    inflight.end(packet_id, delivery, node.inflight)
    loan = membership.loans.pop(packet_id, None) if membership is not None else None
    if loan is not None:
        settle_message(loan.lender, loan.pos, loan.delivery, node)
    elif inflight.positions is not None:
        pos = inflight.positions.pop(packet_id)
        node.journal.note(Settle(member.client_id, pos, delivery))
