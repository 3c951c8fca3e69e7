"""The admission window: packets of a client that may be in process at once."""

import pytest

from flowguard.codec.encoder import encode
from flowguard.codec.packets import (
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
)
from flowguard.session.inbound.packets import RUN_MAX
from flowguard.types import Publish
from tests.flowguard.session.sessions import Client, Sessions
from tests.support.readings import identifiers, in_process
from tests.support.sendings import numbered_publishes


def slow_store(sessions: Sessions, window: int) -> Client:
    """A publisher whose messages must be durable, in a node with this window and a slow store."""
    sessions.connect_durable("s").subscribe("a", qos=2)
    publisher = sessions.connect("p", version=4)
    sessions.node.window.resize(window)
    sessions.hold_commits = True
    return publisher


@pytest.mark.parametrize("window", [1, 2, 10, 100])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_publisher_is_stopped_at_exactly_its_window(window: int, qos: int) -> None:
    sessions = Sessions({"session": {"receive_maximum": 1_000}})
    publisher = slow_store(sessions, window)
    publisher.send(*numbered_publishes(150, qos=qos))
    assert in_process(publisher) == window
    assert sessions.node.counters.publish_received == window
    assert publisher.take() == []
    sessions.release_commits()
    assert in_process(publisher) == 0
    assert identifiers(publisher.take()) == list(range(1, 151))


def test_what_comes_for_a_client_that_waits_for_its_turn_is_read_and_waits_with_the_rest() -> None:
    sessions = Sessions()
    publisher = slow_store(sessions, 100)
    connection = publisher.connection
    first, second = numbered_publishes(2 * RUN_MAX), numbered_publishes(3 * RUN_MAX)[2 * RUN_MAX :]
    for packets in (first, second):
        assert connection.receive_data(b"".join(encode(p, 4) for p in packets), sessions.now_s)
        assert sessions.node.counters.publish_received == RUN_MAX
    sessions.settle()
    sessions.release_commits()
    assert identifiers(publisher.take()) == list(range(1, 3 * RUN_MAX + 1))


def test_qos_0_waits_behind_the_others_in_order() -> None:
    sessions = Sessions()
    publisher = slow_store(sessions, 1)
    witness = sessions.connect("w")
    sessions.hold_commits = False
    witness.subscribe("b")
    sessions.hold_commits = True
    publisher.send(*numbered_publishes(2), Publish("b", b"last"))
    assert witness.publishes() == []
    sessions.release_commits()
    assert [message.payload for message in witness.publishes()] == [b"last"]


@pytest.mark.spec("MQTT-3.12.4-1", "v3:MQTT-3.12.4-1")
def test_every_pingreq_is_answered(version: int) -> None:
    client = Sessions().connect("c", version=version)
    client.send(Pingreq())
    assert client.take() == [Pingresp()]
    client.send(Pingreq(), Pingreq(), Pingreq())
    assert client.take() == [Pingresp()] * 3


@pytest.mark.spec("MQTT-3.12.4-1", "v3:MQTT-3.12.4-1")
def test_a_paused_client_gets_its_pingresp_ahead_of_what_waits() -> None:
    sessions = Sessions()
    publisher = slow_store(sessions, 1)
    publisher.send(*numbered_publishes(3), Pingreq())
    assert publisher.take() == [Pingresp()]
    publisher.send(Pingreq())
    assert publisher.take() == [Pingresp()]
    sessions.release_commits()
    assert identifiers(publisher.take()) == [1, 2, 3]


def test_acknowledgements_of_a_paused_client_are_processed() -> None:
    sessions = Sessions({"session": {"inflight_max": 3}})
    client = sessions.connect("c")
    client.subscribe("b", qos=2)
    other = sessions.connect("other")
    for qos in (1, 2, 2):
        other.publish("b", b"x", qos=qos)
    one, two, three = client.publishes(acknowledge=False)
    client.send(Pubrec(three.packet_id))
    client.expect(Pubrel)
    sessions.connect_durable("s").subscribe("a", qos=2)
    sessions.node.window.resize(1)
    sessions.hold_commits = True
    client.send(*numbered_publishes(5))
    client.send(Puback(one.packet_id), Pubrec(two.packet_id), Pubcomp(three.packet_id))
    assert client.take() == [Pubrel(two.packet_id)]
    assert set(sessions.sessions["c"].inflight.messages) == {two.packet_id}
    assert in_process(client) == 1


def test_pubrel_of_a_paused_client_is_processed() -> None:
    sessions = Sessions()
    sessions.connect_durable("s").subscribe("a", qos=2)
    client = sessions.connect("c")
    client.send(Publish("b", b"x", 2, packet_id=100))
    client.take()
    sessions.node.window.resize(1)
    sessions.hold_commits = True
    client.send(*numbered_publishes(5), Pubrel(100))
    assert client.take() == [Pubcomp(100)]


def test_a_paused_client_still_receives() -> None:
    sessions = Sessions()
    other = sessions.connect("other")
    sessions.connect_durable("s").subscribe("a", qos=2)
    client = sessions.connect("c")
    client.subscribe("b")
    sessions.node.window.resize(1)
    sessions.hold_commits = True
    client.send(*numbered_publishes(5))
    other.publish("b", b"news")
    assert [message.payload for message in client.publishes()] == [b"news"]


def test_one_paused_client_stops_nobody_else(version: int) -> None:
    sessions = Sessions()
    other = sessions.connect("other", version=version)
    publisher = slow_store(sessions, 1)
    publisher.send(*numbered_publishes(5))
    other.send(Publish("b", b"x"), Pingreq())
    assert other.take() == [Pingresp()]
    assert sessions.node.counters.publish_received == 2


def test_a_shrinking_window_cancels_nothing_and_admits_nothing() -> None:
    sessions = Sessions()
    publisher = slow_store(sessions, 10)
    publisher.send(*numbered_publishes(8))
    sessions.node.window.resize(2)
    publisher.send(*(Publish("a", b"x", 1, packet_id=n) for n in range(9, 15)))
    assert in_process(publisher) == 8
    sessions.release_commits()
    assert identifiers(publisher.take()) == list(range(1, 15))


def test_a_paused_client_is_read_ahead_only_so_far() -> None:
    sessions = Sessions()
    publisher = slow_store(sessions, 1)
    assert publisher.connection.wants_read
    large = Publish("a", bytes(1_000), 1, packet_id=1)
    publisher.send(large)
    assert publisher.connection.wants_read, "for the control lane"
    publisher.send(*[large] * 70)
    assert not publisher.connection.wants_read
    sessions.release_commits()
    assert publisher.connection.wants_read


def test_what_waits_when_the_connection_is_cut_is_never_admitted() -> None:
    sessions = Sessions()
    publisher = slow_store(sessions, 2)
    publisher.send(*numbered_publishes(5))
    publisher.connection.end(None, sessions.now_s)
    sessions.release_commits()
    assert publisher.take() == []
    assert sessions.node.counters.publish_received == 2
    again = sessions.connect_durable("s")
    assert [message.payload for message in again.publishes()] == [b"1", b"2"]
