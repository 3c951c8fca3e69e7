"""The ledger of torture runs."""

import pytest

from tests.torture.ledger import Account, Message


@pytest.mark.once
def test_will_that_came_before_its_client_saw_the_end_is_not_owed() -> None:
    account = Account("s")
    will = Message(1, ("mortal", "w", 1), 40)
    assert account.deliver("s", will, exact=False) is None
    account.owe(will)
    assert not account.awaited
