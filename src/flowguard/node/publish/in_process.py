"""InProcess: a PUBLISH that has been routed, and is answered when the store has committed it."""

from typing import final

from flowguard.node.journal import Continuation
from flowguard.node.peers.relay import Relay
from flowguard.node.publish.deliveries import Deliveries, Target
from flowguard.node.publish.incoming import Incoming
from flowguard.records import Append, DropInbound, StoreOp
from flowguard.session.inbound.packets import Inbound
from flowguard.types import ReasonCode


@final
class InProcess:
    """A QoS 1 or 2 PUBLISH between route and commit."""

    __slots__ = (
        "_complete",
        "_deliveries",
        "_incoming",
        "_reason_code",
        "_relay",
        "_targets",
        "_then",
        "commits_left",
        "is_in_order",
    )

    def __init__(
        self,
        deliveries: Deliveries,
        incoming: Incoming,
        targets: list[Target],
        reason_code: int,
        *,
        then: Continuation | None = None,
        relay: Relay | None = None,
    ) -> None:
        self._deliveries = deliveries
        self._incoming = incoming
        self._targets = targets
        self._reason_code = reason_code
        self._complete = True
        """False if a client that keeps up missed it among earlier targets."""
        self._then = then
        """A continuation that is called when the targets have the message."""
        self._relay = relay
        self.commits_left = 1 if relay is None else 1 + relay.commits_count
        """Number of commits that its answer waits for: that of this node, and those of peers."""
        self.is_in_order = False
        """True if its answer must not leave before those of its client's messages before it."""

    def enter(self, ops: list[StoreOp], now_s: float, heavy_count: int) -> None:
        """Append the operations to the journal.

        `heavy_count` is the number of deliveries if they cost more than one unit, else 0.
        """
        self.begin()
        journal = self._deliveries.journal
        if heavy_count:
            journal.append_heavy(ops, self.committed, heavy_count, now_s)
        else:
            journal.append(ops, self.committed, now_s)

    def enter_peers(self, now_s: float) -> None:
        """Forward a message that only peers have to commit."""
        self.begin()
        self.committed(now_s)

    def begin(self) -> None:
        """Forward it to peers, and keep its answer in the order of its client's messages."""
        peers = self._deliveries.peers
        if self._relay is not None or peers.ordered_answers.orders:
            inbound = self._incoming.inbound if self._incoming.message.qos == 1 else None
            peers.begin(inbound, self, self._relay)

    def committed(self, now_s: float) -> None:
        deliveries, inbound = self._deliveries, self._incoming.inbound
        complete = deliveries.deliver_to(self._targets, now_s) and self._complete
        if self._then is not None:
            self._then(now_s)
        if self._relay is not None:
            self._relay.committed()
            deliveries.peers.wake()
        if inbound is not None and not complete:
            self._refuse(inbound, now_s)
        self.part_done(now_s)

    def committed_last(self, targets: list[Target], complete: bool, now_s: float) -> None:
        """Deliver it to the last `targets`; all others have it.

        `complete` is False if a client that keeps up missed it.
        """
        self._targets, self._complete = targets, complete
        self.committed(now_s)

    def part_done(self, now_s: float) -> None:
        """Count one of the commits that its answer waits for; answer it after the last one."""
        self.commits_left -= 1
        inbound = self._incoming.inbound
        if self.commits_left or inbound is None:
            return
        if self.is_in_order:
            self._deliveries.peers.ordered_answers.release(inbound, now_s)
        else:
            self.answer(inbound, now_s)

    def answer(self, inbound: Inbound, now_s: float) -> None:
        """Acknowledge it to its publisher."""
        incoming = self._incoming
        inbound.published(incoming.message, self._reason_code)
        inbound.window.worked(1 + len(self._targets))
        incoming.settle()
        self._deliveries.acknowledgements.came(incoming.since_s, now_s)

    def _refuse(self, inbound: Inbound, now_s: float) -> None:
        """Choose a reason code of failure, if the publisher's protocol has one.

        The store then drops the packet identifier. A publisher without such a code is disconnected
        if a session was lost. It gets no answer and sends the message again.
        """
        session, message = inbound.session, self._incoming.message
        reason_code = self._deliveries.answer(session, message, self._reason_code)
        if reason_code == self._reason_code:
            if not self._deliveries.node.fenced:
                return
            session.cut_off(now_s)
            reason_code = ReasonCode.UNSPECIFIED_ERROR
        self._reason_code = reason_code
        if message.qos == 2 and session.durable and not session.ended:
            self._deliveries.journal.note(DropInbound(session.client_id, message.packet_id))


def appends(targets: list[Target]) -> list[StoreOp]:
    return [
        Append(owner.client_id, pos, delivery)
        for owner, pos, delivery in targets
        if pos and owner.durable
    ]
