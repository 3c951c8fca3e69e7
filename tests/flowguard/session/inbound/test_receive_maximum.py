"""Receive Maximum, both ways: how many QoS 1 and 2 messages may be unfinished at once."""

import pytest

from flowguard.codec.packets import (
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
)
from flowguard.types import MQTT_311, ReasonCode
from tests.flowguard.session.sessions import Client, Sessions

# --- of the server ---------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.3.4-7")
def test_more_unfinished_qos_2_messages_than_announced_end_the_connection() -> None:
    sessions = Sessions({"session": {"receive_maximum": 3}})
    client = sessions.connect("c")
    assert client.connack.properties.receive_maximum == 3
    for _ in range(3):
        client.publish("t", qos=2)
    assert not client.is_closed
    client.publish("t", qos=2)
    assert client.expect(Disconnect).reason_code == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
    assert client.is_closed


@pytest.mark.spec("MQTT-3.3.4-7")
def test_qos_1_counts_until_it_is_acknowledged() -> None:
    sessions = Sessions({"session": {"receive_maximum": 3}})
    sessions.connect_durable("s").subscribe("t", qos=1)
    client = sessions.connect("c")
    sessions.hold_commits = True
    for _ in range(3):
        client.publish("t", qos=1)
    assert not client.is_closed
    client.publish("t", qos=1)
    assert client.expect(Disconnect).reason_code == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


def test_a_finished_exchange_frees_its_place() -> None:
    client = Sessions({"session": {"receive_maximum": 1}}).connect("c")
    for _ in range(5):
        packet_id = client.publish("t", qos=2)
        client.expect(Pubrec)
        client.send(Pubrel(packet_id))
        client.expect(Pubcomp)
        client.publish("t", qos=1)
        client.expect(Puback)
    assert not client.is_closed


def test_a_message_that_waited_for_the_store_frees_its_place() -> None:
    sessions = Sessions({"session": {"receive_maximum": 1}})
    sessions.connect_durable("s").subscribe("t", qos=2)
    client = sessions.connect("c")
    for qos in (1, 1, 2):
        client.publish("t", qos=qos)
    assert not client.is_closed


def test_qos_0_does_not_count() -> None:
    client = Sessions({"session": {"receive_maximum": 1}}).connect("c")
    client.publish("t", qos=2)
    client.publish("t", qos=0)
    assert not client.is_closed


def test_a_message_sent_again_is_not_counted_twice() -> None:
    client = Sessions({"session": {"receive_maximum": 1}}).connect("c")
    packet_id = client.publish("t", qos=2)
    client._packet_id = packet_id - 1  # the same identifier again
    client.publish("t", qos=2)
    assert not client.is_closed
    assert [packet.packet_id for packet in client.take()] == [packet_id, packet_id]


def test_311_knows_no_receive_maximum() -> None:
    client = Sessions({"session": {"receive_maximum": 1}}).connect("c", version=MQTT_311)
    for _ in range(5):
        client.publish("t", qos=2)
    assert not client.is_closed


# --- of the client ---------------------------------------------------------------------------


def flooded(receive_maximum: int, count: int, qos: int = 1) -> tuple[Sessions, Client]:
    """Return a subscriber with that Receive Maximum, after `count` messages to it."""
    sessions = Sessions()
    subscriber = sessions.connect("s", receive_maximum=receive_maximum)
    subscriber.subscribe("t", qos=qos)
    publisher = sessions.connect("p", version=MQTT_311)
    for number in range(count):
        publisher.publish("t", b"%d" % number, qos=qos)
    return sessions, subscriber


@pytest.mark.spec("MQTT-3.3.4-9")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("receive_maximum", [1, 3])
def test_no_more_than_receive_maximum_is_sent_and_the_rest_follows(
    receive_maximum: int, qos: int
) -> None:
    _, subscriber = flooded(receive_maximum, 10, qos)
    received = []
    while batch := subscriber.publishes(acknowledge=False):
        assert len(batch) <= receive_maximum
        received += [message.payload for message in batch]
        for message in batch:
            if qos == 1:
                subscriber.send(Puback(message.packet_id))
            else:
                subscriber.send(Pubrec(message.packet_id), Pubcomp(message.packet_id))
    assert received == [b"%d" % number for number in range(10)]


@pytest.mark.spec("MQTT-3.3.4-9")
def test_pubrec_alone_frees_no_place() -> None:
    _, subscriber = flooded(1, 2, qos=2)
    (message,) = subscriber.publishes(acknowledge=False)
    subscriber.send(Pubrec(message.packet_id))
    subscriber.expect(Pubrel)
    assert subscriber.publishes(acknowledge=False) == []
    subscriber.send(Pubcomp(message.packet_id))
    assert len(subscriber.publishes(acknowledge=False)) == 1


def test_a_refusing_pubrec_frees_its_place() -> None:
    _, subscriber = flooded(1, 2, qos=2)
    (message,) = subscriber.publishes(acknowledge=False)
    subscriber.send(Pubrec(message.packet_id, ReasonCode.QUOTA_EXCEEDED))
    assert len(subscriber.publishes(acknowledge=False)) == 1


@pytest.mark.spec("MQTT-3.3.4-9")
def test_messages_sent_again_count_as_well() -> None:
    sessions = Sessions()
    first = sessions.connect_durable("s", receive_maximum=10)
    first.subscribe("t", qos=1)
    publisher = sessions.connect("p")
    for _ in range(6):
        publisher.publish("t", qos=1)
    first.close()
    again = sessions.connect_durable("s", receive_maximum=2)
    assert len(again.publishes(acknowledge=False)) == 2


@pytest.mark.spec("MQTT-3.3.4-10")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_full_receive_maximum_stops_nothing_but_publish_of_qos_1_and_2(qos: int) -> None:
    sessions, subscriber = flooded(1, 3, qos)
    (message,) = subscriber.publishes(acknowledge=False)
    subscriber.send(Pingreq())
    subscriber.expect(Pingresp)
    assert isinstance(subscriber.subscribe("other"), Suback)
    subscriber.publish("elsewhere", qos=1)
    subscriber.expect(Puback)
    subscriber.publish("elsewhere", qos=2)
    subscriber.expect(Pubrec)
    sessions.connect("q").publish("other", b"qos 0")
    assert [each.payload for each in subscriber.publishes(acknowledge=False)] == [b"qos 0"]
    if qos == 2:
        subscriber.send(Pubrec(message.packet_id))
        subscriber.expect(Pubrel)


def test_without_a_receive_maximum_the_limit_of_the_server_holds(version: int) -> None:
    sessions = Sessions({"session": {"inflight_max": 4}})
    subscriber = sessions.connect("s", version=version)
    subscriber.subscribe("t", qos=1)
    publisher = sessions.connect("p")
    for _ in range(10):
        publisher.publish("t", qos=1)
    assert len(subscriber.publishes(acknowledge=False)) == 4
