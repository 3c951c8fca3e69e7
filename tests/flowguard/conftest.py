"""A test leaves no connection of a store behind: sockets of which the collector finds the end, and
a driver's use of `random`, would make later tests of the process fail."""

from collections.abc import Iterator

import pytest

from tests.support.opened import OPENED


@pytest.fixture(autouse=True)
def no_connection_outlives_its_test() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()
