"""SeparateLane: publishers and messages that wait for the store of applications.

While that store is unavailable, or its journal full, a client that publishes to an application
waits before its message is routed. So that journal is bounded, and nothing else waits. Packets that
wait here do not count against what all clients together may have in process: devices need that.
"""

from typing import Final, final

from flowguard.config import FlowSettings
from flowguard.flow import Pause
from flowguard.node.applications.apart import Apart
from flowguard.node.applications.divided_journal import DividedJournal
from flowguard.node.applications.lane import ApplicationLane
from flowguard.node.applications.owed import Owed
from flowguard.node.applications.staged import Staged
from flowguard.node.journal import Continuation, Journal
from flowguard.node.publish.deliveries import Admitted, Deliveries
from flowguard.node.publish.incoming import Incoming
from flowguard.node.publish.plans import Plan
from flowguard.records import Release, SessionRecord, Settle, StoreOp
from flowguard.session.counters import Counters
from flowguard.session.inbound.packets import Inbound
from flowguard.session.session import Session
from flowguard.stores import Store
from flowguard.types import Publish

AWAY_S: Final = 1.0
"""Time that a commit may take before publishers and new connections have to wait, seconds."""


def lane_of(journal: Journal, counters: Counters, flow: FlowSettings) -> ApplicationLane:
    if isinstance(journal, DividedJournal):
        return SeparateLane(journal, counters, flow)
    return ApplicationLane()


@final
class SeparateLane(ApplicationLane):
    """One per node with a store of applications."""

    def __init__(self, journal: DividedJournal, counters: Counters, flow: FlowSettings) -> None:
        super().__init__()
        self.is_separate = True
        self.ops_max, self.bytes_max = flow.journal_ops_max, flow.journal_bytes_max
        self.apart = Apart(journal, counters, self.bytes_max)
        self._owed = Owed(journal, self.apart, ops_max=self.ops_max, bytes_max=self.bytes_max)
        self.journal = journal.second
        self._sides = journal.names
        self.names = journal.names.names
        self._waiting: dict[Session, Inbound] = {}
        """Publishers that wait with a message."""
        self._away_since_s = 0.0

    # --- figures -----------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        return self.journal.depth

    @property
    def size_bytes(self) -> int:
        return self.journal.size_bytes

    @property
    def held_bytes(self) -> int:
        return self.journal.size_bytes + self.apart.in_process_bytes

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def away_s(self, now_s: float) -> float:
        return now_s - self._away_since_s if self.is_away else 0.0

    # --- publishers --------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self.is_away or self.apart.is_full

    def concerns(self, deliveries: Deliveries, inbound: Inbound, message: Publish) -> bool:
        if self.apart.has_line(inbound):
            return True
        plan, names = deliveries.plans.find(message.topic), self.names
        while plan.making is not None:
            plan.making.step()  # Not in between other work: all of it is asked at once.
        for group in (*plan.groups, *plan.own):
            if group.qos and any([each.client_id in names for each in group.sessions]):
                return True
        queues = deliveries.queues
        return any([queues.is_of_any(shared, names) for shared in plan.shared])

    def wait(self, inbound: Inbound) -> None:
        inbound.blocked = True
        self._waiting[inbound.session] = inbound

    def is_before(self, inbound: Inbound, pause: Pause) -> bool:
        if pause is Pause.WINDOW:
            return self.apart.has_line(inbound)
        return pause is Pause.QUEUE and inbound.session in self._waiting

    def delays(self, inbound: Inbound) -> bool:
        return self.is_away and self.apart.has_line(inbound)

    def left(self, session: Session) -> None:
        self._waiting.pop(session, None)

    # --- messages ----------------------------------------------------------------------------

    def takes(
        self,
        deliveries: Deliveries,
        incoming: Incoming,
        plan: Plan,
        admitted: list[Admitted],
        code: int,
    ) -> bool:
        if not self.apart.concerns(incoming.inbound, admitted):
            return False
        Staged(deliveries, self.apart, incoming, plan, admitted, code).begin()
        return True

    def hold(
        self, incoming: Incoming, ops: list[StoreOp], then: Continuation, now_s: float
    ) -> None:
        self.apart.count(incoming)
        self.apart.append(ops, incoming.publisher, then, now_s)

    def give_back(self, incoming: Incoming) -> None:
        self.apart.count(incoming, -1)

    def owe(
        self,
        deliveries: Deliveries,
        message: Publish,
        admitted: list[Admitted],
        ops: list[StoreOp],
        settle: Settle | None,
    ) -> Continuation | None:
        return self._owed.append(deliveries, message, self._owed.take(admitted), ops, settle)

    def hand_over(self, release: Release, ops: list[StoreOp]) -> Continuation | None:
        return self._owed.hand_over(release, ops)

    # --- time, restart -----------------------------------------------------------------------

    def turn(self, now_s: float) -> None:
        if self.is_away:
            self._look(now_s)
        if self._waiting and not self.is_closed:
            waiting, self._waiting = self._waiting, {}
            for inbound in waiting.values():
                inbound.go_on()

    def tick(self, now_s: float) -> None:
        self._look(now_s)
        self.journal.observe(now_s)
        self._sides.tidy(self.journal.done_number)

    def _look(self, now_s: float) -> None:
        """Decide by the age of its oldest work whether the store is unavailable."""
        journal = self.journal
        late_s = max(journal.committing_s(now_s), journal.waiting_s(now_s))
        if late_s > AWAY_S and not self.is_away:
            self._away_since_s = now_s - late_s
        self.is_away = late_s > AWAY_S

    def use_groups(self) -> None:
        self.apart.has_groups = True

    def recovered(self, record: SessionRecord) -> None:
        if record.is_application:
            self.names.add(record.client_id)

    def recover_owed(
        self, deliveries: Deliveries, record: SessionRecord, store: Store, now_s: float
    ) -> None:
        self._owed.recover(deliveries, record, store, now_s)
