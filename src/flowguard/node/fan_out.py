"""FanOut: a PUBLISH for more subscribers than one stretch of the loop takes, piece by piece.

Meanwhile it has its publisher's window for itself, so its place among that client's packets is
kept. What must be durable goes to the store in one batch all the same: first everybody who has room
is found, piece by piece; then all get their positions and go into the journal; after the commit
they are given the message, piece by piece again, before anybody who waited for a later commit.
"""

from typing import TYPE_CHECKING, Final, final

from flowguard.node.in_process import Admitted
from flowguard.node.plans import Plan, cut
from flowguard.records import Settle
from flowguard.session.chores import Chore
from flowguard.session.inbound import Inbound
from flowguard.types import Publish, ReasonCode

if TYPE_CHECKING:
    from flowguard.node.publishing import Router


UNSPECIFIED_ERROR: Final = ReasonCode.UNSPECIFIED_ERROR


@final
class FanOut(Chore):
    """One message; `inbound` None: it is the node's own, and is always queued."""

    __slots__ = (
        "_pieces",
        "_router",
        "admitted",
        "complete",
        "cost",
        "inbound",
        "is_queued",
        "message",
        "plan",
        "settle",
        "since_s",
    )

    def __init__(
        self,
        router: "Router",
        inbound: Inbound | None,
        plan: Plan,
        message: Publish,
        since_s: float,
        *,
        cost: int = 1,
        is_queued: bool = True,
        settle: Settle | None = None,
    ) -> None:
        self._router = router
        self._pieces = cut(plan)
        self.is_queued = is_queued
        """It goes through the journal; else it is given to everybody at once."""
        self.inbound = inbound
        self.plan = plan
        self.message = message
        self.since_s = since_s
        """When it was decoded."""
        self.cost = cost
        self.settle = settle
        """What becomes durable with it: it is published instead of this one."""
        self.admitted: list[Admitted] = []
        """Who gets it, and has a place for it."""
        self.complete = True
        """Nobody who keeps up goes without it."""

    def step(self, now_s: float) -> bool:
        router, message = self._router, self.message
        piece = next(self._pieces, None)
        session = None if self.inbound is None else self.inbound.session
        if piece is None:
            if self.is_queued:
                router.queue_fan_out(self, now_s)
            elif self.inbound is not None:
                router.end_fan_out(self, self.inbound, now_s)
            return False
        if self.is_queued or session is None:
            self.complete &= router.admit(self.admitted, piece, message, session, now_s)
        elif message.qos:
            code = router.deliver_now(piece, message, session, now_s)
            self.complete &= code < UNSPECIFIED_ERROR
        else:
            router.deliver_qos_0(piece, message, session, now_s)
        return True

    def failed(self, error: Exception, now_s: float) -> bool:
        if self.inbound is None:
            return False
        self._router.abandon_fan_out(self, self.inbound)
        self.inbound.failed(error, now_s)
        return True
