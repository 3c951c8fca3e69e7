import pytest

from flowguard.codec.packets import Pubrec, Pubrel
from tests.flowguard.session.sessions import Client, Sessions
from tests.support.readings import received

NUMBERS = [b"%d" % number for number in range(20)]


def subscribed(sessions: Sessions, version: int, **properties: int) -> Client:
    client = sessions.connect_durable("s", version=version, **properties)
    client.subscribe("a/#", qos=2)
    return client


@pytest.mark.spec("MQTT-4.6.0-5", "v3:MQTT-4.6.0-6")
@pytest.mark.parametrize("qos", [1, 2])
def test_order_holds_through_queue_window_and_new_connections(version: int, qos: int) -> None:
    sessions = Sessions({"session": {"inflight_max": 3}})
    subscriber = subscribed(sessions, version)
    publisher = sessions.connect("p", version=version)
    found: list[bytes] = []
    for number in NUMBERS:
        publisher.publish("a", number, qos=qos)
        if number in (b"4", b"11"):
            subscriber.close()
        if number in (b"8", b"15"):
            subscriber = sessions.connect_durable("s", version=version)
            found += [each.payload for each in subscriber.publishes()]
    found += [each.payload for each in subscriber.publishes()]
    assert found == NUMBERS


@pytest.mark.spec("v3:MQTT-4.6.0-4")
def test_pubrels_follow_the_pubrecs_even_if_those_come_in_another_order(version: int) -> None:
    sessions = Sessions()
    subscriber = subscribed(sessions, version)
    publisher = sessions.connect("p", version=version)
    for number in NUMBERS[:3]:
        publisher.publish("a", number, qos=2)
    one, two, three = (message.packet_id for message in received(subscriber))
    subscriber.send(Pubrec(three), Pubrec(one), Pubrec(two))
    assert subscriber.take() == [Pubrel(three), Pubrel(one), Pubrel(two)]
    subscriber.close()
    again = sessions.connect_durable("s", version=version)
    assert again.take() == [Pubrel(three), Pubrel(one), Pubrel(two)]
