"""Message expiry: the interval that is left is forwarded, and what is too old is not sent."""

import pytest

from flowguard.types import MQTT_5
from tests.flowguard.session.sessions import Sessions
from tests.support.readings import intervals

GAP_S = 5


def absent_subscriber(sessions: Sessions, version: int = MQTT_5) -> None:
    subscriber = sessions.connect_durable("s", version=version)
    subscriber.subscribe("t", qos=1)
    subscriber.close()


@pytest.mark.spec("MQTT-3.3.2-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_that_did_not_wait_keeps_its_interval(qos: int) -> None:
    sessions = Sessions()
    subscriber = sessions.connect("s")
    subscriber.subscribe("t", qos=qos)
    sessions.connect("p").publish("t", b"x", qos=qos, message_expiry_interval=60)
    assert intervals(subscriber) == [60]


@pytest.mark.spec("MQTT-3.3.2-6")
def test_a_message_that_waited_in_a_session_has_that_much_less() -> None:
    sessions = Sessions()
    absent_subscriber(sessions)
    sessions.connect("p").publish("t", b"x", qos=1, message_expiry_interval=60)
    sessions.advance(GAP_S)
    assert intervals(sessions.connect_durable("s")) == [60 - GAP_S]


@pytest.mark.spec("MQTT-3.3.2-6")
def test_each_subscriber_gets_the_interval_left_at_its_own_delivery() -> None:
    sessions = Sessions()
    absent_subscriber(sessions)
    live = sessions.connect("live")
    live.subscribe("t", qos=1)
    sessions.connect("p").publish("t", b"x", qos=1, message_expiry_interval=60)
    assert intervals(live) == [60]
    sessions.advance(GAP_S)
    assert intervals(sessions.connect_durable("s")) == [60 - GAP_S]


@pytest.mark.spec("MQTT-3.3.2-5")
def test_a_message_that_expired_in_a_session_is_not_sent(version: int) -> None:
    sessions = Sessions()
    absent_subscriber(sessions, version)
    publisher = sessions.connect("p")
    publisher.publish("t", b"short", qos=1, message_expiry_interval=GAP_S)
    publisher.publish("t", b"long", qos=1, message_expiry_interval=60)
    sessions.advance(GAP_S + 1)
    again = sessions.connect_durable("s", version=version)
    assert [message.payload for message in again.publishes()] == [b"long"]


@pytest.mark.spec("MQTT-3.3.2-5")
def test_an_expired_message_is_deleted_from_the_store_as_well() -> None:
    sessions = Sessions()
    absent_subscriber(sessions)
    sessions.connect("p").publish("t", b"short", qos=1, message_expiry_interval=GAP_S)
    sessions.advance(GAP_S + 1)
    sessions.connect_durable("s")
    assert sessions.store.fetch("s", 0, 10) == []


@pytest.mark.spec("MQTT-3.3.2-5")
def test_a_message_may_expire_while_its_subscriber_has_no_place_for_it() -> None:
    sessions = Sessions()
    subscriber = sessions.connect("s", receive_maximum=1)
    subscriber.subscribe("t", qos=1)
    publisher = sessions.connect("p")
    publisher.publish("t", b"first", qos=1, message_expiry_interval=GAP_S)
    publisher.publish("t", b"second", qos=1, message_expiry_interval=GAP_S)
    sessions.advance(GAP_S + 1)
    assert [message.payload for message in subscriber.publishes()] == [b"first"]
