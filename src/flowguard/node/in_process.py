"""InProcess: a PUBLISH that has been routed, and is answered when the store has it."""

from typing import TYPE_CHECKING, final

from flowguard.records import Append, Delivery, DropInbound, StoreOp
from flowguard.session.inbound import Inbound
from flowguard.session.owner import QueueOwner
from flowguard.types import Publish, ReasonCode

if TYPE_CHECKING:
    from flowguard.node.publishing import Router

Admitted = tuple[QueueOwner, Delivery]
"""Who gets a message, and has a place for it."""
Target = tuple[QueueOwner, int, Delivery]
"""The same, at which position; position 0: QoS 0, never queued."""


@final
class InProcess:
    """A QoS 1 or 2 PUBLISH between route and commit; `inbound` None: the node's own message."""

    __slots__ = (
        "_complete",
        "_cost",
        "_inbound",
        "_message",
        "_reason_code",
        "_router",
        "_since_s",
        "_size_bytes",
        "_targets",
    )

    def __init__(
        self,
        router: "Router",
        inbound: Inbound | None,
        message: Publish,
        targets: list[Target],
        reason_code: int,
        since_s: float,
        cost: int = 1,
        *,
        size_bytes: int | None = None,
        complete: bool = True,
    ) -> None:
        """`cost` and `size_bytes` are what its window counts; None: its payload."""
        self._router = router
        self._inbound = inbound
        self._message = message
        self._targets = targets
        self._reason_code = reason_code
        self._since_s = since_s
        """When it was decoded."""
        self._cost = cost
        self._size_bytes = len(message.payload) if size_bytes is None else size_bytes
        self._complete = complete
        """Of those before the targets nobody who keeps up went without it."""

    def go_on(self, now_s: float) -> bool:
        """`committed`, alone in its stretch."""
        self.committed(now_s)
        return False

    def committed(self, now_s: float) -> None:
        router, inbound, message = self._router, self._inbound, self._message
        complete = router.deliver_to(self._targets, now_s) and self._complete
        if inbound is None:
            return
        if not complete:
            self._refuse(inbound, now_s)
        inbound.published(message, self._reason_code)
        inbound.settle(self._cost, self._size_bytes)
        router.acknowledgements.came(self._since_s, now_s)

    def _refuse(self, inbound: Inbound, now_s: float) -> None:
        """Tell its publisher, if it can be told; then the store need not know the identifier.

        One that cannot be told has no answer where a session was lost, and sends it again.
        """
        session, message = inbound.session, self._message
        reason_code = self._router.answer(session, message, self._reason_code)
        if reason_code == self._reason_code:
            if not self._router.is_fenced:
                return
            session.cut_off(now_s)
            reason_code = ReasonCode.UNSPECIFIED_ERROR
        self._reason_code = reason_code
        if message.qos == 2 and session.durable and not session.ended:
            self._router.note(DropInbound(session.client_id, message.packet_id))


def placed(admitted: list[Admitted]) -> list[Target]:
    """Positions are taken together: making room for one may have published dead letters to another.

    A store takes them in ascending order only.
    """
    return [
        (owner, owner.take_position() if delivery.qos else 0, delivery)
        for owner, delivery in admitted
    ]


def appends(targets: list[Target]) -> list[StoreOp]:
    return [
        Append(owner.client_id, pos, delivery)
        for owner, pos, delivery in targets
        if pos and owner.durable
    ]
