import pytest

from tests.interop.clients import (
    every_library,
    every_library_with_5,
    every_peer,
    every_peer_with_5,
    every_qos,
)
from tests.interop.peer import Connection, Message, Peer, Subscription

pytestmark = pytest.mark.peers

LARGE_BYTES = 200_000
"""Many times what a socket takes at once."""


def receive_all(peer: Peer, subscriber: Connection, sent: list[Message]) -> list[Message]:
    """Return as many messages as were sent; in the order of `sent` if MQTT promises no order."""
    got = [subscriber.receive() for _ in sent]
    return got if peer.keeps_order(sent[0].qos) else sorted(got, key=sent.index)


@pytest.mark.spec("v3:MQTT-7.0.0-2")
@every_qos
@every_peer
def test_a_message_arrives_once_with_its_qos(peer: Peer, topic: str, qos: int) -> None:
    subscriber = peer.open(Subscription(topic, qos))
    sent = [Message(topic, b"first", qos), Message(topic, b"second", qos)]
    peer.open().publish(*sent)
    assert receive_all(peer, subscriber, sent) == sent


@every_peer
def test_the_subscription_lowers_the_qos(peer: Peer, topic: str) -> None:
    at_0, at_1 = peer.open(Subscription(topic, 0)), peer.open(Subscription(topic, 1))
    peer.open().publish(Message(topic, b"x", 2))
    assert (at_0.receive().qos, at_1.receive().qos) == (0, 1)


@every_qos
@every_peer
def test_many_messages_arrive_in_order(peer: Peer, topic: str, qos: int) -> None:
    """More than fit any window: the 100 of the broker, the 20 of most clients."""
    subscriber = peer.open(Subscription(topic, qos))
    sent = [Message(topic, b"%d" % number, qos) for number in range(300)]
    peer.open().publish(*sent)
    assert receive_all(peer, subscriber, sent) == sent


@every_qos
@every_peer
def test_a_large_message(peer: Peer, topic: str, qos: int) -> None:
    subscriber = peer.open(Subscription(topic, qos))
    sent = Message(topic, b"0123456789" * (LARGE_BYTES // 10), qos)
    peer.open().publish(sent)
    assert subscriber.receive() == sent


@every_library
def test_any_bytes_and_none(peer: Peer, topic: str) -> None:
    subscriber = peer.open(Subscription(topic, 1))
    sent = [Message(topic, bytes(range(256)), 1), Message(topic, b"", 1)]
    peer.open().publish(*sent)
    assert [subscriber.receive() for _ in sent] == sent


@every_peer
def test_topics_and_filters_are_utf_8(peer: Peer, topic: str) -> None:
    subscriber = peer.open(Subscription(f"{topic}/+/温度/#", 1))
    sent = Message(f"{topic}/Küche/温度/🌡/°C", "21,5 °C".encode(), 1)
    peer.open().publish(sent)
    assert subscriber.receive() == sent


@every_peer
def test_wildcards(peer: Peer, topic: str) -> None:
    subscriber = peer.open(Subscription(f"{topic}/+/x", 1), Subscription(f"{topic}/deep/#", 1))
    publisher = peer.open()
    for level, hit in [("a/x", 1), ("a/y", 0), ("deep", 1), ("deep/1/2", 1), ("a/b/x", 0)]:
        publisher.publish(Message(f"{topic}/{level}", b"hit" if hit else b"miss", 1))
    publisher.publish(Message(f"{topic}/deep/end", b"end", 1))
    got = [subscriber.receive() for _ in range(4)]
    assert [each.topic.removeprefix(f"{topic}/") for each in got] == [
        "a/x",
        "deep",
        "deep/1/2",
        "deep/end",
    ]


@every_peer
def test_the_broker_speaks_about_itself(peer: Peer) -> None:
    got = peer.open("$SYS/broker/version").receive()
    assert got.payload.startswith(b"flowguard")
    assert got.retain


@every_library
def test_unsubscribing_ends_it(peer: Peer, topic: str) -> None:
    subscriber = peer.open(Subscription(f"{topic}/a", 1), Subscription(f"{topic}/b", 1))
    subscriber.unsubscribe(f"{topic}/a")
    peer.open().publish(Message(f"{topic}/a", b"1", 1), Message(f"{topic}/b", b"2", 1))
    assert subscriber.receive().payload == b"2"


# --- retained ---------------------------------------------------------------------------------


@every_qos
@every_peer
def test_a_retained_message_waits_for_subscribers(peer: Peer, topic: str, qos: int) -> None:
    live = peer.open(Subscription(topic, qos))
    publisher = peer.open()
    for payload in (b"old", b"new"):
        publisher.publish(Message(topic, payload, qos, retain=True))
        assert live.receive() == Message(topic, payload, qos)
    late = peer.open(Subscription(topic, qos))
    assert late.receive() == Message(topic, b"new", qos, retain=True)


@every_peer
def test_an_empty_retained_message_removes_it(peer: Peer, topic: str) -> None:
    publisher = peer.open()
    publisher.publish(Message(topic, b"kept", 1, retain=True))
    publisher.publish(Message(topic, b"", 1, retain=True))
    late = peer.open(Subscription(topic, 1))
    publisher.publish(Message(topic, b"live", 1))
    assert late.receive() == Message(topic, b"live", 1)


@every_peer_with_5
def test_retain_as_published(peer: Peer, topic: str) -> None:
    live = peer.open(Subscription(topic, 1, retain_as_published=True))
    peer.open().publish(Message(topic, b"x", 1, retain=True))
    assert live.receive() == Message(topic, b"x", 1, retain=True)


@every_library_with_5
def test_retain_handling(peer: Peer, topic: str) -> None:
    publisher = peer.open()
    publisher.publish(Message(topic, b"kept", 1, retain=True))
    never = peer.open(Subscription(topic, 1, retain_handling=2))
    if_new = peer.open(Subscription(topic, 1, retain_handling=1))
    assert if_new.receive().retain
    if_new.subscribe(Subscription(topic, 1, retain_handling=1))
    publisher.publish(Message(topic, b"live", 1))
    assert never.receive() == if_new.receive() == Message(topic, b"live", 1)


# --- 5.0 --------------------------------------------------------------------------------------


@every_qos
@every_peer_with_5
def test_properties_arrive_as_they_were_sent(peer: Peer, topic: str, qos: int) -> None:
    subscriber = peer.open(Subscription(topic, qos))
    properties = {
        "content_type": "text/plain",
        "correlation_data": b"question 42",
        "payload_format_indicator": 1,
        "response_topic": f"{topic}/answer",
        "user_property": [("colour", "blue"), ("colour", "red"), ("größe", "10 °")],
    }
    sent = Message(topic, b"x", qos, properties=properties)
    peer.open().publish(sent)
    assert subscriber.receive() == sent


@every_peer_with_5
def test_what_is_left_of_the_message_expiry(peer: Peer, topic: str) -> None:
    subscriber = peer.open(Subscription(topic, 1))
    sent = Message(topic, b"x", 1, retain=True, properties={"message_expiry_interval": 1_000})
    peer.open().publish(sent)
    assert 0 < subscriber.receive().properties["message_expiry_interval"] <= 1_000
    late = peer.open(Subscription(topic, 1))
    assert 0 < late.receive().properties["message_expiry_interval"] <= 1_000


@every_peer_with_5
def test_request_and_response(peer: Peer, topic: str) -> None:
    requester = peer.open(Subscription(f"{topic}/answers", 1))
    responder = peer.open(Subscription(f"{topic}/questions", 1))
    question = {"response_topic": f"{topic}/answers", "correlation_data": b"17"}
    requester.publish(Message(f"{topic}/questions", b"6 * 7?", 1, properties=question))
    asked = responder.receive().properties
    correlation = {"correlation_data": asked["correlation_data"]}
    responder.publish(Message(asked["response_topic"], b"42", 1, properties=correlation))
    assert requester.receive() == Message(f"{topic}/answers", b"42", 1, properties=correlation)


@every_peer_with_5
def test_subscription_identifiers(peer: Peer, topic: str) -> None:
    subscriber = peer.open(Subscription(f"{topic}/#", 1, identifier=300))
    peer.open().publish(Message(topic, b"x", 1))
    assert subscriber.receive().properties == {"subscription_identifier": [300]}


@every_qos
@every_library_with_5
def test_topic_aliases_are_not_seen(peer: Peer, topic: str, qos: int) -> None:
    """Towards gmqtt and MQTT.js; MQTT.js uses some towards the broker as well."""
    subscriber = peer.open(Subscription(f"{topic}/+", qos))
    sent = [Message(f"{topic}/{number % 20}", b"%d" % number, qos) for number in range(80)]
    peer.open().publish(*sent)
    assert [subscriber.receive() for _ in sent] == sent


@every_library_with_5
def test_no_local(peer: Peer, topic: str) -> None:
    client = peer.open(Subscription(topic, 1, no_local=True))
    client.publish(Message(topic, b"own", 1))
    peer.open().publish(Message(topic, b"other", 1))
    assert client.receive().payload == b"other"
