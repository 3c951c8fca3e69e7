import itertools
import os
from collections.abc import Iterator

import pytest

from tests.interop.broker import Broker, running_broker
from tests.interop.clients import make_peer
from tests.interop.peer import Engines, Peer
from tests.support.compiled import compiled_rooms, script

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for all clients: what one leaves behind must not disturb the others.

    It runs the compiled rooms where they can be made, for what ships is what is tested.
    """
    if "BUILD_UNDER_TEST" not in os.environ and script().missing() is None:
        compiled_rooms()
    with running_broker(tmp_path_factory.mktemp("broker") / "data") as running:
        yield running


@pytest.fixture(scope="session")
def engines() -> Iterator[Engines]:
    with Engines() as running:
        yield running


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"test/{next(_numbers)}"


@pytest.fixture
def peer(request: pytest.FixtureRequest, broker: Broker, engines: Engines) -> Iterator[Peer]:
    """The client that `every_peer` and its like name; skips where it is not installed."""
    made = make_peer(request.param, broker.port, engines)
    yield made
    made.close()
