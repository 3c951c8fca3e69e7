"""Two things that no test takes from those before it in its process.

It leaves no connection of a store behind: sockets of which the collector finds the end, and a
driver's use of `random`, would make later tests fail. And it begins with no topic known: what the
decoder takes at sight, or as a burst, depends on the topics that the process has met.
"""

from collections.abc import Iterator

import pytest

from flowguard.codec.publish import known_topics
from tests.support.opened import OPENED


@pytest.fixture(autouse=True)
def no_connection_outlives_its_test() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


@pytest.fixture(autouse=True)
def no_topic_is_known() -> None:
    known_topics.clear()
