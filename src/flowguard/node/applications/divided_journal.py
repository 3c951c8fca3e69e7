"""DividedJournal: two journals behind one interface, for applications with a store of their own.

The first is this one. Operations under the keys of `names` enter the second one, which has another
store and may wait for it. Work without such operations does not wait.
"""

from typing import final

from flowguard.flow import NodeWindow, Observer
from flowguard.node.applications.names import NamesApart
from flowguard.node.journal import Batch, Continuation, Journal
from flowguard.records import DropSession, PutWill, StoreOp


@final
class DividedJournal(Journal):
    """The journal of all other operations, and the entry to both."""

    def __init__(
        self, *, ops_max: int, bytes_max: int, window: NodeWindow | None, observer: Observer
    ) -> None:
        """With the same bounds for each of the two; the second closes no window."""
        super().__init__(ops_max=ops_max, bytes_max=bytes_max, window=window, observer=observer)
        self.names = NamesApart()
        self.second = Journal(
            ops_max=ops_max, bytes_max=bytes_max, window=None, observer=Observer()
        )
        self._held_number = 0
        """The second one is held until all have heard of the batch with this number."""

    @property
    def is_idle(self) -> bool:
        return super().is_idle and self.second.is_idle

    @property
    def has_answers(self) -> bool:
        return self.is_answering or self.second.is_answering

    @property
    def wants_store(self) -> bool:
        second = self.second
        return self.is_urgent or (
            second.is_urgent and not second.is_committing and not second.is_early
        )

    @property
    def is_done(self) -> bool:
        return self.is_empty and self.second.is_empty

    def append(self, ops: list[StoreOp], done: Continuation, now_s: float, name: str = "") -> None:
        """Append all to the second journal if an operation, or `name`, belongs there."""
        if not self.names.take_any(ops, name):
            super().append(ops, done, now_s)
            return
        self.second.append([], done, now_s)
        self._give(ops)

    def append_for_reader(self, ops: list[StoreOp], done: Continuation, now_s: float) -> None:
        if not self.names.take_any(ops, ""):
            super().append_for_reader(ops, done, now_s)
            return
        self.second.append_for_reader([], done, now_s)
        self._give(ops)

    def append_heavy(
        self, ops: list[StoreOp], done: Continuation, deliveries: int, now_s: float
    ) -> None:
        if not self.names.take_any(ops, ""):
            super().append_heavy(ops, done, deliveries, now_s)
            return
        self.second.append_heavy([], done, deliveries, now_s)
        self._give(ops)

    def note(self, op: StoreOp) -> None:
        if self.names.take(op):
            self._give([op])
        else:
            super().note(op)

    def note_all(self, ops: list[StoreOp]) -> None:
        for op in ops:
            self.note(op)

    def end_session(self, client_id: str) -> None:
        drop = DropSession(client_id)
        if not self.names.take(drop):
            super().end_session(client_id)
            return
        super().note(PutWill(client_id, None))  # Published in this stretch, if it had one.
        self._follow(drop)
        self.second.end_session(client_id)
        self.second.sent.pop(client_id, None)

    def is_ending(self, client_id: str) -> bool:
        return super().is_ending(client_id) or self.second.is_ending(client_id)

    def take(self, now_s: float) -> Batch | None:
        self.second.sent |= self.names.take_sent(self.sent, self.second.number)
        return super().take(now_s)

    def answer(self, count_max: int, now_s: float) -> None:
        """Tell those of the second one when all of the first have heard."""
        if not self.is_answering:
            self.second.answer(count_max, now_s)
            return
        super().answer(count_max, now_s)
        self.second.is_held = self.done_number < self._held_number

    def _give(self, ops: list[StoreOp]) -> None:
        for op in ops:
            self._follow(op)
            self.second.note(op)

    def _follow(self, op: StoreOp) -> None:
        """Take notice of what the second one is about to have; hold that, if it has to wait."""
        if self.names.follow(op, self.second.number):
            self._held_number = self.last_number
            self.second.is_held = self.done_number < self._held_number
