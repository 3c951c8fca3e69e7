import pytest

from flowguard.codec.packets import Puback, Pubcomp, Pubrec, Pubrel, Suback
from flowguard.types import Publish
from tests.flowguard.session.sessions import Client, Sessions

NUMBERS = [b"%d" % number for number in range(20)]


def subscribed(sessions: Sessions, version: int, **properties: int) -> Client:
    client = sessions.connect_durable("s", version=version, **properties)
    client.subscribe("a/#", qos=2)
    return client


def publishes(client: Client) -> list[Publish]:
    return client.publishes(acknowledge=False)


@pytest.mark.spec("MQTT-4.6.0-5", "MQTT-4.6.0-6", "v3:MQTT-4.6.0-5", "v3:MQTT-4.6.0-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("durable", [False, True])
def test_a_subscriber_gets_the_messages_of_a_publisher_in_order(
    version: int, qos: int, durable: bool
) -> None:
    sessions = Sessions()
    connect = sessions.connect_durable if durable else sessions.connect
    subscriber = connect("s", version=version)
    subscriber.subscribe("a", qos=2)
    publisher = connect("p", version=version)
    for number in NUMBERS:
        publisher.publish("a", number, qos=qos)
    assert [message.payload for message in subscriber.publishes()] == NUMBERS


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


@pytest.mark.spec("MQTT-4.6.0-5", "v3:MQTT-4.6.0-6")
def test_order_holds_while_the_store_is_slow(version: int) -> None:
    sessions = Sessions()
    subscriber = subscribed(sessions, version)
    plain = sessions.connect("plain", version=version)
    plain.subscribe("a/#", qos=1)
    publisher = sessions.connect("p", version=version)
    sessions.hold_commits = True
    for number in NUMBERS[:10]:
        publisher.publish("a", number, qos=1)
    sessions.release_commits()
    for number in NUMBERS[10:]:
        publisher.publish("a", number, qos=1)
    for client in (subscriber, plain):
        assert [message.payload for message in client.publishes()] == NUMBERS


@pytest.mark.spec("MQTT-4.6.0-5")
def test_a_message_to_clean_sessions_only_does_not_overtake_one_that_must_be_durable(
    version: int,
) -> None:
    sessions = Sessions()
    sessions.connect_durable("durable", version=version).subscribe("a/1", qos=1)
    plain = sessions.connect("plain", version=version)
    plain.subscribe("a/#", qos=1)
    publisher = sessions.connect("p", version=version)
    sessions.hold_commits = True
    publisher.publish("a/1", b"waits for the store", qos=1)
    publisher.publish("a/2", b"does not need it", qos=1)
    assert publishes(plain) == []
    sessions.release_commits()
    assert [message.topic for message in plain.publishes()] == ["a/1", "a/2"]


@pytest.mark.spec("v3:MQTT-4.6.0-2", "v3:MQTT-4.6.0-3")
@pytest.mark.parametrize("slow", [False, True])
def test_acknowledgements_go_out_in_the_order_of_the_messages(version: int, slow: bool) -> None:
    sessions = Sessions()
    subscribed(sessions, version)
    publisher = sessions.connect("p", version=version)
    sessions.hold_commits = slow
    messages = [
        Publish("a" if number % 3 else "b", b"x", 1 + number % 2, packet_id=1 + number)
        for number in range(20)
    ]
    publisher.send(*messages)
    sessions.release_commits()
    answers = publisher.take()
    assert [(type(each), each.packet_id) for each in answers] == [  # type: ignore[union-attr]
        (Puback if message.qos == 1 else Pubrec, message.packet_id) for message in messages
    ]


@pytest.mark.spec("v3:MQTT-4.6.0-4")
def test_pubrels_follow_the_pubrecs_even_if_those_come_in_another_order(version: int) -> None:
    sessions = Sessions()
    subscriber = subscribed(sessions, version)
    publisher = sessions.connect("p", version=version)
    for number in NUMBERS[:3]:
        publisher.publish("a", number, qos=2)
    one, two, three = (message.packet_id for message in publishes(subscriber))
    subscriber.send(Pubrec(three), Pubrec(one), Pubrec(two))
    assert subscriber.take() == [Pubrel(three), Pubrel(one), Pubrel(two)]
    subscriber.close()
    again = sessions.connect_durable("s", version=version)
    assert again.take() == [Pubrel(three), Pubrel(one), Pubrel(two)]


def test_requests_of_a_client_are_answered_in_their_order_though_some_wait_for_the_store(
    version: int,
) -> None:
    sessions = Sessions()
    subscribed(sessions, version)
    client = sessions.connect("c", version=version)
    sessions.hold_commits = True
    client.send(Publish("a", b"x", 1, packet_id=1), Publish("b", b"x", 1, packet_id=2))
    client.send(Publish("b", b"x", 2, packet_id=3))
    client.send(Publish("b", b"x", 1, packet_id=4))
    assert client.take() == []
    sessions.release_commits()
    answers = client.take()
    assert [each.packet_id for each in answers] == [1, 2, 3, 4]  # type: ignore[union-attr]


def test_a_message_published_after_suback_is_never_missed(version: int) -> None:
    sessions = Sessions()
    client = sessions.connect_durable("c", version=version)
    publisher = sessions.connect("p", version=version)
    sessions.hold_commits = True
    publisher.publish("x", b"x", qos=1)
    assert Suback not in map(type, client.take())
    sessions.hold_commits = False
    client.subscribe("a", qos=1)
    publisher.publish("a", b"x", qos=1)
    (message,) = publishes(client)
    client.send(Pubcomp(message.packet_id), Puback(message.packet_id))
    assert message.payload == b"x"
