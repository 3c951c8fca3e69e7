"""Invariants of the journal:

1. At most one batch is under way, until all its continuations have run, at once or piece by piece;
   operations and continuations leave in the order of appending.
2. A continuation runs exactly once, after its operations (and all before them) were committed.
3. It is full exactly while the waiting operations and those in commit reach a bound, and empties
   again.
4. `waiting_s` is the age of the oldest work that is not in commit, `committing_s` of the commit;
   0 without such work.
"""

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flowguard.flow import NodeWindow, Observer
from flowguard.node.journal import BATCH_BYTES, OP_BYTES, Batch, Journal
from flowguard.records import NEVER_S, Append, Delivery, PutInbound, PutRetained, StoreOp
from flowguard.session.outbound.fetch import MOVING_MAX, MOVING_PAGE
from flowguard.types import Publish

LARGE = 10**9


def op(number: int) -> StoreOp:
    return PutInbound("c", number)


def complete(journal: Journal, batch: Batch, now_s: float) -> None:
    """Make a batch durable, and run all its continuations at once."""
    journal.durable(batch, now_s, 0.0)
    journal.answer(len(batch.continuations), now_s)


class GroupCommit(RuleBasedStateMachine):
    """The journal against two plain lists: what was appended, what was committed."""

    batch: Batch | None = None
    unanswered = 0
    """Number of unanswered continuations of the batch under way, once it is durable."""

    @property
    def is_in_commit(self) -> bool:
        return self.batch is not None and not self.unanswered

    @initialize(ops_max=st.integers(1, 8), batch_min=st.sampled_from([1, 2, LARGE]))
    def journal_is_made(self, ops_max: int, batch_min: int) -> None:
        self.ops_max = ops_max
        self.batch_min = batch_min
        self.journal = Journal(
            ops_max=ops_max,
            bytes_max=LARGE,
            batch_min=batch_min,
            window=NodeWindow(),
            observer=Observer(),
        )
        self.now_s = 0.0
        self.number = 0
        self.appended: list[StoreOp] = []
        self.committed: list[StoreOp] = []
        self.waiting: list[tuple[int, int, float]] = []
        """Work with a continuation: its number, the number of operations to commit first, and its
        time."""
        self.done: list[int] = []

    def on_done(self, number: int, ops_before: int, now_s: float) -> None:
        assert now_s == self.now_s
        assert len(self.committed) >= ops_before
        self.done.append(number)

    @rule(count=st.integers(0, 3))
    def work_is_appended(self, count: int) -> None:
        ops = [op(len(self.appended) + index) for index in range(count)]
        self.appended += ops
        self.number += 1
        self.waiting.append((self.number, len(self.appended), self.now_s))
        done = partial(self.on_done, self.number, len(self.appended))
        self.journal.append(ops, done, self.now_s)

    @rule()
    def something_is_noted(self) -> None:
        noted = op(len(self.appended))
        self.appended.append(noted)
        self.journal.note(noted)

    @rule()
    def driver_takes_a_batch(self) -> None:
        batch = self.journal.take(self.now_s)
        if self.batch is not None:
            assert batch is None
            return
        nothing = len(self.committed) == len(self.appended) and not self.waiting
        assert (batch is None) == nothing
        if batch is not None:
            self.batch = batch
            self.taken_s = self.now_s
            end = len(self.committed) + len(batch.ops)
            assert batch.ops == self.appended[len(self.committed) : end]
            if self.batch_min == LARGE:
                assert end == len(self.appended)
                assert len(batch.continuations) == len(self.waiting)
            appended_s = [since_s for _, _, since_s in self.waiting[: len(batch.continuations)]]
            if appended_s:
                assert (batch.since_s, batch.until_s) == (appended_s[0], appended_s[-1])

    @precondition(lambda self: self.is_in_commit)
    @rule(pieces=st.booleans())
    def store_has_committed(self, *, pieces: bool) -> None:
        assert self.batch is not None
        batch = self.batch
        self.committed += batch.ops
        self.unanswered = len(batch.continuations)
        if pieces and batch.continuations:
            self.journal.durable(batch, self.now_s, 0.0)
        else:
            self.answers(self.unanswered, partial(complete, self.journal, batch, self.now_s))

    @precondition(lambda self: self.unanswered > 0)
    @rule(count=st.integers(1, 3))
    def some_are_answered(self, count: int) -> None:
        self.answers(min(count, self.unanswered), partial(self.journal.answer, count, self.now_s))

    def answers(self, count: int, tell: Callable[[], None]) -> None:
        before = len(self.done)
        tell()
        ran = self.done[before:]
        assert ran == [number for number, _, _ in self.waiting[:count]]
        self.waiting = self.waiting[count:]
        self.unanswered -= count
        if not self.unanswered:
            self.batch = None

    @rule()
    def time_passes(self) -> None:
        self.now_s += 1.0

    @invariant()
    def it_knows_its_state(self) -> None:
        if not hasattr(self, "journal"):
            return
        unfinished = len(self.appended) - len(self.committed)
        assert self.journal.is_full == (max(unfinished, len(self.waiting)) >= self.ops_max)
        assert self.journal.is_idle == (not self.waiting and self.batch is None)
        assert self.journal.is_empty == (not unfinished and self.journal.is_idle)
        assert self.journal.is_answering == bool(self.unanswered)
        taken = 0 if self.batch is None else len(self.batch.continuations)
        taken = self.unanswered or taken
        queued = self.waiting[taken:]
        waiting_s = self.now_s - queued[0][2] if queued else 0.0
        assert self.journal.waiting_s(self.now_s) == waiting_s
        committing_s = self.now_s - self.taken_s if self.is_in_commit else 0.0
        assert self.journal.committing_s(self.now_s) == committing_s


TestGroupCommit = GroupCommit.TestCase


def nothing(now_s: float) -> None:
    pass


def test_everything_that_waits_shares_one_commit() -> None:
    journal = Journal(ops_max=LARGE, bytes_max=LARGE, window=NodeWindow(), observer=Observer())
    for number in range(100):
        journal.append([op(number)], nothing, 0.0)
    batch = journal.take(0.0)
    assert batch is not None
    assert len(batch.ops) == len(batch.continuations) == 100


def test_a_large_batch_is_half_of_what_is_in_process() -> None:
    """So that the other half is worked on while it syncs."""
    journal = Journal(
        ops_max=LARGE, bytes_max=LARGE, batch_min=10, window=NodeWindow(), observer=Observer()
    )
    for number in range(100):
        journal.append([op(number)], nothing, 0.0)
    sizes = []
    for number in range(100, 400):
        batch = journal.take(0.0)
        assert batch is not None
        sizes.append(len(batch.ops))
        complete(journal, batch, 0.0)
        for _ in batch.ops:  # An answered publisher sends again: a hundred are always in process.
            journal.append([op(number)], nothing, 0.0)
    assert set(sizes[10:]) <= set(range(30, 71))


def test_a_batch_takes_no_more_work_once_it_is_large_in_bytes() -> None:
    """Otherwise the engine would write it in one go, and no other work would run meanwhile."""
    journal = Journal(ops_max=LARGE, bytes_max=LARGE, window=NodeWindow(), observer=Observer())
    size_bytes = BATCH_BYTES // 4
    large = Append("c", 1, Delivery(Publish("t", bytes(size_bytes)), 1, False, (), NEVER_S))
    for _ in range(12):
        journal.append([large], nothing, 0.0)
    sizes = []
    while (batch := journal.take(0.0)) is not None:
        sizes.append(len(batch.ops))
        assert batch.size_bytes < BATCH_BYTES + 2 * size_bytes
        complete(journal, batch, 0.0)
    assert sum(sizes) == 12
    assert len(sizes) == 3


def test_the_next_batch_grows_while_one_is_in_commit() -> None:
    journal = Journal(ops_max=LARGE, bytes_max=LARGE, window=NodeWindow(), observer=Observer())
    journal.append([op(1)], nothing, 0.0)
    first = journal.take(0.0)
    journal.append([op(2)], nothing, 0.0)
    journal.append([op(3)], nothing, 0.0)
    assert journal.take(0.0) is None
    assert first is not None
    complete(journal, first, 0.0)
    second = journal.take(0.0)
    assert second is not None
    assert second.ops == [op(2), op(3)]


def test_work_appended_by_a_continuation_goes_into_the_next_batch() -> None:
    journal = Journal(ops_max=LARGE, bytes_max=LARGE, window=NodeWindow(), observer=Observer())
    ran: list[str] = []

    def first(now_s: float) -> None:
        ran.append("first")
        journal.append([op(2)], lambda _: ran.append("third"), now_s)

    journal.append([op(1)], first, 0.0)
    journal.append([], lambda _: ran.append("second"), 0.0)
    while (batch := journal.take(0.0)) is not None:
        complete(journal, batch, 0.0)
    assert ran == ["first", "second", "third"]
    assert journal.is_empty


@pytest.mark.parametrize(
    "large",
    [
        Append("c", 1, Delivery(Publish("t", bytes(5_000)), 1, False, (), NEVER_S)),
        PutRetained(Publish("t", bytes(5_000)), NEVER_S),
    ],
    ids=["queued", "retained"],
)
def test_a_journal_full_of_bytes_is_full_until_they_are_committed(large: StoreOp) -> None:
    journal = Journal(
        ops_max=LARGE, bytes_max=5_000 + OP_BYTES, window=NodeWindow(), observer=Observer()
    )
    journal.note(op(1))
    assert not journal.is_full
    journal.note(large)
    assert journal.is_full
    batch = journal.take(0.0)
    assert journal.is_full
    assert batch is not None
    complete(journal, batch, 0.0)
    assert not journal.is_full


def test_what_moves_from_the_log_shares_commits_with_live_work_until_a_tick_without_any() -> None:
    journal = Journal(ops_max=LARGE, bytes_max=LARGE, window=NodeWindow(), observer=Observer())

    def begun() -> None:
        batch = journal.take(0.0)
        assert batch is not None
        complete(journal, batch, 0.0)

    journal.append_for_reader([op(1)], nothing, 0.0)
    begun()
    assert journal.moving.page_max == MOVING_MAX, "readers share with nobody"
    for number in range(7):
        journal.append([op(2 + number)], nothing, 0.0)
    journal.append_for_reader([op(9)], nothing, 0.0)
    begun()
    assert journal.moving.page_max == MOVING_PAGE
    journal.moving.count = 1
    assert journal.moving.is_full, "a quarter of seven, the reader left out"
    journal.observe(0.1)
    assert journal.moving.is_full, "there was live work since the last tick"
    journal.append_for_reader([op(10)], nothing, 0.1)
    begun()
    journal.observe(0.2)
    assert not journal.moving.is_full
    assert journal.moving.page_max == MOVING_MAX


def test_completing_a_batch_that_is_not_in_commit_is_a_bug() -> None:
    journal = Journal(ops_max=LARGE, bytes_max=LARGE, window=NodeWindow(), observer=Observer())
    journal.append([op(1)], nothing, 0.0)
    batch = journal.take(0.0)
    assert batch is not None
    complete(journal, batch, 0.0)
    with pytest.raises(AssertionError):
        complete(journal, batch, 0.0)
