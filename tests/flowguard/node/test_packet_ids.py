"""A message that is never acknowledged keeps its packet identifier, and holds up no other one."""

import pytest

from flowguard.records import QOS_1_IDS
from flowguard.types import Publish
from tests.support.readings import numbers
from tests.support.stage import Stage

STUCK = 3
MORE = 20


def almost_a_lap(stage: Stage, ahead: int = 1) -> None:
    """As many messages as make one of the next want the identifier of the first that is stuck."""
    stage.node.registry.sessions["s"].next_pos += QOS_1_IDS - STUCK - ahead


def publish(stage: Stage, numbers: range, qos: int, *, together: bool) -> None:
    publisher = stage.connect("p")
    packets = [Publish("a", b"%d" % n, qos, packet_id=n + 1) for n in numbers]
    if together:
        publisher.send(*packets)
    else:
        for packet in packets:
            publisher.send(packet)


@pytest.mark.spec("MQTT-4.4.0-1", "v3:MQTT-4.4.0-1")
def test_they_come_again_with_their_identifiers_after_a_restart(version: int) -> None:
    stage = Stage()
    client = stage.connect_durable("s", version=version)
    client.subscribe("a", qos=1)
    publish(stage, range(STUCK), 1, together=False)
    sent = client.publishes(acknowledge=False)
    almost_a_lap(stage)
    publish(stage, range(STUCK, MORE), 1, together=False)
    sent += client.publishes(acknowledge=False)
    stage.restart()
    again = stage.connect_durable("s", version=version).publishes()
    assert [(message.payload, message.packet_id) for message in again] == [
        (message.payload, message.packet_id) for message in sent
    ]
    assert len(again) == MORE


@pytest.mark.spec("MQTT-4.4.0-1")
def test_retained_messages_pass_over_identifiers_in_use() -> None:
    stage = Stage()
    publisher = stage.connect("r")
    for number in range(MORE):
        publisher.publish(f"r/{number:02}", b"%d" % number, qos=1, retain=True)
    client = stage.connect_durable("s")
    client.subscribe("a", qos=1)
    publish(stage, range(STUCK), 1, together=False)
    assert numbers(client, acknowledge=False) == list(range(STUCK))
    almost_a_lap(stage)
    client.subscribe("r/+", qos=1)
    assert numbers(client) == list(range(MORE))
