"""The part of this broker in the queue of a shared subscription of several brokers.

A published message does not wait here: the store chooses the broker that delivers it, which may be
this one. So waiting messages have come from the store (`came`), with positions that address them
there. The store may take them back (`gone`), except those that a member has. Everything else is as
in any group.
"""

from typing import Final, final

from flowguard.flow import Budget, FairBudget
from flowguard.node.journal import Journal
from flowguard.node.publish.plans import Shared
from flowguard.node.shared.shared_queue import HandOver, SharedQueue
from flowguard.records import Delivery, SinkKind
from flowguard.session.membership import Loan
from flowguard.session.node_state import UNKNOWN_DISK_BYTES, NodeState
from flowguard.session.outbound.backlog import Backlog
from flowguard.session.outbound.memory_backlog import Waiting
from flowguard.session.owner import UNBOUNDED
from flowguard.session.session import Session
from flowguard.stores.group_feed import Trouble

ALL_WAITED: Final = UNBOUNDED
"""Value of `_backlog_end` if all messages are a backlog, which the window limits."""


@final
class SpreadQueue(SharedQueue):
    __slots__ = ("_budget", "_held", "_is_paused", "_returned", "is_wanted", "troubles")

    def __init__(
        self,
        filter: str,
        group: Shared,
        node: NodeState,
        journal: Journal,
        hand_over: HandOver,
        budget: Budget,
    ) -> None:
        """`filter` has `$share/`; `budget` counts the messages of all such groups in memory."""
        queue = Backlog(UNBOUNDED, UNBOUNDED, FairBudget(UNKNOWN_DISK_BYTES))
        super().__init__(filter, queue, group, node, journal, hand_over)
        self._budget = budget
        self._held: dict[int, Delivery] = {}
        """Messages in memory by position; they wait, or a member has them."""
        self._returned: list[Waiting] = []
        """Messages that members gave back."""
        self._is_paused = False
        self.is_wanted = False
        """True if a member is connected, as last reported to the store."""
        self.troubles: dict[Trouble, str] = {}
        """Active faults of the group, with their causes."""

    @property
    def kind(self) -> SinkKind:
        return SinkKind.SPREAD

    @property
    def has_connected(self) -> bool:
        return any(member.outbound is not None for member, _ in self._group.members())

    def offer(self, pos: int, delivery: Delivery, node: NodeState, now_s: float) -> bool:
        """Forget a message that is in the store, which delivers it to a broker (`came`)."""
        if not self.ended:
            self.queue.forget(delivery.size_bytes)
        return True

    @property
    def held_count(self) -> int:
        """Number of messages in memory that are not settled."""
        return len(self._held)

    @property
    def is_paused(self) -> bool:
        """True while the store decides which broker delivers which messages."""
        return self._is_paused

    def end(self) -> None:
        super().end()
        for pos in list(self._held):
            self._drop(pos)

    def welcome(self, member: Session) -> None:
        backlog_end = self._backlog_end
        super().welcome(member)
        self._backlog_end = backlog_end

    # --- from and to the store ---------------------------------------------------------------

    def came(self, messages: list[tuple[int, Delivery]], now_s: float, *, is_replay: bool) -> None:
        """Add messages that this broker has to deliver."""
        self._backlog_end = ALL_WAITED if is_replay else 1
        for pos, delivery in messages:
            self._drop(pos)
            self._held[pos] = delivery
            self._budget.used_bytes += delivery.size_bytes
            self._wait(pos, delivery)
        self.pump(now_s)

    def gone(self, positions: list[int]) -> None:
        """Remove messages that other brokers deliver; a member keeps those that it has."""
        for pos in positions:
            self._drop(pos)
        self._sort([each for each in self._waiting() if each[0] in self._held])

    def pause(self, is_paused: bool, now_s: float) -> None:
        """Pause or continue the delivery to members."""
        self._is_paused = is_paused
        self.pump(now_s)

    def _drop(self, pos: int) -> None:
        """Remove a message from memory."""
        delivery = self._held.pop(pos, None)
        if delivery is not None:
            self._budget.give_back(delivery.size_bytes)

    def _wait(self, pos: int, delivery: Delivery) -> None:
        size_bytes = delivery.size_bytes
        self.queue.promise(size_bytes)
        self.queue.put(pos, delivery, size_bytes, connected=True)

    def _waiting(self) -> list[Waiting]:
        """Take and return all messages that wait."""
        found, self._returned = self._returned, []
        while (waiting := self.queue.take()) is not None:
            found.append(waiting)
        return found

    def _sort(self, waiting: list[Waiting]) -> None:
        """Queue messages by position, which keeps the order of partitions and publishers."""
        for pos, delivery, _ in sorted(waiting, key=_position):
            self._wait(pos, delivery)

    # --- to members --------------------------------------------------------------------------

    def pump(self, now_s: float) -> None:
        if self._is_paused or self.ended:
            return
        if self._returned:
            self._sort(self._waiting())
        super().pump(now_s)

    def take_back(self, loan: Loan) -> None:
        # Except messages that `gone` removed, or that came again since.
        if self._held.get(loan.pos) is loan.delivery:
            self._returned.append((loan.pos, loan.delivery, loan.delivery.size_bytes))

    def settled(self, pos: int) -> None:
        self._drop(pos)


def _position(waiting: Waiting) -> int:
    return waiting[0]
