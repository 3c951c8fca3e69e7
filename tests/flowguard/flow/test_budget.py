"""A fair budget that many share: invariants for any order of taking and giving back.

1. It holds exactly the bytes of its holders, and counts them correctly; never more than its limit.
2. A holder that would leave each holder as much as it then holds itself is not rejected.
3. Some of it is always left: a quarter of the limit by the number of holders and one more, or half
   of that if a holder has taken spare bytes.
"""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flowguard.flow import Budget, FairBudget

HOLDERS = st.integers(0, 11)
SIZES = st.integers(0, 400)


class Budgets(RuleBasedStateMachine):
    """A dozen holders, against a list of what each of them holds."""

    @initialize(limit=st.integers(0, 1_000))
    def budget_is_made(self, limit: int) -> None:
        self.budget = FairBudget(limit)
        self.held = [0] * 12
        self.spare_is_used = False

    @rule(holder=HOLDERS, size=SIZES)
    def asks(self, holder: int, size: int) -> None:
        budget, held = self.budget, self.held
        mine = held[holder] + size
        left = budget.limit_bytes - sum(held) - size
        others = sum(map(bool, held)) - bool(held[holder])
        is_common = sum(held) + size <= budget.common_bytes
        is_fair = mine * (others + 1) <= left
        assert budget.take(size, held[holder]) is (is_common or is_fair)
        if is_common or is_fair:
            held[holder] = mine

    @rule(holder=HOLDERS)
    def takes_all_it_may(self, holder: int) -> None:
        """The greediest there is, byte by byte as it were."""
        low, high = 0, self.budget.limit_bytes
        while low < high:
            size = (low + high + 1) // 2
            if self.budget.fits(size, self.held[holder]):
                low = size
            else:
                high = size - 1
        self.asks(holder, low)

    @rule(holder=HOLDERS, size=SIZES)
    def takes_what_is_spare(self, holder: int, size: int) -> None:
        budget = self.budget
        eighth = budget.limit_bytes // 8
        assert budget.has_spare(size) is (sum(self.held) + size + eighth <= budget.limit_bytes)
        if budget.has_spare(size):
            budget.hold(size, self.held[holder])
            self.held[holder] += size
            self.spare_is_used = True

    @rule(holder=HOLDERS, share=st.floats(0, 1))
    def gives_back(self, holder: int, share: float) -> None:
        size = round(self.held[holder] * share)
        self.held[holder] -= size
        self.budget.give_back(size, self.held[holder])

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "budget"):
            return
        budget = self.budget
        assert budget.used_bytes == sum(self.held) <= budget.limit_bytes
        assert budget.holders_count == sum(map(bool, self.held))
        left = budget.limit_bytes - budget.used_bytes
        part = budget.limit_bytes // (8 if self.spare_is_used else 4)
        assert left * (budget.holders_count + 1) >= part


TestBudgets = Budgets.TestCase


def test_a_budget_that_is_given_back_more_than_was_taken_is_a_bug() -> None:
    budget = Budget(10)
    assert budget.take(10)
    budget.give_back(10)
    with pytest.raises(AssertionError):
        budget.give_back(1)
    fair = FairBudget(10)
    assert fair.take(5, 0)
    fair.give_back(5, 0)
    with pytest.raises(AssertionError):
        fair.give_back(1, 1)


def test_the_last_byte_fits_and_the_next_does_not() -> None:
    budget = Budget(10)
    assert budget.take(10)
    assert not budget.take(1)
    assert budget.take(0)
    assert budget.used_bytes == 10


def test_one_alone_gets_three_quarters_to_the_last_byte() -> None:
    budget = FairBudget(100)
    assert budget.take(75, 0)
    assert not budget.take(1, 75)
    assert budget.take(0, 75)
    assert budget.used_bytes == 75


def test_who_holds_much_is_refused_and_who_holds_little_is_not() -> None:
    budget = FairBudget(1_000_000)
    held = [0] * 100
    for _ in range(1_000):
        for holder in range(100):
            if budget.take(100, held[holder]):
                held[holder] += 100
    assert 750_000 <= budget.used_bytes <= 751_000
    newcomer = 0
    while budget.take(100, newcomer):
        newcomer += 100
    assert newcomer == 2_400


def test_what_was_promised_has_its_place_whatever_the_limit_is() -> None:
    budget = FairBudget(100)
    budget.hold(300, 0)
    assert budget.holders_count == 1
    assert not budget.take(1, 0)
    assert not budget.take(1, 300)
    budget.give_back(230, 70)
    assert budget.take(5, 70)
    budget.give_back(75, 0)
    assert budget.holders_count == 0


def test_a_limit_may_change_and_nobody_loses_what_it_has() -> None:
    budget = FairBudget(1_000)
    assert budget.take(700, 0)
    budget.limit_bytes = 100
    assert budget.used_bytes == 700
    assert not budget.take(1, 0)
    budget.limit_bytes = 10_000
    assert budget.take(1, 0)
