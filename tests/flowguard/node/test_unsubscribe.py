import pytest

from flowguard.codec.packets import Puback, Pubcomp, Pubrec, Pubrel, Suback, Unsuback, Unsubscribe
from flowguard.types import MQTT_5, Properties, Publish
from tests.support.readings import payloads
from tests.support.stage import Stage

REMOVED, NOTHING_THERE = 0x00, 0x11


@pytest.mark.spec("MQTT-3.10.4-4", "MQTT-3.10.4-5", "MQTT-2.2.1-6", "v3:MQTT-2.3.1-7")
@pytest.mark.spec("v3:MQTT-3.10.4-4", "v3:MQTT-3.10.4-5")
def test_every_unsubscribe_gets_an_unsuback_also_if_nothing_was_there(version: int) -> None:
    client = Stage().connect("c", version=version)
    client.subscribe("a")
    for packet_id, code in ((1, REMOVED), (65_535, NOTHING_THERE)):
        client.send(Unsubscribe(packet_id, ("a",)))
        assert client.take() == [Unsuback(packet_id, (code,) if version == MQTT_5 else ())]


@pytest.mark.spec("MQTT-3.10.4-6", "v3:MQTT-3.10.4-6")
def test_several_filters_in_one_packet_are_all_removed(version: int) -> None:
    stage = Stage()
    client = stage.connect("c", version=version)
    client.subscribe("a", "b", "c")
    client.send(Unsubscribe(7, ("c", "a", "c")))
    codes = (REMOVED, REMOVED, NOTHING_THERE)
    assert client.take() == [Unsuback(7, codes if version == MQTT_5 else ())]
    for topic in ("a", "b", "c"):
        stage.connect("p").publish(topic, topic.encode())
    assert payloads(client) == [b"b"]


@pytest.mark.spec("MQTT-3.11.3-1", "MQTT-3.11.3-2")
def test_the_codes_follow_the_order_of_the_filters() -> None:
    client = Stage().connect("c")
    client.subscribe("a", "c", "$share/g/a")
    answer = client.unsubscribe("b", "a", "a", "$share/g/a", "$share/h/a", "c", "a/#")
    assert answer.reason_codes == (0x11, 0x00, 0x11, 0x00, 0x11, 0x00, 0x11)


@pytest.mark.spec("MQTT-3.10.4-1", "v3:MQTT-3.10.4-1")
def test_only_the_very_same_filter_is_removed(version: int) -> None:
    stage = Stage()
    client = stage.connect("c", version=version)
    client.subscribe("a/+")
    client.unsubscribe("a/b", "a/#", "A/+", "$share/g/a/+", "/a/+", "#")
    stage.connect("p", version=version).publish("a/b", b"x")
    assert payloads(client) == [b"x"]


@pytest.mark.spec("MQTT-3.10.4-2", "v3:MQTT-3.10.4-2")
def test_nothing_new_is_queued_for_a_removed_filter(version: int) -> None:
    stage = Stage()
    client = stage.connect_durable("c", version=version)
    client.subscribe("a", "$share/g/a", qos=1)
    client.unsubscribe("a", "$share/g/a")
    publisher = stage.connect("p", version=version)
    publisher.publish("a", b"while here", qos=1)
    client.close()
    publisher.publish("a", b"while away", qos=1)
    assert payloads(stage.connect_durable("c", version=version)) == []
    stage.restart()
    stage.connect("p", version=version).publish("a", b"after a restart", qos=1)
    assert payloads(stage.connect_durable("c", version=version)) == []


@pytest.mark.spec("MQTT-3.10.4-3", "v3:MQTT-3.10.4-3")
def test_deliveries_already_begun_are_completed(version: int) -> None:
    stage = Stage()
    client = stage.connect_durable("c", version=version)
    client.subscribe("a", qos=2)
    publisher = stage.connect("p", version=version)
    publisher.publish("a", b"one", qos=1)
    publisher.publish("a", b"two", qos=2)
    one, two = client.publishes(acknowledge=False)
    client.unsubscribe("a")
    client.close()
    client = stage.connect_durable("c", version=version)
    assert [message.payload for message in client.publishes(acknowledge=False)] == [b"one", b"two"]
    client.send(Puback(one.packet_id), Pubrec(two.packet_id))
    assert client.expect(Pubrel) == Pubrel(two.packet_id)
    client.send(Pubcomp(two.packet_id))
    assert not stage.node.registry.sessions["c"].inflight.messages


def test_other_subscribers_of_the_filter_keep_theirs(version: int) -> None:
    stage = Stage()
    leaver, stayer = (stage.connect(name, version=version) for name in ("leaver", "stayer"))
    for client in (leaver, stayer):
        client.subscribe("a", "$share/g/b")
    leaver.unsubscribe("a", "$share/g/b")
    for topic in ("a", "b", "b"):
        stage.connect("p", version=version).publish(topic)
    assert [message.topic for message in stayer.publishes()] == ["a", "b", "b"]
    assert leaver.publishes() == []


def test_unsuback_waits_until_the_removal_is_durable(version: int) -> None:
    stage = Stage()
    client = stage.connect_durable("c", version=version)
    client.subscribe("a")
    stage.hold_commits = True
    client.send(Unsubscribe(3, ("a",)), Publish("b", b""))
    assert client.take() == []
    stage.release_commits()
    assert client.take() == [Unsuback(3, (REMOVED,) if version == MQTT_5 else ())]


@pytest.mark.spec("MQTT-3.9.2-1", "MQTT-3.9.2-2", "MQTT-3.11.2-1", "MQTT-3.11.2-2")
def test_suback_and_unsuback_have_nothing_that_could_be_left_out_for_their_size() -> None:
    """Not even with a refusal to explain: no reason string, no user properties."""
    client = Stage({"session": {"topic_levels_max": 2}}).connect("c")
    smallest = Properties(maximum_packet_size=2 + 2 + 1 + 2)
    client.connection.outbound.limit_packets(smallest)
    assert client.subscribe("a/b/c", "a") == Suback(1, (0x8F, 0))
    assert client.unsubscribe("b", "a") == Unsuback(2, (NOTHING_THERE, REMOVED))
