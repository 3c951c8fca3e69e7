import pytest

from flowguard.codec.packets import Pubcomp, Pubrec, Pubrel
from flowguard.flow import Reason
from flowguard.types import Publish
from tests.flowguard.session.sessions import Client, Sessions
from tests.support.readings import summary


def away(sessions: Sessions, version: int, *, qos: int = 2) -> None:
    """The client s has a durable session subscribed to everything, and has gone."""
    client = sessions.connect_durable("s", version=version)
    client.subscribe("#", qos=qos)
    client.close()


def back(sessions: Sessions, version: int, **properties: int) -> Client:
    client = sessions.connect_durable("s", version=version, **properties)
    assert client.connack.session_present
    return client


def publish(sessions: Sessions, *payloads: bytes, qos: int = 2, **properties: int) -> None:
    publisher = sessions.connect("p")
    for payload in payloads:
        publisher.publish("a", payload, qos=qos, **properties)


# --- messages to the client ------------------------------------------------------------------


@pytest.mark.spec("MQTT-4.4.0-1")
def test_nothing_is_sent_again_while_the_connection_lasts(version: int) -> None:
    sessions = Sessions()
    away(sessions, version)
    client = back(sessions, version)
    publish(sessions, b"one")
    assert len(client.publishes(acknowledge=False)) == 1
    sessions.advance(120)
    assert client.take() == []


def test_what_was_sent_before_comes_before_what_has_waited(version: int) -> None:
    sessions = Sessions()
    away(sessions, version)
    first = back(sessions, version)
    publish(sessions, b"one", b"two")
    first.close()
    publish(sessions, b"three")
    messages = back(sessions, version).publishes()
    assert [(each.payload, each.dup) for each in messages] == [
        (b"one", True),
        (b"two", True),
        (b"three", False),
    ]


@pytest.mark.spec("MQTT-4.3.3-7")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_whose_publish_was_sent_does_not_expire(qos: int) -> None:
    sessions = Sessions()
    away(sessions, 5)
    first = back(sessions, 5)
    publish(sessions, b"sent", qos=qos, message_expiry_interval=5)
    (message,) = first.publishes(acknowledge=False)
    first.close()
    publish(sessions, b"not sent", qos=qos, message_expiry_interval=5)
    sessions.advance(10)
    (again,) = back(sessions, 5).publishes(acknowledge=False)
    assert summary([again]) == [(b"sent", message.packet_id, True)]
    assert sessions.node.counters.dropped == {Reason.MESSAGE_EXPIRED: 1}


@pytest.mark.spec("MQTT-3.3.4-10", "MQTT-4.9.0-3")
def test_pubrels_are_repeated_at_once_and_messages_within_receive_maximum() -> None:
    sessions = Sessions()
    away(sessions, 5)
    first = back(sessions, 5)
    publish(sessions, b"0", b"1", b"2", b"3", b"4")
    sent = first.publishes(acknowledge=False)
    released = [sent[1].packet_id, sent[3].packet_id, sent[4].packet_id]
    first.send(*(Pubrec(packet_id) for packet_id in released))
    first.close()
    second = back(sessions, 5, receive_maximum=1)
    assert second.take() == [Pubrel(packet_id) for packet_id in released]
    second.send(*(Pubcomp(packet_id) for packet_id in released))
    (message,) = second.publishes(acknowledge=False)
    assert message.payload == b"0"
    second.send(Pubrec(message.packet_id))
    assert second.take() == [Pubrel(message.packet_id)]
    second.send(Pubcomp(message.packet_id))
    assert [message.payload for message in second.publishes()] == [b"2"]


def test_a_message_too_large_for_the_new_connection_is_dropped() -> None:
    sessions = Sessions()
    away(sessions, 5)
    first = back(sessions, 5)
    publish(sessions, bytes(200), b"small")
    assert len(first.publishes(acknowledge=False)) == 2
    first.close()
    messages = back(sessions, 5, maximum_packet_size=100).publishes()
    assert [message.payload for message in messages] == [b"small"]
    assert sessions.node.counters.dropped == {Reason.PACKET_TOO_LARGE: 1}


def test_a_session_may_be_resumed_with_the_other_version(version: int) -> None:
    sessions = Sessions()
    away(sessions, version)
    first = back(sessions, version)
    publish(sessions, b"one")
    (message,) = first.publishes(acknowledge=False)
    first.close()
    other = 4 if version == 5 else 5
    (again,) = back(sessions, other).publishes()
    assert summary([again]) == [(b"one", message.packet_id, True)]


# --- messages from the client ----------------------------------------------------------------


def test_a_connection_lost_before_the_commit_loses_no_message(version: int) -> None:
    sessions = Sessions()
    away(sessions, version)
    first = sessions.connect_durable("p", version=version)
    sessions.hold_commits = True
    first.send(Publish("a", b"x", 2, packet_id=9))
    first.close()
    sessions.release_commits()
    assert first.take() == []
    second = sessions.connect_durable("p", version=version)
    second.send(Publish("a", b"x", 2, dup=True, packet_id=9))
    assert second.take() == [Pubrec(9)]
    assert [message.payload for message in back(sessions, version).publishes()] == [b"x"]
