"""Departures: the clients that a broker which ends disconnects, over a time."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.broker.leaving import BUSY_S, Departures
from flowguard.session.connection import ServerConnection
from flowguard.types import ReasonCode
from tests.support.stage import Stage


def when(connection: ServerConnection) -> float:
    return connection.connected_s


def connections(stage: Stage, count: int) -> list[ServerConnection]:
    """Return connections, the oldest first."""
    found = []
    for number in range(count):
        stage.now_s += 1
        found.append(stage.connect(f"c{number}").connection)
    return found


def test_the_oldest_connection_goes_first_and_the_newest_last() -> None:
    stage = Stage()
    clients = connections(stage, 10)
    departures = Departures(reversed(clients), when, 100.0, 10.0)
    assert departures.progress(103.0) == {"clients": 10, "gone": 0, "rest_s": 7.0}
    order = [each for step in range(11) for each in departures.due(100.0 + step)]
    assert order == clients
    assert departures.progress(103.0) == {"clients": 10, "gone": 10, "rest_s": 0.0}


@given(count=st.integers(0, 200), steps=st.lists(st.floats(0, 1), max_size=20))
def test_never_more_leave_than_their_share_of_the_time(count: int, steps: Sequence[float]) -> None:
    class Idle:
        connected_s = 0.0
        window = None
        ended = False

    clients = [Idle() for _ in range(count)]
    departures = Departures(clients, when, 0.0, 60.0)  # type: ignore[arg-type]
    gone = 0
    for share in sorted(steps):
        gone += len(departures.due(60.0 * share))
        assert abs(gone - count * share) <= 1
    gone += len(departures.due(60.0))
    assert (gone, departures.left) == (count, 0)


def test_client_with_packets_in_process_may_finish_them() -> None:
    stage = Stage()
    stage.connect_durable("subscriber").subscribe("t", qos=1)
    client = stage.connect("c")
    stage.hold_commits = True
    client.publish("t", b"x", qos=1)
    connection = client.connection
    departures = Departures([connection], when, 0.0, 1.0)
    assert departures.due(1.0) == []
    assert departures.left == 1
    stage.hold_commits = False
    stage.settle()
    assert departures.due(1.1) == [connection]


def test_client_that_does_not_finish_is_ended_in_time() -> None:
    stage = Stage()
    stage.connect_durable("subscriber").subscribe("t", qos=1)
    client = stage.connect("c")
    stage.hold_commits = True
    client.publish("t", b"x", qos=1)
    departures = Departures([client.connection], when, 0.0, 1.0)
    assert departures.due(1.0) == []
    assert departures.due(1.0 + BUSY_S) == [client.connection]


@pytest.mark.parametrize("reason", [None, ReasonCode.SUCCESS])
def test_client_that_has_left_is_not_ended_again(reason: ReasonCode | None) -> None:
    stage = Stage()
    client = stage.connect("c")
    departures = Departures([client.connection], when, 0.0, 1.0)
    if reason is None:
        client.close()
    else:
        client.disconnect(reason)
    assert departures.due(1.0) == []
    assert departures.left == 0
