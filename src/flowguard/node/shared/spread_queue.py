"""The queue of a shared subscription that several brokers have together, as far as it is here.

What is published does not wait here: the store gives it to whichever broker is to hand it out, and
that may be this one. So what waits has come from there (`came`), in positions that say where it is,
and may be taken away again (`gone`), but for what a member has. All else is as in any group.
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
"""For `_backlog_end`: everything is part of a backlog, which members get by the window."""


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
        """`filter`: with `$share/`; `budget`: counts what is here of all such groups."""
        queue = Backlog(UNBOUNDED, UNBOUNDED, FairBudget(UNKNOWN_DISK_BYTES))
        super().__init__(filter, queue, group, node, journal, hand_over)
        self._budget = budget
        self._held: dict[int, Delivery] = {}
        """What is here by position: it waits, or a member has it."""
        self._returned: list[Waiting] = []
        """What members gave back."""
        self._is_paused = False
        self.is_wanted = False
        """Whether a member is connected, as the store was told."""
        self.troubles: dict[Trouble, str] = {}
        """What is wrong with it, and why, for people."""

    @property
    def kind(self) -> SinkKind:
        return SinkKind.SPREAD

    @property
    def has_connected(self) -> bool:
        return any(member.outbound is not None for member, _ in self._group.members())

    def offer(self, pos: int, delivery: Delivery, node: NodeState, now_s: float) -> bool:
        """It is in the store: from there it comes to whom it is to come to."""
        if not self.ended:
            self.queue.forget(delivery.size_bytes)
        return True

    @property
    def held_count(self) -> int:
        """Messages that are here and not settled."""
        return len(self._held)

    @property
    def is_paused(self) -> bool:
        """Whether it is being decided which broker hands out what."""
        return self._is_paused

    def end(self) -> None:
        super().end()
        for pos in list(self._held):
            self._drop(pos)

    def welcome(self, member: Session) -> None:
        backlog_end = self._backlog_end
        super().welcome(member)
        self._backlog_end = backlog_end

    # --- what the store gives and takes ------------------------------------------------------

    def came(self, messages: list[tuple[int, Delivery]], now_s: float, *, is_replay: bool) -> None:
        """These are to be handed out here."""
        self._backlog_end = ALL_WAITED if is_replay else 1
        for pos, delivery in messages:
            self._drop(pos)
            self._held[pos] = delivery
            self._budget.used_bytes += delivery.size_bytes
            self._wait(pos, delivery)
        self.pump(now_s)

    def gone(self, positions: list[int]) -> None:
        """Others hand these out, as far as no member has them."""
        for pos in positions:
            self._drop(pos)
        self._sort([each for each in self._waiting() if each[0] in self._held])

    def pause(self, is_paused: bool, now_s: float) -> None:
        """Hand out nothing, or go on."""
        self._is_paused = is_paused
        self.pump(now_s)

    def _drop(self, pos: int) -> None:
        """It is here no longer."""
        delivery = self._held.pop(pos, None)
        if delivery is not None:
            self._budget.give_back(delivery.size_bytes)

    def _wait(self, pos: int, delivery: Delivery) -> None:
        size_bytes = delivery.size_bytes
        self.queue.promise(size_bytes)
        self.queue.put(pos, delivery, size_bytes, connected=True)

    def _waiting(self) -> list[Waiting]:
        """Take all that waits."""
        found, self._returned = self._returned, []
        while (waiting := self.queue.take()) is not None:
            found.append(waiting)
        return found

    def _sort(self, waiting: list[Waiting]) -> None:
        """Positions of a partition are in order, and so are a publisher's messages."""
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
        # Not what was taken away, nor what has come again since.
        if self._held.get(loan.pos) is loan.delivery:
            self._returned.append((loan.pos, loan.delivery, loan.delivery.size_bytes))

    def settled(self, pos: int) -> None:
        self._drop(pos)


def _position(waiting: Waiting) -> int:
    return waiting[0]
