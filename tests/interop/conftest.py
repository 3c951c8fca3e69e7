import itertools
import os
from collections.abc import Iterator

import pytest

from tests.interop.broker import WORKERS, WORKERS_UNDER_TEST, Broker, running_broker
from tests.interop.clients import make_peer
from tests.interop.cluster import NODES, three_nodes
from tests.interop.peer import Engines, Peer
from tests.support.compiled import compiled_rooms, script

_numbers = itertools.count(1)
OVER_NODES = (
    "test_a_message_arrives_once_with_its_qos",
    "test_a_retained_message_waits_for_subscribers",
    "test_properties_arrive_as_they_were_sent",
    "test_the_will_of_who_falls_silent",
    "test_a_session_is_resumed",
    "test_a_second_connection_takes_over",
    "test_a_group_shares_the_work",
    "test_every_client_hears_every_other",
)
"""Tests that also run on a cluster of three nodes, with MQTT 5.0 and QoS 2."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several workers, clients speak 5.0 only: older versions take the same ways.

    MQTT 3.1 has the PUBLISH of 3.1.1, and a client speaks to one of several workers as to a single
    one, so one QoS is enough for both. A wrong password or certificate is rejected by one worker.
    """
    if WORKERS_UNDER_TEST:
        return
    left_out = {each for each in items if is_left_out(each)}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [each for each in items if each not in left_out]


def is_left_out(item: pytest.Item) -> bool:
    values = item.callspec.params if hasattr(item, "callspec") else {}
    _, _, version = values.get("peer", "5.0").rpartition(" ")
    if values.get("broker") == NODES:
        name = getattr(item, "originalname", "")
        return name not in OVER_NODES or version != "5.0" or values.get("qos", 2) != 2
    has_workers = values.get("broker", 1) > 1
    if has_workers and version != "5.0":
        return True
    if (has_workers or version == "3.1") and values.get("qos", 2) != 2:
        return True
    return values.get("doors", 1) > 1 and not values.get("is_right", True)


@pytest.fixture(
    scope="session",
    params=(*WORKERS, *(() if WORKERS_UNDER_TEST else (NODES,))),
    ids="workers={}".format,
)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """One broker for all clients: what one leaves behind must not disturb the others.

    It runs the compiled rooms where they can be made, for what ships is what is tested.
    """
    if "BUILD_UNDER_TEST" not in os.environ and script().missing() is None:
        compiled_rooms()
    folder = tmp_path_factory.mktemp("broker") / "data"
    if request.param == NODES:
        with three_nodes(folder) as nodes:
            yield nodes
        return
    with running_broker(folder, "--workers", str(request.param)) as running:
        running.workers = request.param
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
    """Return the client that `every_peer` and its like name. Skips if it is not installed."""
    made = make_peer(request.param, broker.port, engines, broker.ports)
    yield made
    made.close()
