"""A clock that is set forward, for what would take long and may not depend on the machine."""

import pytest

from flowguard.broker import server
from tests.flowguard.broker.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all brokers that the test starts from now on."""
    clock = Clock()
    monkeypatch.setattr(server, "unix_clock", lambda: clock)
    return clock
