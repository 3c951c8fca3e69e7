import pytest

from flowguard.flow import Budget


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
