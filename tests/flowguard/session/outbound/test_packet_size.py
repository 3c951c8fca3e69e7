"""Maximum Packet Size of the client: nothing larger is sent, and a drop disturbs no other
client."""

import pytest

from flowguard.codec.packets import (
    Subscribe,
)
from flowguard.flow import Reason
from flowguard.types import SubscriptionOptions
from tests.flowguard.session.sessions import Sessions

OVERHEAD_BYTES = 2 + 2 + 1 + 1
"""A PUBLISH to "t" besides its payload: fixed header, topic, no properties; QoS above 0: 2 more."""


@pytest.mark.spec("MQTT-3.1.2-24")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_may_be_as_large_as_the_client_said_and_no_larger(qos: int) -> None:
    sessions = Sessions()
    subscriber = sessions.connect("s", maximum_packet_size=60)
    subscriber.subscribe("t", qos=qos)
    publisher = sessions.connect("p")
    largest = 60 - OVERHEAD_BYTES - (2 if qos else 0)
    publisher.publish("t", bytes(largest), qos=qos)
    publisher.publish("t", bytes(largest + 1), qos=qos)
    assert [len(message.payload) for message in subscriber.publishes()] == [largest]


@pytest.mark.spec("MQTT-3.1.2-25")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_too_large_is_counted_and_takes_no_place(qos: int) -> None:
    sessions = Sessions()
    subscriber = sessions.connect("s", maximum_packet_size=60, receive_maximum=1)
    subscriber.subscribe("t", qos=qos)
    publisher = sessions.connect("p")
    for _ in range(3):
        publisher.publish("t", bytes(100), qos=qos)
    publisher.publish("t", b"small", qos=qos)
    assert [message.payload for message in subscriber.publishes()] == [b"small"]
    assert not subscriber.is_closed
    assert sessions.node.counters.dropped == {Reason.PACKET_TOO_LARGE: 3}


@pytest.mark.spec("MQTT-3.1.2-25")
def test_a_message_too_large_leaves_session_and_store() -> None:
    sessions = Sessions()
    subscriber = sessions.connect_durable("s", maximum_packet_size=60)
    subscriber.subscribe("t", qos=1)
    subscriber.close()
    sessions.connect("p").publish("t", bytes(100), qos=1)
    assert sessions.connect_durable("s", maximum_packet_size=60).publishes() == []
    assert sessions.store.fetch("s", 0, 10) == []


@pytest.mark.spec("MQTT-3.1.2-25")
def test_a_message_sent_before_is_dropped_where_the_client_now_takes_less() -> None:
    sessions = Sessions()
    first = sessions.connect_durable("s")
    first.subscribe("t", qos=1)
    sessions.connect("p").publish("t", bytes(100), qos=1)
    first.close()
    assert sessions.connect_durable("s", maximum_packet_size=60).publishes() == []
    assert sessions.store.fetch("s", 0, 10) == []


@pytest.mark.spec("MQTT-3.1.2-24")
def test_other_subscribers_get_what_is_too_large_for_one() -> None:
    sessions = Sessions()
    small, large = sessions.connect("small", maximum_packet_size=60), sessions.connect("large")
    for subscriber in (small, large):
        subscriber.subscribe("t", qos=1)
    sessions.connect("p").publish("t", bytes(100), qos=1)
    assert small.publishes() == []
    assert len(large.publishes()) == 1


@pytest.mark.spec("MQTT-3.1.2-24")
def test_a_suback_too_large_is_not_sent() -> None:
    client = Sessions().connect("s", maximum_packet_size=60)
    filters = tuple((f"{number}", SubscriptionOptions()) for number in range(80))
    client.send(Subscribe(1, filters))
    assert client.take() == []
