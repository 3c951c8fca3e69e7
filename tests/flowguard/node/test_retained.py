"""Retained messages: which are kept and removed, which clients get them, and with which flag."""

import pytest

from flowguard.codec.packets import Puback
from flowguard.flow import Reason
from flowguard.node.upkeep.sys_topics import SysTopics
from flowguard.types import MQTT_5, MQTT_311, Publish, ReasonCode
from tests.support.stage import Client, Stage


def retain(
    stage: Stage, topic: str, payload: bytes, *, qos: int = 0, version: int = MQTT_5
) -> None:
    stage.connect(version=version).publish(topic, payload, qos=qos, retain=True)


def seen_by_new(stage: Stage, filter: str = "#", qos: int = 2) -> list[Publish]:
    """Return the messages that a new subscriber gets for its subscription."""
    subscriber = stage.connect()
    subscriber.subscribe(filter, qos=qos)
    return subscriber.publishes()


def payloads(messages: list[Publish]) -> list[bytes]:
    return [message.payload for message in messages]


# --- kept, replaced, removed -----------------------------------------------------------------


@pytest.mark.spec("MQTT-3.3.1-5", "v3:MQTT-3.3.1-5", "v3:MQTT-3.3.1-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_retained_message_waits_with_its_qos_for_future_subscribers(
    version: int, qos: int
) -> None:
    stage = Stage()
    retain(stage, "a/b", b"kept", qos=qos, version=version)
    (message,) = seen_by_new(stage, "a/+")
    assert (message.topic, message.payload, message.qos) == ("a/b", b"kept", qos)


def test_a_retained_message_comes_at_most_with_the_qos_of_the_subscription() -> None:
    stage = Stage()
    retain(stage, "t", b"kept", qos=2)
    assert [message.qos for message in seen_by_new(stage, qos=1)] == [1]


@pytest.mark.spec("MQTT-3.3.1-5", "v3:MQTT-3.3.1-7")
@pytest.mark.parametrize(("old_qos", "new_qos"), [(0, 0), (1, 0), (2, 0), (0, 2)])
def test_the_last_retained_message_of_a_topic_replaces_the_one_before(
    version: int, old_qos: int, new_qos: int
) -> None:
    stage = Stage()
    retain(stage, "t", b"old", qos=old_qos, version=version)
    retain(stage, "t", b"new", qos=new_qos, version=version)
    assert payloads(seen_by_new(stage)) == [b"new"]


@pytest.mark.spec("v3:MQTT-3.3.1-6")
def test_every_matching_topic_has_its_own_retained_message(version: int) -> None:
    stage = Stage()
    for topic in ("a/1", "a/2", "b/1"):
        retain(stage, topic, topic.encode(), version=version)
    assert sorted(payloads(seen_by_new(stage, "a/#"))) == [b"a/1", b"a/2"]


@pytest.mark.spec("MQTT-3.3.1-6", "v3:MQTT-3.3.1-10")
def test_an_empty_payload_removes_the_retained_message_and_is_forwarded(version: int) -> None:
    stage = Stage()
    retain(stage, "t", b"old", version=version)
    standing = stage.connect("s", version=version)
    standing.subscribe("t")
    standing.publishes()
    retain(stage, "t", b"", version=version)
    assert payloads(standing.publishes()) == [b""]
    assert seen_by_new(stage) == []


@pytest.mark.spec("MQTT-3.3.1-7", "v3:MQTT-3.3.1-11")
def test_an_empty_payload_is_never_retained(version: int) -> None:
    stage = Stage()
    retain(stage, "t", b"", qos=1, version=version)
    assert seen_by_new(stage) == []
    assert list(stage.store.retained()) == []


@pytest.mark.spec("MQTT-3.3.1-8", "v3:MQTT-3.3.1-12")
@pytest.mark.parametrize("payload", [b"live", b""])
def test_a_message_without_retain_leaves_the_retained_one_alone(
    version: int, payload: bytes
) -> None:
    stage = Stage()
    retain(stage, "t", b"kept", version=version)
    publisher = stage.connect("p", version=version)
    publisher.publish("t", payload)
    publisher.publish("other", payload)
    assert payloads(seen_by_new(stage)) == [b"kept"]


def test_retained_messages_survive_a_restart(version: int) -> None:
    stage = Stage()
    retain(stage, "t", b"kept", version=version)
    retain(stage, "gone", b"old", version=version)
    retain(stage, "gone", b"", version=version)
    stage.restart()
    assert payloads(seen_by_new(stage)) == [b"kept"]


# --- the flag --------------------------------------------------------------------------------


@pytest.mark.spec("v3:MQTT-3.3.1-8")
def test_a_message_sent_for_a_new_subscription_has_the_flag(version: int) -> None:
    stage = Stage()
    retain(stage, "t", b"kept")
    subscriber = stage.connect("s", version=version)
    subscriber.subscribe("t")
    assert [message.retain for message in subscriber.publishes()] == [True]


@pytest.mark.spec("MQTT-3.3.1-12", "v3:MQTT-3.3.1-9")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_sent_for_a_standing_subscription_has_no_flag(version: int, qos: int) -> None:
    stage = Stage()
    subscriber = stage.connect("s", version=version)
    subscriber.subscribe("t", qos=qos)
    retain(stage, "t", b"live", qos=qos, version=version)
    assert [message.retain for message in subscriber.publishes()] == [False]


@pytest.mark.spec("MQTT-3.3.1-12", "v3:MQTT-3.3.1-9")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publisher_gets_its_own_message_without_the_flag_as_well(version: int, qos: int) -> None:
    client = Stage().connect("c", version=version)
    client.subscribe("t", qos=qos)
    client.publish("t", b"live", qos=qos, retain=True)
    assert [message.retain for message in client.publishes()] == [False]


@pytest.mark.spec("MQTT-3.3.1-13")
@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("qos", [0, 1])
def test_retain_as_published_keeps_the_flag_of_the_publisher(flag: bool, qos: int) -> None:
    stage = Stage()
    subscriber = stage.connect("s")
    subscriber.subscribe("t", qos=qos, retain_as_published=True)
    stage.connect("p").publish("t", b"live", qos=qos, retain=flag)
    assert [message.retain for message in subscriber.publishes()] == [flag]


# --- retain handling -------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.3.1-9", "v3:MQTT-3.3.1-6")
def test_retain_handling_0_sends_them_on_every_subscribe(version: int) -> None:
    stage = Stage()
    retain(stage, "t", b"kept")
    subscriber = stage.connect("s", version=version)
    for _ in range(2):
        subscriber.subscribe("t")
        assert payloads(subscriber.publishes()) == [b"kept"]


@pytest.mark.spec("MQTT-3.3.1-10")
def test_retain_handling_1_sends_them_only_for_a_new_subscription() -> None:
    stage = Stage()
    retain(stage, "t", b"kept")
    subscriber = stage.connect("s")
    subscriber.subscribe("t", retain_handling=1)
    assert payloads(subscriber.publishes()) == [b"kept"]
    subscriber.subscribe("t", qos=1, retain_handling=1)
    assert subscriber.publishes() == []
    subscriber.unsubscribe("t")
    subscriber.subscribe("t", retain_handling=1)
    assert payloads(subscriber.publishes()) == [b"kept"]


@pytest.mark.spec("MQTT-3.3.1-10")
def test_retain_handling_1_knows_the_subscriptions_of_a_resumed_session() -> None:
    stage = Stage()
    retain(stage, "t", b"kept")
    stage.connect_durable("s").subscribe("t", retain_handling=1)
    again = stage.connect_durable("s")
    again.subscribe("t", retain_handling=1)
    assert again.publishes() == []


@pytest.mark.spec("MQTT-3.3.1-11")
def test_retain_handling_2_sends_none() -> None:
    stage = Stage()
    retain(stage, "t", b"kept")
    subscriber = stage.connect("s")
    subscriber.subscribe("t", retain_handling=2)
    assert subscriber.publishes() == []


# --- pace and bounds -------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1])
def test_more_retained_messages_than_receive_maximum_come_at_the_pace_of_the_client(
    qos: int,
) -> None:
    stage = Stage()
    for number in range(50):
        retain(stage, f"t/{number}", b"kept", qos=qos)
    subscriber = stage.connect("s", receive_maximum=3)
    subscriber.subscribe("t/#", qos=qos)
    assert len(subscriber.publishes(acknowledge=True)) == 50


def test_retained_messages_come_before_messages_published_later(version: int) -> None:
    stage = Stage()
    for number in range(5):
        retain(stage, f"t/{number}", b"kept", qos=1)
    subscriber = stage.connect("s", version=version)
    subscriber.subscribe("t/#", qos=1)
    stage.connect("p").publish("t/0", b"live", qos=1)
    assert payloads(subscriber.publishes())[-1] == b"live"


def refused_of(client: Client) -> int:
    return client.expect(Puback).reason_code


def test_where_no_more_is_kept_the_publisher_is_told() -> None:
    stage = Stage({"node": {"retained_messages_max": 1}})
    client = stage.connect("p")
    client.publish("first", b"x", qos=1, retain=True)
    assert refused_of(client) != ReasonCode.QUOTA_EXCEEDED
    client.publish("second", b"x", qos=1, retain=True)
    assert refused_of(client) == ReasonCode.QUOTA_EXCEEDED
    client.publish("first", b"y", qos=1, retain=True)
    assert refused_of(client) != ReasonCode.QUOTA_EXCEEDED
    assert payloads(seen_by_new(stage)) == [b"y"]


def test_topics_of_the_broker_take_no_place_of_its_clients() -> None:
    stage = Stage({"node": {"retained_messages_max": 2}})
    topics = SysTopics(stage.node, stage.now_s)
    client = stage.connect("p")
    client.publish("first", b"x", qos=1, retain=True)
    topics.publish(stage.now_s)
    assert len(stage.node.router.retained) > 50
    client.publish("second", b"x", qos=1, retain=True)
    client.publish("third", b"x", qos=1, retain=True)
    codes = [packet.reason_code for packet in client.take() if isinstance(packet, Puback)]
    assert [code == ReasonCode.QUOTA_EXCEEDED for code in codes] == [False, False, True]
    client.publish("first", b"", qos=1, retain=True)
    client.publish("third", b"x", qos=1, retain=True)
    stage.node.router.retained.discard("$SYS/broker/version")
    topics.publish(stage.now_s)
    client.publish("fourth", b"x", qos=1, retain=True)
    codes = [packet.reason_code for packet in client.take() if isinstance(packet, Puback)]
    assert [code == ReasonCode.QUOTA_EXCEEDED for code in codes] == [False, False, True]


def test_a_311_publisher_is_acknowledged_all_the_same() -> None:
    stage = Stage({"node": {"retained_messages_max": 0}})
    client = stage.connect("p", version=MQTT_311)
    client.publish("t", b"x", qos=1, retain=True)
    client.expect(Puback)
    assert not client.is_closed


@pytest.mark.parametrize("qos", [0, 1])
def test_who_cannot_be_told_is_forwarded_and_leaves_no_stale_message(qos: int) -> None:
    stage = Stage({"node": {"retained_bytes_max": 1_000}})
    subscriber = stage.connect("s")
    subscriber.subscribe("t", qos=qos)
    client = stage.connect("p", version=MQTT_311)
    client.publish("t", b"old", qos=qos, retain=True)
    client.publish("t", b"new" * 1_000, qos=qos, retain=True)
    assert payloads(subscriber.publishes()) == [b"old", b"new" * 1_000]
    assert payloads(seen_by_new(stage)) == []
    assert stage.node.counters.dropped == {Reason.RETAINED_FULL: 1}
