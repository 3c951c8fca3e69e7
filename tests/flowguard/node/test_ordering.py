import pytest

from flowguard.codec.packets import Puback, Pubrec, Pubrel
from flowguard.types import Publish
from tests.support.stage import Client, Stage

NUMBERS = [b"%d" % number for number in range(20)]


def subscribed(stage: Stage, version: int, **properties: int) -> Client:
    client = stage.connect_durable("s", version=version, **properties)
    client.subscribe("a/#", qos=2)
    return client


def publishes(client: Client) -> list[Publish]:
    return client.publishes(acknowledge=False)


def test_nobody_waits_for_what_others_make_durable(version: int) -> None:
    """And everybody keeps the order of his own."""
    stage = Stage()
    stage.connect_durable("d", version=version).subscribe("kept", qos=1)
    plain = stage.connect("plain", version=version)
    plain.subscribe("fleeting", qos=1)
    first, second = (
        stage.connect("first", version=version),
        stage.connect("second", version=version),
    )
    stage.hold_commits = True
    first.publish("kept", b"1", qos=1)
    second.publish("fleeting", b"2", qos=1)
    assert second.expect(Puback).packet_id == 1
    assert [each.payload for each in plain.publishes()] == [b"2"]
    first.publish("fleeting", b"3", qos=1)
    assert second.subscribe("other", qos=1).reason_codes == (1,)
    assert not first.inbox
    assert not plain.publishes()
    stage.release_commits()
    assert [first.expect(Puback).packet_id for _ in range(2)] == [1, 2]
    assert [each.payload for each in plain.publishes()] == [b"3"]


@pytest.mark.spec("v3:MQTT-4.6.0-1")
@pytest.mark.parametrize("restart", [False, True], ids=["new connection", "restart"])
def test_messages_are_sent_again_in_the_order_of_the_first_time(
    version: int, restart: bool
) -> None:
    stage = Stage()
    subscriber = subscribed(stage, version)
    publisher = stage.connect("p", version=version)
    for position, number in enumerate(NUMBERS):
        publisher.publish("a", number, qos=1 + position % 2)
    sent = publishes(subscriber)
    if restart:
        stage.restart()
    else:
        subscriber.close()
    again = publishes(stage.connect_durable("s", version=version))
    assert [each.payload for each in again] == NUMBERS
    assert [each.packet_id for each in again] == [each.packet_id for each in sent]


@pytest.mark.spec("v3:MQTT-4.6.0-4")
@pytest.mark.parametrize("restart", [None, False, True], ids=["", "new connection", "restart"])
def test_pubrels_go_out_in_the_order_of_the_pubrecs(version: int, restart: bool | None) -> None:
    stage = Stage()
    subscriber = subscribed(stage, version)
    publisher = stage.connect("p", version=version)
    for number in NUMBERS:
        publisher.publish("a", number, qos=2)
    identifiers = [message.packet_id for message in publishes(subscriber)]
    subscriber.send(*(Pubrec(packet_id) for packet_id in identifiers))
    pubrels = [Pubrel(packet_id) for packet_id in identifiers]
    assert subscriber.take() == pubrels
    if restart is None:
        return
    if restart:
        stage.restart()
    else:
        subscriber.close()
    assert stage.connect_durable("s", version=version).take() == pubrels
