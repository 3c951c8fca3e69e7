"""PUBLISH: what reaches a subscriber, unchanged, and what is the connection's alone."""

import pytest

from flowguard.codec.packets import Disconnect, Puback, Pubcomp, Pubrec, Pubrel
from flowguard.node.connect.authentication import Hooks
from flowguard.types import MQTT_5, MQTT_311, Properties, Publish, ReasonCode
from tests.support.stage import Client, Stage


def subscriber_of(stage: Stage, *filters: str, version: int = MQTT_5, qos: int = 2) -> Client:
    subscriber = stage.connect("s", version=version)
    subscriber.subscribe(*filters, qos=qos)
    return subscriber


def delivered(stage: Stage, **properties: object) -> Properties:
    """The properties a subscriber gets of a message published with these."""
    subscriber = subscriber_of(stage, "t")
    stage.connect("p").publish("t", b"x", **properties)
    (message,) = subscriber.publishes()
    return message.properties


# --- answers ---------------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.3.4-1", "v3:MQTT-3.3.4-1")
@pytest.mark.parametrize(("qos", "answer"), [(0, None), (1, Puback), (2, Pubrec)])
def test_each_qos_has_its_answer(version: int, qos: int, answer: type | None) -> None:
    stage = Stage()
    subscriber_of(stage, "t")
    client = stage.connect("p", version=version)
    packet_id = client.publish("t", b"x", qos=qos)
    answers = client.take()
    assert [type(packet) for packet in answers] == ([answer] if answer else [])
    assert [packet.packet_id for packet in answers] == ([packet_id] if answer else [])


@pytest.mark.spec("v3:MQTT-3.3.4-1")
def test_a_qos_2_exchange_ends_with_pubcomp(version: int) -> None:
    client = Stage().connect("p", version=version)
    packet_id = client.publish("t", b"x", qos=2)
    client.expect(Pubrec)
    client.send(Pubrel(packet_id))
    assert client.expect(Pubcomp) == Pubcomp(packet_id)


def test_a_publish_that_nobody_wants_is_acknowledged_with_that_news() -> None:
    client = Stage().connect("p")
    client.publish("t", b"x", qos=1)
    assert client.expect(Puback).reason_code == ReasonCode.NO_MATCHING_SUBSCRIBERS
    client.publish("t", b"x", qos=2)
    assert client.expect(Pubrec).reason_code == ReasonCode.NO_MATCHING_SUBSCRIBERS


# --- QoS -------------------------------------------------------------------------------------


@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
def test_a_message_is_delivered_with_the_lower_of_both_qos(
    version: int, published: int, granted: int
) -> None:
    stage = Stage()
    subscriber = subscriber_of(stage, "t", version=version, qos=granted)
    stage.connect("p", version=version).publish("t", b"x", qos=published)
    assert [message.qos for message in subscriber.publishes()] == [min(published, granted)]


@pytest.mark.spec("MQTT-3.3.4-2", "v3:MQTT-3.3.5-1")
@pytest.mark.parametrize("filters", [("a/+", "a/#"), ("a/#", "a/+"), ("a/b", "#")])
def test_overlapping_subscriptions_deliver_once_with_the_highest_of_their_qos(
    version: int, filters: tuple[str, str]
) -> None:
    stage = Stage()
    subscriber = stage.connect("s", version=version)
    for qos, filter in enumerate(filters, start=1):
        subscriber.subscribe(filter, qos=qos)
    stage.connect("p").publish("a/b", b"x", qos=2)
    assert [message.qos for message in subscriber.publishes()] == [2]


# --- DUP -------------------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.3.1-1", "v3:MQTT-3.3.1-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_sent_again_has_dup(version: int, qos: int) -> None:
    stage = Stage()
    first = stage.connect_durable("s", version=version)
    first.subscribe("t", qos=qos)
    stage.connect("p").publish("t", b"x", qos=qos)
    (sent,) = first.publishes(acknowledge=False)
    first.close()
    again = stage.connect_durable("s", version=version)
    (repeated,) = again.publishes(acknowledge=False)
    assert (sent.dup, repeated.dup) == (False, True)
    assert (repeated.packet_id, repeated.payload) == (sent.packet_id, sent.payload)


@pytest.mark.spec("MQTT-3.3.1-3", "v3:MQTT-3.3.1-3")
@pytest.mark.parametrize("qos", [1, 2])
def test_dup_of_the_publisher_says_nothing_about_delivery(version: int, qos: int) -> None:
    stage = Stage()
    subscriber = subscriber_of(stage, "t", version=version)
    publisher = stage.connect("p", version=version)
    publisher.send(Publish("t", b"x", qos, dup=True, packet_id=1))
    assert [message.dup for message in subscriber.publishes()] == [False]


@pytest.mark.spec("MQTT-3.3.1-2", "v3:MQTT-3.3.1-2")
def test_a_message_delivered_with_qos_0_has_no_dup(version: int) -> None:
    stage = Stage()
    subscriber = subscriber_of(stage, "t", version=version, qos=0)
    stage.connect("p", version=version).send(Publish("t", b"x", 1, dup=True, packet_id=1))
    assert [(message.qos, message.dup) for message in subscriber.publishes()] == [(0, False)]


@pytest.mark.spec("MQTT-3.3.1-4", "v3:MQTT-3.3.1-4")
def test_qos_3_closes_the_connection(version: int) -> None:
    stage = Stage()
    subscriber = subscriber_of(stage, "#")
    client = stage.connect("p", version=version)
    client.send_bytes(b"\x36\x07\x00\x01t\x00\x01\x00x")
    assert client.is_closed
    assert subscriber.publishes() == []


# --- topics ----------------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.3.2-3", "v3:MQTT-3.3.2-3")
def test_a_subscriber_gets_only_topics_that_match_under_their_own_name(version: int) -> None:
    stage = Stage()
    subscriber = subscriber_of(stage, "a/+", version=version)
    publisher = stage.connect("p", version=version)
    for topic in ("a/b", "a", "a/b/c", "A/b", "a/", "b/a"):
        publisher.publish(topic, b"x", qos=1)
    assert [message.topic for message in subscriber.publishes()] == ["a/b", "a/"]


@pytest.mark.spec("MQTT-3.3.2-2", "v3:MQTT-3.3.2-2")
@pytest.mark.parametrize("topic", [b"a/+", b"#", b"a+b"])
def test_a_topic_with_wildcards_closes_the_connection(version: int, topic: bytes) -> None:
    stage = Stage()
    subscriber = subscriber_of(stage, "#")
    client = stage.connect("p", version=version)
    body = len(topic).to_bytes(2, "big") + topic + (b"\0" if version == MQTT_5 else b"")
    client.send_bytes(bytes((0x30, len(body))) + body)
    assert client.is_closed
    assert subscriber.publishes() == []


# --- properties ------------------------------------------------------------------------------

FORWARDED = [
    {"payload_format_indicator": 0},
    {"payload_format_indicator": 1},
    {"content_type": "text/ünïcode"},
    {"response_topic": "reply/to/ü"},
    {"correlation_data": b"\0\xff\1"},
    {"correlation_data": b""},
    {"user_properties": (("b", "1"), ("a", "2"), ("b", "1"), ("", ""))},
]


@pytest.mark.spec("MQTT-3.3.2-4", "MQTT-3.3.2-15", "MQTT-3.3.2-16")
@pytest.mark.spec("MQTT-3.3.2-17", "MQTT-3.3.2-18", "MQTT-3.3.2-20")
@pytest.mark.parametrize("properties", FORWARDED)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_belongs_to_the_message_is_forwarded_unchanged(
    properties: dict[str, object], qos: int
) -> None:
    assert delivered(Stage(), qos=qos, **properties) == Properties(**properties)


@pytest.mark.parametrize("properties", FORWARDED)
def test_what_belongs_to_a_retained_message_is_kept_with_it(properties: dict[str, object]) -> None:
    stage = Stage()
    stage.connect("p").publish("t", b"x", retain=True, **properties)
    (message,) = subscriber_of(stage, "t").publishes()
    assert message.properties == Properties(**properties)


@pytest.mark.parametrize("properties", FORWARDED)
def test_what_belongs_to_a_message_waits_with_it_in_the_session(
    properties: dict[str, object],
) -> None:
    stage = Stage()
    subscriber = stage.connect_durable("s")
    subscriber.subscribe("t", qos=1)
    subscriber.close()
    stage.connect("p").publish("t", b"x", qos=1, **properties)
    stage.restart()
    (message,) = stage.connect_durable("s").publishes()
    assert message.properties == Properties(**properties)


def test_what_belongs_to_the_connection_of_the_publisher_is_not_forwarded() -> None:
    assert delivered(Stage(), topic_alias=7) == Properties()


def test_311_gets_a_message_without_its_properties() -> None:
    stage = Stage()
    subscriber = subscriber_of(stage, "t", version=MQTT_311)
    stage.connect("p").publish("t", b"x", content_type="text/plain")
    (message,) = subscriber.publishes()
    assert (message.topic, message.payload, message.properties) == ("t", b"x", Properties())


# --- subscription identifiers ----------------------------------------------------------------


@pytest.mark.spec("MQTT-3.3.4-3")
@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_carries_the_identifier_of_its_subscription(qos: int) -> None:
    stage = Stage()
    subscriber = stage.connect("s")
    subscriber.subscribe("t", qos=qos, identifier=268_435_455)
    stage.connect("p").publish("t", b"x", qos=qos)
    (message,) = subscriber.publishes()
    assert message.properties.subscription_identifiers == (268_435_455,)


@pytest.mark.spec("MQTT-3.3.4-3")
def test_a_retained_message_carries_the_identifier_of_the_subscription_it_is_sent_for() -> None:
    stage = Stage()
    stage.connect("p").publish("t", b"x", retain=True)
    subscriber = stage.connect("s")
    subscriber.subscribe("#", identifier=5)
    subscriber.publishes()
    subscriber.subscribe("t", identifier=6)
    (message,) = subscriber.publishes()
    assert message.properties.subscription_identifiers == (6,)


@pytest.mark.spec("MQTT-3.3.4-4")
def test_a_single_copy_carries_the_identifiers_of_all_its_subscriptions() -> None:
    stage = Stage()
    subscriber = stage.connect("s")
    subscriber.subscribe("a/b", identifier=1)
    subscriber.subscribe("a/+")
    subscriber.subscribe("a/#", identifier=3)
    subscriber.subscribe("b", identifier=4)
    stage.connect("p").publish("a/b", b"x")
    (message,) = subscriber.publishes()
    assert sorted(message.properties.subscription_identifiers) == [1, 3]


@pytest.mark.spec("MQTT-3.3.4-6")
def test_a_client_may_not_publish_with_a_subscription_identifier() -> None:
    client = Stage().connect("p")
    client.publish("t", b"x", subscription_identifiers=(1,))
    assert client.expect(Disconnect).reason_code == ReasonCode.PROTOCOL_ERROR
    assert client.is_closed


# --- what may not be published ---------------------------------------------------------------


class Guard:
    """Forbids to publish to "forbidden"."""

    def may_publish(self, client_id: str, topic: str) -> bool:
        return topic != "forbidden"

    def may_subscribe(self, client_id: str, filter: str) -> bool:
        return True


@pytest.mark.spec("v3:MQTT-3.3.5-2")
@pytest.mark.parametrize("topic", ["forbidden", "$SYS/broker/version", "a/" * 300])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_311_client_is_acknowledged_as_usual_but_nobody_gets_the_message(
    topic: str, qos: int
) -> None:
    stage = Stage(hooks=Hooks(authorizer=Guard()))
    subscriber = subscriber_of(stage, "#", "$SYS/#")
    client = stage.connect("p", version=MQTT_311)
    packet_id = client.publish(topic, b"x", qos=qos, retain=True)
    if qos == 1:
        client.expect(Puback)
    elif qos == 2:
        client.expect(Pubrec)
        client.send(Pubrel(packet_id))
        client.expect(Pubcomp)
    assert not client.is_closed
    assert subscriber.publishes() == []
    assert list(stage.store.retained()) == []


@pytest.mark.parametrize(
    ("topic", "reason_code"),
    [
        ("forbidden", ReasonCode.NOT_AUTHORIZED),
        ("$SYS/x", ReasonCode.NOT_AUTHORIZED),
        ("a/" * 300, ReasonCode.TOPIC_NAME_INVALID),
    ],
)
def test_a_client_of_5_is_told_why_its_message_is_not_taken(
    topic: str, reason_code: ReasonCode
) -> None:
    stage = Stage(hooks=Hooks(authorizer=Guard()))
    subscriber = subscriber_of(stage, "#", "$SYS/#")
    client = stage.connect("p")
    client.publish(topic, b"x", qos=1)
    assert client.expect(Puback).reason_code == reason_code
    client.publish(topic, b"x", qos=2)
    assert client.expect(Pubrec).reason_code == reason_code
    client.publish(topic, b"x", qos=0)
    assert not client.is_closed
    assert subscriber.publishes() == []
