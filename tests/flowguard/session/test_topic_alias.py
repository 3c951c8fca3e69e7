"""Topic aliases, both ways: numbers for topics, valid for one connection and one direction."""

import pytest

from flowguard.codec.packets import Disconnect
from flowguard.types import Publish, ReasonCode
from tests.flowguard.session.sessions import Client, Sessions

ALIASES = {"session": {"topic_alias_maximum": 3}}


def witness_of(sessions: Sessions) -> Client:
    witness = sessions.connect("witness")
    witness.subscribe("#", qos=1)
    return witness


def raw_publishes(client: Client) -> list[tuple[str, int | None]]:
    """(topic, alias) of each PUBLISH, as on the wire."""
    return [(packet.topic, packet.properties.topic_alias) for packet in client.publishes()]


# --- from the client -------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.3.2-12", "MQTT-3.2.2-17")
@pytest.mark.parametrize("alias", [1, 2, 3])
def test_every_alias_up_to_the_announced_maximum_is_accepted(alias: int) -> None:
    sessions = Sessions(ALIASES)
    witness = witness_of(sessions)
    client = sessions.connect("c")
    client.publish("t", b"set", topic_alias=alias)
    client.publish("", b"used", topic_alias=alias)
    assert [(message.topic, message.payload) for message in witness.publishes()] == [
        ("t", b"set"),
        ("t", b"used"),
    ]


@pytest.mark.spec("MQTT-3.3.2-12")
def test_an_alias_may_be_given_to_another_topic() -> None:
    sessions = Sessions(ALIASES)
    witness = witness_of(sessions)
    client = sessions.connect("c")
    client.publish("a", topic_alias=1)
    client.publish("b", topic_alias=1)
    client.publish("", topic_alias=1)
    assert [message.topic for message in witness.publishes()] == ["a", "b", "b"]


@pytest.mark.spec("MQTT-3.3.2-9", "MQTT-3.2.2-17")
def test_an_alias_above_the_maximum_ends_the_connection() -> None:
    client = Sessions(ALIASES).connect("c")
    client.publish("t", topic_alias=4)
    assert client.expect(Disconnect).reason_code == ReasonCode.TOPIC_ALIAS_INVALID
    assert client.is_closed


@pytest.mark.spec("MQTT-3.2.2-18")
def test_where_no_maximum_is_announced_every_alias_ends_the_connection() -> None:
    client = Sessions({"session": {"topic_alias_maximum": 0}}).connect("c")
    assert client.connack.properties.topic_alias_maximum is None
    client.publish("t", topic_alias=1)
    assert client.expect(Disconnect).reason_code == ReasonCode.TOPIC_ALIAS_INVALID
    assert client.is_closed


@pytest.mark.spec("MQTT-3.3.2-8")
def test_alias_0_ends_the_connection() -> None:
    client = Sessions(ALIASES).connect("c")
    client.send_bytes(b"\x30\x07\x00\x01t\x03\x23\x00\x00")
    assert client.expect(Disconnect).reason_code == ReasonCode.TOPIC_ALIAS_INVALID


def test_an_alias_that_was_never_set_ends_the_connection() -> None:
    client = Sessions(ALIASES).connect("c")
    client.publish("", topic_alias=1)
    assert client.expect(Disconnect).reason_code == ReasonCode.PROTOCOL_ERROR
    assert client.is_closed


@pytest.mark.spec("MQTT-3.3.2-7")
def test_aliases_of_the_client_end_with_its_connection() -> None:
    sessions = Sessions(ALIASES)
    client = sessions.connect_durable("c")
    client.publish("t", topic_alias=1)
    client.close()
    again = sessions.connect_durable("c")
    again.publish("", topic_alias=1)
    assert again.expect(Disconnect).reason_code == ReasonCode.PROTOCOL_ERROR


def test_two_clients_have_their_own_aliases() -> None:
    sessions = Sessions(ALIASES)
    witness = witness_of(sessions)
    one, two = sessions.connect("one"), sessions.connect("two")
    one.publish("a", topic_alias=1)
    two.publish("b", topic_alias=1)
    one.publish("", topic_alias=1)
    assert [message.topic for message in witness.publishes()] == ["a", "b", "a"]


# --- to the client ---------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.1.2-27")
@pytest.mark.parametrize("maximum", [None, 0])
def test_a_client_that_allows_no_alias_gets_none(maximum: int | None) -> None:
    sessions = Sessions()
    subscriber = sessions.connect("s", topic_alias_maximum=maximum)
    subscriber.subscribe("#")
    publisher = sessions.connect("p")
    for _ in range(3):
        publisher.publish("t")
    assert raw_publishes(subscriber) == [("t", None)] * 3


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_topic_is_sent_once_and_its_alias_from_then_on(qos: int) -> None:
    sessions = Sessions({"session": {"topic_alias_qos_max": 2}})
    subscriber = sessions.connect("s", topic_alias_maximum=5)
    subscriber.subscribe("#", qos=qos)
    publisher = sessions.connect("p")
    for _ in range(3):
        publisher.publish("t", qos=qos)
    assert raw_publishes(subscriber) == [("t", 1), ("", 1), ("", 1)]


@pytest.mark.parametrize("qos_max", [None, 0, 1, 2])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_goes_by_alias_is_a_setting(qos: int, qos_max: int | None) -> None:
    """MQTT.js 5.16 keeps a message of QoS 2 until PUBREL under the topic of the packet: none."""
    sessions = Sessions({"session": {} if qos_max is None else {"topic_alias_qos_max": qos_max}})
    subscriber = sessions.connect("s", topic_alias_maximum=5)
    subscriber.subscribe("#", qos=2)
    sessions.connect("p").publish("t", qos=qos)
    is_alias = qos <= (1 if qos_max is None else qos_max)
    assert raw_publishes(subscriber) == [("t", 1 if is_alias else None)]


def test_a_message_of_qos_2_that_is_sent_again_names_its_topic() -> None:
    sessions = Sessions({"session": {"topic_alias_qos_max": 2}})
    subscriber = sessions.connect_durable("s", topic_alias_maximum=5)
    subscriber.subscribe("#", qos=2)
    for _ in range(2):
        sessions.connect("p").publish("t", qos=2)
    assert [each.topic for each in subscriber.publishes(acknowledge=False)] == ["t", ""]
    again = sessions.connect_durable("s", topic_alias_maximum=5)
    assert raw_publishes(again) == [("t", 1), ("", 1)]


@pytest.mark.spec("MQTT-3.1.2-26", "MQTT-3.3.2-11")
def test_no_alias_above_the_maximum_of_the_client_is_sent() -> None:
    sessions = Sessions()
    subscriber = sessions.connect("s", topic_alias_maximum=2)
    subscriber.subscribe("#")
    publisher = sessions.connect("p")
    for _ in range(2):
        for topic in ("a", "b", "c", "d"):
            publisher.publish(topic)
    aliases = [alias for _, alias in raw_publishes(subscriber)]
    assert aliases == [1, 2, None, None, 1, 2, None, None]


@pytest.mark.spec("MQTT-3.3.2-7")
def test_aliases_of_the_server_end_with_the_connection() -> None:
    sessions = Sessions()
    first = sessions.connect_durable("s", topic_alias_maximum=5)
    first.subscribe("t", qos=1)
    publisher = sessions.connect("p")
    publisher.publish("t", b"1", qos=1)
    publisher.publish("t", b"2", qos=1)
    assert [packet.topic for packet in first.publishes(acknowledge=False)] == ["t", ""]
    first.close()
    again = sessions.connect_durable("s", topic_alias_maximum=5)
    assert [packet.topic for packet in again.publishes(acknowledge=False)] == ["t", ""]


def test_subscribers_with_and_without_aliases_do_not_share_frames() -> None:
    sessions = Sessions()
    plain, aliasing = sessions.connect("plain"), sessions.connect("a", topic_alias_maximum=5)
    for subscriber in (plain, aliasing):
        subscriber.subscribe("t")
    publisher = sessions.connect("p")
    for _ in range(3):
        publisher.publish("t")
    assert raw_publishes(plain) == [("t", None)] * 3
    assert all(topic == "t" or alias == 1 for topic, alias in raw_publishes(aliasing))


@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_that_was_too_large_to_send_sets_no_alias(qos: int) -> None:
    sessions = Sessions()
    subscriber = sessions.connect("s", topic_alias_maximum=5, maximum_packet_size=50)
    subscriber.subscribe("#", qos=qos)
    publisher = sessions.connect("p")
    publisher.publish("t", bytes(100), qos=qos)
    publisher.publish("t", b"small", qos=qos)
    publisher.publish("u", b"small", qos=qos)
    known: dict[int, str] = {}
    topics = []
    for packet in subscriber.publishes():
        assert isinstance(packet, Publish)
        alias = packet.properties.topic_alias
        if alias is not None:
            known[alias] = packet.topic or known[alias]
        topics.append(packet.topic or known[alias or 0])
    assert topics == ["t", "u"]
