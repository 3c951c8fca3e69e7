"""A test that fails leaves no link behind: its sockets, and its driver's use of `random`, would
make the next tests of the process fail, too."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_link_outlives_its_test() -> Iterator[None]:
    # Where the driver is missing the tests are skipped, and this is not run.
    from tests.flowguard.stores.kafka.benches import OPENED

    yield
    while OPENED:
        OPENED.pop().close()
