"""InProcess: a PUBLISH that has been routed, and is answered when the store has it."""

from typing import TYPE_CHECKING, final

from flowguard.node.applications.apart import Admitted, Apart
from flowguard.node.journal import Continuation, Journal
from flowguard.node.publish.plans import Plan
from flowguard.records import Append, Delivery, DropInbound, PutInbound, StoreOp
from flowguard.session.inbound import Inbound
from flowguard.session.owner import MessageSink
from flowguard.types import Publish, ReasonCode

if TYPE_CHECKING:
    from flowguard.node.publish.publishing import Router

Target = tuple[MessageSink, int, Delivery]
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
        "_then",
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
        then: Continuation | None = None,
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
        self._then = then
        """What is done when these have it."""

    def enter(self, journal: Journal, ops: list[StoreOp], now_s: float, heavy_count: int) -> None:
        """Into the journal with these; `heavy_count`: deliveries, where these weigh anything."""
        if heavy_count:
            journal.append_heavy(ops, self.committed, heavy_count, now_s)
        else:
            journal.append(ops, self.committed, now_s)

    def committed(self, now_s: float) -> None:
        router, inbound, message = self._router, self._inbound, self._message
        complete = router.deliver_to(self._targets, now_s) and self._complete
        if self._then is not None:
            self._then(now_s)
        if inbound is None:
            return
        if not complete:
            self._refuse(inbound, now_s)
        inbound.published(message, self._reason_code)
        inbound.window.worked(1 + len(self._targets))
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


@final
class Staged:
    """A message for applications, or behind one that is: they have it before all others do."""

    __slots__ = (
        "_admitted",
        "_apart",
        "_code",
        "_cost",
        "_heavy_count",
        "_inbound",
        "_journal",
        "_logs",
        "_message",
        "_router",
        "_since_s",
        "_size_bytes",
        "_targets",
    )

    def __init__(
        self,
        router: "Router",
        journal: Journal,
        apart: Apart,
        inbound: Inbound,
        plan: Plan,
        message: Publish,
        admitted: list[Admitted],
        code: int,
    ) -> None:
        """`admitted`: who gets it."""
        self._router = router
        self._journal = journal
        self._apart = apart
        self._inbound = inbound
        self._heavy_count = plan.heavy_count
        self._logs = plan.logs and message.qos > 0
        self._message = message
        self._admitted = admitted
        self._targets: list[Target] = []
        """Applications that have it in the store."""
        self._code = code
        self._size_bytes = len(message.payload)
        self._cost = router.cost.of(plan.deliveries, self._size_bytes, plan.ops)
        self._since_s = 0.0

    def begin(self, now_s: float) -> None:
        """It has been admitted."""
        self._since_s = now_s
        self._router.log.wide_count += self._logs
        self._apart.enter(self._inbound, self)
        self._inbound.window.admit(self._cost, self._size_bytes)
        self._apart.count(self._inbound.window, self._cost, self._size_bytes)
        self._store(now_s)

    def _store(self, now_s: float) -> None:
        names = self._apart.names
        here, rest = list[Admitted](), list[Admitted]()
        for each in self._admitted:
            owner, delivery = each
            if not owner.ended:
                (here if delivery.qos and owner.client_id in names else rest).append(each)
        self._admitted = rest
        targets = placed(here)
        self._targets += targets
        self._apart.append(appends(targets), self._inbound.session, self._stored, now_s)

    def _stored(self, now_s: float) -> None:
        """Applications have it: now everybody else, unless somebody became one meanwhile."""
        apart, inbound = self._apart, self._inbound
        if not apart.is_first(inbound, self) or apart.concerns(None, self._admitted):
            self._store(now_s)
            return
        apart.leave(inbound)
        apart.count(inbound.window, -self._cost, -self._size_bytes)
        self._enter(now_s)

    def _enter(self, now_s: float) -> None:
        """Give it positions and the first journal, as others get them at once."""
        inbound, message, logs = self._inbound, self._message, self._logs
        admitted: list[Admitted] = []
        for owner, delivery in self._admitted:
            if owner.ended:
                continue
            if logs and delivery.qos and owner.reads_log:  # It will find it in the log.
                owner.behind = True
                owner.queue.forget(delivery.size_bytes)
            else:
                admitted.append((owner, delivery))
        targets = placed(admitted)
        ops = appends(targets)
        if logs:
            self._router.log.wide_count -= 1
            ops.append(self._router.log.append(inbound.session.client_id, message, now_s))
        session = inbound.session
        is_taken = self._code < ReasonCode.UNSPECIFIED_ERROR
        if message.qos == 2 and session.durable and not session.ended and is_taken:
            ops.append(PutInbound(session.client_id, message.packet_id))
        self._targets += targets
        pending = InProcess(
            self._router,
            inbound,
            message,
            self._targets,
            self._code,
            self._since_s,
            self._cost,
        )
        pending.enter(self._journal, ops, now_s, self._heavy_count)
