"""Staged: a PUBLISH that applications get before all others."""

from typing import final

from flowguard.node.applications.apart import Apart
from flowguard.node.publish.deliveries import Admitted, Deliveries, Target, placed
from flowguard.node.publish.in_process import InProcess, appends
from flowguard.node.publish.incoming import Incoming
from flowguard.node.publish.plans import Plan
from flowguard.records import PutInbound
from flowguard.types import ReasonCode


@final
class Staged:
    """A message for applications, or one that follows such a message of its publisher."""

    __slots__ = (
        "_admitted",
        "_apart",
        "_code",
        "_deliveries",
        "_heavy_count",
        "_inbound",
        "_incoming",
        "_logs",
        "_targets",
    )

    def __init__(
        self,
        deliveries: Deliveries,
        apart: Apart,
        incoming: Incoming,
        plan: Plan,
        admitted: list[Admitted],
        code: int,
    ) -> None:
        """`admitted`: the targets, which have a place for it."""
        self._deliveries = deliveries
        self._apart = apart
        assert incoming.inbound is not None
        self._incoming = incoming
        self._inbound = incoming.inbound
        self._heavy_count = plan.heavy_count
        self._logs = plan.logs and incoming.message.qos > 0
        self._admitted = admitted
        self._targets: list[Target] = []
        """Applications that have it in the store."""
        self._code = code

    def begin(self) -> None:
        """Count the message in its publisher's window, and store it for applications."""
        incoming = self._incoming
        self._deliveries.log.wide_count += self._logs
        self._apart.enter(self._inbound, self)
        self._inbound.window.admit(incoming.cost, incoming.size_bytes)
        self._apart.count(incoming)
        self._store(incoming.since_s)

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
        self._apart.append(appends(targets), self._incoming.publisher, self._stored, now_s)

    def _stored(self, now_s: float) -> None:
        """Go on with devices, unless one of them became an application during the commit."""
        apart, inbound = self._apart, self._inbound
        if not apart.is_first(inbound, self) or apart.concerns(None, self._admitted):
            self._store(now_s)
            return
        apart.leave(inbound)
        apart.count(self._incoming, -1)
        self._enter(now_s)

    def _enter(self, now_s: float) -> None:
        """Take positions for devices, and enter the journal of the node."""
        inbound, message, logs = self._inbound, self._incoming.message, self._logs
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
        session, deliveries = inbound.session, self._deliveries
        if logs:
            deliveries.log.wide_count -= 1
            ops.append(deliveries.log.append(session.client_id, message, now_s))
        is_taken = self._code < ReasonCode.UNSPECIFIED_ERROR
        if message.qos == 2 and session.durable and not session.ended and is_taken:
            ops.append(PutInbound(session.client_id, message.packet_id))
        self._targets += targets
        pending = InProcess(deliveries, self._incoming, self._targets, self._code)
        pending.enter(ops, now_s, self._heavy_count)
