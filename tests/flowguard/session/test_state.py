"""State that is kept for clients besides messages: bounded per client and in total, freed exactly.

The machine at the end lets three clients do everything that makes a node keep state, within limits
that are reached all the time, with crashes, take-overs, expiry and restarts in between.

1. Every budget equals the sum of its objects, to the byte; no limit of a client or of all is
   exceeded.
2. A client whose request is rejected keeps its earlier state.
3. Once all sessions have ended, no budget holds anything.
"""

from flowguard.codec.packets import (
    Disconnect,
    Pubcomp,
    Pubrec,
    Pubrel,
)
from flowguard.flow import Reason
from flowguard.session.state_bytes import (
    INBOUND_ID_BYTES,
    name_bytes,
    subscription_bytes,
)
from flowguard.types import MQTT_311, Publish, ReasonCode
from tests.flowguard.session.sessions import Client, Sessions

KIB = 1024
LIMIT_BYTES = 16 * KIB
LONG = "x" * 6 * KIB


def tight_sessions(node_bytes: int = 1024 * KIB) -> Sessions:
    settings = {"flow": {"window_max": 1_000}, "session": {"state_bytes_max": LIMIT_BYTES}}
    sessions = Sessions(settings)
    sessions.node.state_budget.limit_bytes = node_bytes
    return sessions


def state_bytes(sessions: Sessions) -> int:
    return sessions.used_bytes()["state"]


# --- subscriptions ---------------------------------------------------------------------------


def test_levels_of_a_wildcard_filter_are_charged() -> None:
    """Each is a node of the index: two hundred of them are more than their 400 characters."""
    assert subscription_bytes("a/" * 199 + "#") > 30_000


# --- topic aliases ---------------------------------------------------------------------------


def test_an_alias_beyond_what_a_client_may_keep_ends_the_connection() -> None:
    sessions = tight_sessions()
    client = sessions.connect("c")
    for alias, topic in enumerate(("a", "b"), 1):
        client.publish(topic + LONG, topic_alias=alias)
    for _ in range(5):
        client.publish("a" + LONG, topic_alias=1)
        client.publish("b" + LONG, topic_alias=2)
        client.publish("c" + LONG, topic_alias=1)
    client.publish("d" + LONG, topic_alias=3)
    assert client.expect(Disconnect).reason_code == ReasonCode.QUOTA_EXCEEDED
    assert sessions.node.counters.dropped == {Reason.STATE_BYTES: 1}
    assert state_bytes(sessions) == 0


def test_an_alias_of_ours_without_room_is_not_set_and_the_message_arrives() -> None:
    sessions = tight_sessions()
    subscriber = sessions.connect_durable("s", topic_alias_maximum=10)
    subscriber.subscribe("#", qos=1)
    publisher = sessions.connect("p", version=MQTT_311)
    for number in range(5):
        publisher.publish(f"{number}{LONG}", qos=1)
    messages = subscriber.publishes()
    assert [message.properties.topic_alias for message in messages] == [1, 2, None, None, None]
    assert [message.topic[0] for message in messages] == ["0", "1", "2", "3", "4"]
    assert not sessions.node.counters.dropped
    subscriber.close()
    publisher.close()
    assert state_bytes(sessions) == name_bytes("s") + subscription_bytes("#")


# --- QoS 2 -----------------------------------------------------------------------------------


def fill_identifiers(client: Client) -> int:
    """Publish until something is refused; how many were taken."""
    for packet_id in range(1, 1_000):
        client.send(Publish("t", b"", 2, packet_id=packet_id))
        if client.is_closed or client.expect(Pubrec).reason_code >= 0x80:
            return packet_id - 1
    raise AssertionError("no limit")


def test_an_identifier_without_room_refuses_its_publish_where_that_can_be_said() -> None:
    sessions = tight_sessions()
    client = sessions.connect("c")
    count = fill_identifiers(client)
    assert count == (LIMIT_BYTES - name_bytes("c")) // INBOUND_ID_BYTES
    assert not client.is_closed
    assert sessions.node.counters.dropped == {Reason.STATE_BYTES: 1}
    client.send(Pubrel(1))
    client.expect(Pubcomp)
    client.send(Publish("t", b"", 2, packet_id=1))
    assert client.expect(Pubrec).reason_code < 0x80


def test_an_identifier_without_room_ends_a_connection_that_cannot_be_told() -> None:
    """A PUBREC would be a promise, and silence would be for ever."""
    sessions = tight_sessions()
    client = sessions.connect("c", version=MQTT_311)
    fill_identifiers(client)
    assert client.is_closed
    assert state_bytes(sessions) == 0
