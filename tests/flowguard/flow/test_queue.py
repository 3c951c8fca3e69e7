"""Invariants of bounded queues that share a budget:

1. A queue never holds more items, nor more bytes, than it may; the budget never more than its own.
2. The budget's use is the sum of its queues' bytes, at any moment.
3. First in, first out; what was refused never comes out, what was taken always does.
4. A refusal changes nothing and names the bound that was in the way, the queue's own first.
"""

from collections import deque

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flowguard.flow import BoundedQueue, Budget, Reason

QUEUES = st.integers(0, 2)


class Queues(RuleBasedStateMachine):
    """Three queues of one budget, against three plain deques."""

    @initialize(
        items_max=st.integers(1, 5), bytes_max=st.integers(1, 50), limit=st.integers(1, 100)
    )
    def queues_are_made(self, items_max: int, bytes_max: int, limit: int) -> None:
        self.items_max, self.bytes_max = items_max, bytes_max
        self.budget = Budget(limit)
        self.queues: list[BoundedQueue[int]] = [
            BoundedQueue(items_max, bytes_max, self.budget) for _ in range(3)
        ]
        self.models: list[deque[tuple[int, int]]] = [deque() for _ in range(3)]
        self.next_item = 0

    def bytes_of(self, queue: int) -> int:
        return sum(size for _, size in self.models[queue])

    def reason(self, queue: int, size_bytes: int) -> Reason | None:
        if len(self.models[queue]) == self.items_max:
            return Reason.QUEUE_MESSAGES
        if self.bytes_of(queue) + size_bytes > self.bytes_max:
            return Reason.QUEUE_BYTES
        if sum(self.bytes_of(each) for each in range(3)) + size_bytes > self.budget.limit_bytes:
            return Reason.NODE_QUEUE_BYTES
        return None

    @rule(queue=QUEUES, size_bytes=st.integers(0, 60))
    def offer(self, queue: int, size_bytes: int) -> None:
        expected = self.reason(queue, size_bytes)
        assert self.queues[queue].offer(self.next_item, size_bytes) is expected
        if expected is None:
            self.models[queue].append((self.next_item, size_bytes))
        self.next_item += 1

    @rule(queue=QUEUES)
    def take(self, queue: int) -> None:
        model = self.models[queue]
        expected = model.popleft()[0] if model else None
        assert self.queues[queue].peek() == expected
        assert self.queues[queue].take() == expected

    @rule(queue=QUEUES)
    def clear(self, queue: int) -> None:
        assert self.queues[queue].clear() == len(self.models[queue])
        self.models[queue].clear()

    @invariant()
    def sizes_agree(self) -> None:
        if not hasattr(self, "budget"):
            return
        for position, queue in enumerate(self.queues):
            assert len(queue) == len(self.models[position]) <= self.items_max
            assert queue.size_bytes == self.bytes_of(position) <= self.bytes_max
        used = sum(queue.size_bytes for queue in self.queues)
        assert self.budget.used_bytes == used <= self.budget.limit_bytes


TestQueues = Queues.TestCase


def test_a_budget_that_is_given_back_more_than_was_taken_is_a_bug() -> None:
    budget = Budget(10)
    assert budget.take(10)
    budget.give_back(10)
    with pytest.raises(AssertionError):
        budget.give_back(1)


def test_the_last_byte_fits_and_the_next_does_not() -> None:
    budget = Budget(10)
    assert budget.take(10)
    assert not budget.take(1)
    assert budget.take(0)
    assert budget.used_bytes == 10
