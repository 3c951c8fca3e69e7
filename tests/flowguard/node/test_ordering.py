import pytest

from flowguard.codec.packets import Puback, Pubcomp, Pubrec, Pubrel, Suback
from flowguard.types import Publish
from tests.support.readings import received
from tests.support.stage import Client, Stage

NUMBERS = [b"%d" % number for number in range(20)]


def subscribed(stage: Stage, version: int, **properties: int) -> Client:
    client = stage.connect_durable("s", version=version, **properties)
    client.subscribe("a/#", qos=2)
    return client


@pytest.mark.spec("MQTT-4.6.0-5", "MQTT-4.6.0-6", "v3:MQTT-4.6.0-5", "v3:MQTT-4.6.0-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("durable", [False, True])
def test_a_subscriber_gets_the_messages_of_a_publisher_in_order(
    version: int, qos: int, durable: bool
) -> None:
    stage = Stage()
    connect = stage.connect_durable if durable else stage.connect
    subscriber = connect("s", version=version)
    subscriber.subscribe("a", qos=2)
    publisher = connect("p", version=version)
    for number in NUMBERS:
        publisher.publish("a", number, qos=qos)
    assert [message.payload for message in subscriber.publishes()] == NUMBERS


def test_nobody_waits_for_what_others_make_durable(version: int) -> None:
    """All clients keep the order of their own messages."""
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


@pytest.mark.spec("MQTT-4.6.0-5", "v3:MQTT-4.6.0-6")
def test_order_holds_while_the_store_is_slow(version: int) -> None:
    stage = Stage()
    subscriber = subscribed(stage, version)
    plain = stage.connect("plain", version=version)
    plain.subscribe("a/#", qos=1)
    publisher = stage.connect("p", version=version)
    stage.hold_commits = True
    for number in NUMBERS[:10]:
        publisher.publish("a", number, qos=1)
    stage.release_commits()
    for number in NUMBERS[10:]:
        publisher.publish("a", number, qos=1)
    for client in (subscriber, plain):
        assert [message.payload for message in client.publishes()] == NUMBERS


@pytest.mark.spec("MQTT-4.6.0-5")
def test_a_message_to_clean_sessions_only_does_not_overtake_one_that_must_be_durable(
    version: int,
) -> None:
    stage = Stage()
    stage.connect_durable("durable", version=version).subscribe("a/1", qos=1)
    plain = stage.connect("plain", version=version)
    plain.subscribe("a/#", qos=1)
    publisher = stage.connect("p", version=version)
    stage.hold_commits = True
    publisher.publish("a/1", b"waits for the store", qos=1)
    publisher.publish("a/2", b"does not need it", qos=1)
    assert received(plain) == []
    stage.release_commits()
    assert [message.topic for message in plain.publishes()] == ["a/1", "a/2"]


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
    sent = received(subscriber)
    if restart:
        stage.restart()
    else:
        subscriber.close()
    again = received(stage.connect_durable("s", version=version))
    assert [each.payload for each in again] == NUMBERS
    assert [each.packet_id for each in again] == [each.packet_id for each in sent]


@pytest.mark.spec("v3:MQTT-4.6.0-2", "v3:MQTT-4.6.0-3")
@pytest.mark.parametrize("slow", [False, True])
def test_acknowledgements_go_out_in_the_order_of_the_messages(version: int, slow: bool) -> None:
    stage = Stage()
    subscribed(stage, version)
    publisher = stage.connect("p", version=version)
    stage.hold_commits = slow
    messages = [
        Publish("a" if number % 3 else "b", b"x", 1 + number % 2, packet_id=1 + number)
        for number in range(20)
    ]
    publisher.send(*messages)
    stage.release_commits()
    answers = publisher.take()
    assert [(type(each), each.packet_id) for each in answers] == [  # type: ignore[union-attr]
        (Puback if message.qos == 1 else Pubrec, message.packet_id) for message in messages
    ]


@pytest.mark.spec("v3:MQTT-4.6.0-4")
@pytest.mark.parametrize("restart", [None, False, True], ids=["", "new connection", "restart"])
def test_pubrels_go_out_in_the_order_of_the_pubrecs(version: int, restart: bool | None) -> None:
    stage = Stage()
    subscriber = subscribed(stage, version)
    publisher = stage.connect("p", version=version)
    for number in NUMBERS:
        publisher.publish("a", number, qos=2)
    identifiers = [message.packet_id for message in received(subscriber)]
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


def test_requests_of_a_client_are_answered_in_their_order_though_some_wait_for_the_store(
    version: int,
) -> None:
    stage = Stage()
    subscribed(stage, version)
    client = stage.connect("c", version=version)
    stage.hold_commits = True
    client.send(Publish("a", b"x", 1, packet_id=1), Publish("b", b"x", 1, packet_id=2))
    client.send(Publish("b", b"x", 2, packet_id=3))
    client.send(Publish("b", b"x", 1, packet_id=4))
    assert client.take() == []
    stage.release_commits()
    answers = client.take()
    assert [each.packet_id for each in answers] == [1, 2, 3, 4]  # type: ignore[union-attr]


def test_a_message_published_after_suback_is_never_missed(version: int) -> None:
    stage = Stage()
    client = stage.connect_durable("c", version=version)
    publisher = stage.connect("p", version=version)
    stage.hold_commits = True
    publisher.publish("x", b"x", qos=1)
    assert Suback not in map(type, client.take())
    stage.hold_commits = False
    client.subscribe("a", qos=1)
    publisher.publish("a", b"x", qos=1)
    (message,) = received(client)
    client.send(Pubcomp(message.packet_id), Puback(message.packet_id))
    assert message.payload == b"x"
