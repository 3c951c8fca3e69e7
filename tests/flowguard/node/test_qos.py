import pytest

from flowguard.codec.packets import Puback, Pubcomp, Pubrec, Pubrel
from flowguard.records import packet_id_of
from flowguard.types import MQTT_5, Publish, ReasonCode
from tests.support.readings import payloads
from tests.support.stage import Client, Stage


def subscribed(stage: Stage, version: int, qos: int, *, durable: bool = True) -> Client:
    connect = stage.connect_durable if durable else stage.connect
    client = connect("s", version=version)
    client.subscribe("a", qos=qos)
    return client


# --- from the client -------------------------------------------------------------------------


@pytest.mark.spec("MQTT-4.3.2-4", "MQTT-4.3.3-8", "v3:MQTT-4.3.2-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_is_acknowledged_once_it_is_owned_and_not_before(version: int, qos: int) -> None:
    stage = Stage()
    subscribed(stage, version, 2).close()
    client = stage.connect("p", version=version)
    stage.hold_commits = True
    client.send(Publish("a", b"x", qos, packet_id=5))
    assert client.take() == []
    stage.release_commits()
    assert client.take() == [Puback(5) if qos == 1 else Pubrec(5)]
    stage.restart()
    assert payloads(stage.connect_durable("s", version=version)) == [b"x"]


@pytest.mark.spec("MQTT-4.3.3-9", "MQTT-3.5.2-1")
def test_after_a_failing_pubrec_the_identifier_means_a_new_message() -> None:
    stage = Stage({"node": {"retained_messages_max": 0}})
    subscriber = subscribed(stage, MQTT_5, 2)
    client = stage.connect_durable("p")
    client.send(Publish("a", b"refused", 2, retain=True, packet_id=5))
    assert client.take() == [Pubrec(5, ReasonCode.QUOTA_EXCEEDED)]
    client.send(Publish("a", b"new", 2, packet_id=5))
    assert client.take() == [Pubrec(5)]
    assert payloads(subscriber) == [b"new"]


@pytest.mark.spec("MQTT-3.4.2-1", "MQTT-3.5.2-1")
def test_a_publisher_learns_that_nobody_subscribes() -> None:
    client = Stage().connect("c")
    one, two = client.publish("a", qos=1), client.publish("a", qos=2)
    code = ReasonCode.NO_MATCHING_SUBSCRIBERS
    assert client.take() == [Puback(one, code), Pubrec(two, code)]


# --- to the client ---------------------------------------------------------------------------


@pytest.mark.spec("MQTT-2.2.1-4", "v3:MQTT-2.3.1-4")
@pytest.mark.parametrize("qos", [1, 2])
def test_an_identifier_in_use_is_not_given_to_another_message(version: int, qos: int) -> None:
    stage = Stage()
    subscriber = subscribed(stage, version, qos)
    publisher = stage.connect("p", version=version)
    publisher.publish("a", b"stuck", qos=qos)
    (stuck,) = subscriber.publishes(acknowledge=False)
    session = stage.node.registry.sessions["s"]
    period = next(n for n in range(2, 70_000) if packet_id_of(n, qos) == stuck.packet_id)
    session.next_pos = period  # as if that many messages had gone to others meanwhile
    publisher.publish("a", b"goes on", qos=qos)
    if qos == 2:
        (other,) = subscriber.publishes()
        subscriber.send(Pubrec(stuck.packet_id))
        subscriber.expect(Pubrel)
        session.next_pos = session.next_pos - 1 + period  # PUBREL still owns it.
        publisher.publish("a", b"goes on", qos=qos)
        subscriber.send(Pubcomp(stuck.packet_id))
    (other,) = subscriber.publishes()
    assert (other.payload, other.packet_id != stuck.packet_id) == (b"goes on", True)
    if qos == 1:
        subscriber.send(Puback(stuck.packet_id))
    subscriber.close()
    stage.restart()
    assert payloads(stage.connect_durable("s", version=version)) == [], "both are settled"
