import pytest

from flowguard.codec.packets import Connect, Disconnect, Pingreq, Pingresp, Puback, Subscribe
from flowguard.types import MQTT_311, Properties, Publish, ReasonCode, SubscriptionOptions
from tests.flowguard.session.sessions import Client, Sessions


def witness(sessions: Sessions) -> Client:
    client = sessions.connect("witness")
    client.subscribe("will", qos=1)
    return client


# --- from the client -------------------------------------------------------------------------


def test_what_comes_after_disconnect_is_not_looked_at(version: int) -> None:
    sessions = Sessions()
    watcher = witness(sessions)
    client = sessions.connect("c", version=version)
    client.send(Publish("will", b"before"), Disconnect(), Publish("will", b"after"))
    client.send(Publish("will", b"much later"))
    assert [message.payload for message in watcher.publishes()] == [b"before"]


def test_disconnect_waits_for_what_came_before_it(version: int) -> None:
    """It is no acknowledgement: it may not overtake messages that wait for the window."""
    sessions = Sessions()
    sessions.connect_durable("s", version=version).subscribe("a", qos=1)
    sessions.node.window.resize(1)
    client = sessions.connect("c", version=version)
    sessions.hold_commits = True
    client.send(*(Publish("a", b"%d" % n, 1, packet_id=n) for n in (1, 2, 3)), Disconnect())
    assert not client.is_closed
    sessions.release_commits()
    assert client.is_closed
    assert [packet.packet_id for packet in client.take()] == [1, 2, 3]  # type: ignore[union-attr]
    again = sessions.connect_durable("s", version=version)
    assert [message.payload for message in again.publishes()] == [b"1", b"2", b"3"]


def test_the_end_of_input_waits_for_what_came_before_it(version: int) -> None:
    sessions = Sessions()
    sessions.connect_durable("s", version=version).subscribe("a", qos=1)
    sessions.node.window.resize(1)
    client = sessions.connect("c", version=version)
    sessions.hold_commits = True
    client.send(*(Publish("a", b"%d" % n, 1, packet_id=n) for n in (1, 2, 3)))
    client.close()
    assert not client.is_closed
    sessions.release_commits()
    assert client.is_closed
    assert len(sessions.connect_durable("s", version=version).publishes()) == 3


# --- from the server -------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.14.4-1", "MQTT-3.14.4-2", "MQTT-3.14.2-2")
def test_after_disconnect_the_server_sends_nothing_and_closes() -> None:
    sessions = Sessions()
    sessions.connect_durable("s").subscribe("a", qos=1)
    client = sessions.connect("c")
    client.subscribe("a", qos=1)
    sessions.hold_commits = True
    client.send(
        Publish("a", b"x", 1, packet_id=1),
        Subscribe(2, (("b", SubscriptionOptions()),)),
        Connect("c"),
    )
    sessions.release_commits()
    sessions.connect("p").publish("a", b"y", qos=1)
    (goodbye,) = client.take()
    assert isinstance(goodbye, Disconnect)
    assert goodbye.properties.session_expiry_interval is None
    assert client.is_closed
    client.send(Pingreq())
    assert client.take() == []


@pytest.mark.spec("MQTT-3.14.4-1")
def test_what_was_answered_before_is_still_sent() -> None:
    client = Sessions().connect("c")
    client.send(Pingreq(), Publish("a", b"x", 1, packet_id=1), Connect("c"))
    assert [type(packet) for packet in client.take()] == [Pingresp, Puback, Disconnect]


@pytest.mark.spec("MQTT-3.14.0-1")
@pytest.mark.parametrize(
    "first",
    [
        b"\x10\x00",
        b"\x10\x0d\x00\x04MQTT\x05\x01\x00\x00\x00\x00\x00",
        b"\xc0\x00",
        b"\xff\xff\xff\xff\xff",
    ],
    ids=["no CONNECT body", "reserved connect flag", "PINGREQ", "noise"],
)
def test_before_connack_there_is_no_disconnect(first: bytes) -> None:
    client = Sessions().open()
    client.send_bytes(first)
    assert client.is_closed
    assert Disconnect not in {type(packet) for packet in client.take()}


def test_3_1_1_is_closed_without_a_word() -> None:
    client = Sessions().connect("c", version=MQTT_311)
    client.send(Connect("c", MQTT_311))
    assert client.take() == []
    assert client.is_closed


def disconnected_by_mistake(maximum_packet_size: int) -> Client:
    client = Sessions().connect("c", maximum_packet_size=60)
    client.connection.outbound.limit_packets(Properties(maximum_packet_size=maximum_packet_size))
    client.raw.clear()
    client.send(Connect("c"))
    assert client.is_closed
    return client


@pytest.mark.spec("MQTT-3.14.2-1", "MQTT-3.14.2-3", "MQTT-3.14.2-4")
def test_its_reason_string_is_left_out_exactly_where_it_would_not_fit() -> None:
    full = disconnected_by_mistake(60)
    (packet,) = full.take()
    assert isinstance(packet, Disconnect)
    assert packet.reason_code == ReasonCode.PROTOCOL_ERROR
    assert packet.properties.reason_string
    size_bytes = len(full.raw)
    assert disconnected_by_mistake(size_bytes).take() == [packet]
    assert disconnected_by_mistake(size_bytes - 1).take() == [Disconnect(packet.reason_code)]
    assert disconnected_by_mistake(3).take() == [Disconnect(packet.reason_code)]
    assert disconnected_by_mistake(2).take() == []
