"""Message expiry: the interval that is left is forwarded, and what is too old is not sent."""

import pytest

from flowguard.types import MQTT_5, SESSION_NEVER_EXPIRES
from tests.support.readings import intervals
from tests.support.stage import Stage

GAP_S = 5


def absent_subscriber(stage: Stage, version: int = MQTT_5) -> None:
    subscriber = stage.connect_durable("s", version=version)
    subscriber.subscribe("t", qos=1)
    subscriber.close()


@pytest.mark.spec("MQTT-3.3.2-6")
def test_a_retained_message_ages_as_well() -> None:
    stage = Stage()
    stage.connect("p").publish("t", b"x", retain=True, message_expiry_interval=60)
    stage.advance(GAP_S)
    subscriber = stage.connect("s")
    subscriber.subscribe("t")
    assert intervals(subscriber) == [60 - GAP_S]


@pytest.mark.spec("MQTT-3.3.2-6")
def test_a_message_ages_while_the_broker_is_restarted() -> None:
    stage = Stage()
    absent_subscriber(stage)
    stage.connect("p").publish("t", b"x", qos=1, message_expiry_interval=60)
    stage.now_s += GAP_S
    stage.restart()
    assert intervals(stage.connect_durable("s")) == [60 - GAP_S]


@pytest.mark.spec("MQTT-3.3.2-5")
def test_an_expired_retained_message_is_gone(version: int) -> None:
    stage = Stage()
    stage.connect("p").publish("t", b"x", retain=True, message_expiry_interval=GAP_S)
    stage.advance(GAP_S + 1)
    subscriber = stage.connect("s", version=version)
    subscriber.subscribe("t")
    assert subscriber.publishes() == []
    assert list(stage.store.retained()) == []


@pytest.mark.spec("MQTT-3.3.2-5")
def test_a_retained_message_may_expire_while_its_subscriber_is_slow() -> None:
    stage = Stage()
    publisher = stage.connect("p")
    for topic in ("t/1", "t/2"):
        publisher.publish(topic, b"x", qos=1, retain=True, message_expiry_interval=GAP_S)
    subscriber = stage.connect("s", receive_maximum=1)
    subscriber.subscribe("t/#", qos=1)
    stage.advance(GAP_S + 1)
    assert len(subscriber.publishes()) == 1


def test_messages_without_an_interval_do_not_expire(version: int) -> None:
    stage = Stage()
    for_ever = {"session_expiry_interval": SESSION_NEVER_EXPIRES} if version == MQTT_5 else {}
    subscriber = stage.connect_durable("s", version=version, **for_ever)
    subscriber.subscribe("t", qos=1)
    subscriber.close()
    stage.connect("p", version=version).publish("t", b"x", qos=1)
    stage.now_s += 1e9
    stage.restart()
    assert len(stage.connect_durable("s", version=version).publishes()) == 1
