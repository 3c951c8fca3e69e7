"""Bounds on the way to a slow client: what does not fit is dropped, counted and forgotten."""

from typing import Any

import pytest

from flowguard.codec.packets import Puback
from flowguard.flow import Reason
from flowguard.records import DELIVERY_BYTES
from flowguard.session.outbound.dispatch import LARGE_INFLIGHT_MAX
from flowguard.session.outbound.inflight import SHARED_BYTES
from tests.flowguard.session.sessions import Client, Sessions

KIB = 1024


def slow(sessions: Sessions, version: int = 5, client_id: str = "s") -> Client:
    """A subscriber that has not acknowledged as many messages as it may be sent: one."""
    client = sessions.connect_durable(client_id, version=version)
    client.subscribe("a", qos=1)
    sessions.connect("first").publish("a", b"first", qos=1)
    client.publishes(acknowledge=False)
    return client


def release(client: Client) -> list[bytes]:
    """Acknowledge what is in flight; the payloads that follow."""
    session = client.connection.session
    assert session is not None
    client.send(*(Puback(packet_id) for packet_id in list(session.inflight.messages)))
    return [message.payload for message in client.publishes()]


def publish(sessions: Sessions, *payloads: bytes, qos: int = 1) -> None:
    publisher = sessions.connect("p")
    for payload in payloads:
        publisher.publish("a", payload, qos=qos)


def test_the_queue_of_a_client_holds_only_so_many_messages(version: int) -> None:
    sessions = Sessions({"session": {"inflight_max": 1, "queue_messages_max": 2}})
    client = slow(sessions, version)
    publish(sessions, b"one", b"two", b"three", b"four")
    assert sessions.node.counters.dropped == {Reason.QUEUE_MESSAGES: 2}
    assert release(client) == [b"one", b"two"]
    publish(sessions, b"five")
    assert release(client) == [b"five"]


def test_the_queue_of_a_client_holds_only_so_many_bytes(version: int) -> None:
    sessions = Sessions(
        {"session": {"inflight_max": 1, "queue_bytes_max": 2 * KIB, "packet_size_max": 2 * KIB}}
    )
    client = slow(sessions, version)
    fits = 2 * KIB - 2 * (DELIVERY_BYTES + 1) - 3
    publish(sessions, b"one", bytes(fits + 1), bytes(fits))
    assert sessions.node.counters.dropped == {Reason.QUEUE_BYTES: 1}
    assert release(client) == [b"one", bytes(fits)]


@pytest.mark.parametrize(
    "properties",
    [
        {"user_properties": (("", ""),) * 5},
        {"user_properties": (("k", "v" * KIB),)},
        {"correlation_data": bytes(KIB)},
        {"response_topic": "r" * KIB},
        {"content_type": "c" * KIB},
    ],
)
def test_what_is_in_the_properties_counts_as_well(properties: dict[str, Any]) -> None:
    """Five bytes of an empty user property are a hundred in memory."""
    sessions = Sessions(
        {"session": {"inflight_max": 1, "queue_bytes_max": 2 * KIB, "packet_size_max": 2 * KIB}}
    )
    client = slow(sessions)
    publisher = sessions.connect("p")
    for payload in (b"one", b"two"):
        publisher.publish("a", payload, qos=1, **properties)
    assert sessions.node.counters.dropped == {Reason.QUEUE_BYTES: 1}
    assert release(client) == [b"one"]


def test_all_queues_together_hold_only_so_many_bytes() -> None:
    limits = {"queue_bytes_max": 1024 * KIB}
    sessions = Sessions({"session": {"inflight_max": 1, **limits}, "node": limits})
    clients = [slow(sessions, client_id=name) for name in ("one", "two")]
    clients[0].publishes()
    for client in clients:
        release(client)
    for client in clients:
        client.close()
    publish(sessions, bytes(300 * KIB), bytes(300 * KIB))
    assert sessions.node.counters.dropped == {Reason.NODE_QUEUE_BYTES: 2}
    assert sessions.node.queue_budget.used_bytes <= 1024 * KIB
    for name in ("one", "two"):
        assert len(sessions.connect_durable(name).publishes()) == 1
    assert sessions.node.queue_budget.used_bytes == 0


def test_a_full_queue_is_no_matter_of_the_publisher_or_of_others(version: int) -> None:
    sessions = Sessions({"session": {"inflight_max": 1, "queue_messages_max": 1}})
    slow(sessions, version)
    quick = sessions.connect("quick", version=version)
    quick.subscribe("a", qos=1)
    publisher = sessions.connect("p", version=version)
    for number in range(5):
        packet_id = publisher.publish("a", b"%d" % number, qos=1)
        assert publisher.take() == [Puback(packet_id)]
        assert [message.payload for message in quick.publishes()] == [b"%d" % number]


def test_qos_0_is_not_queued_for_a_client_that_reads_nothing(version: int) -> None:
    sessions = Sessions({"session": {"outbox_bytes_max": 16 * KIB}})
    client = sessions.connect("s", version=version)
    client.subscribe("a")
    client.reads = False
    publish(sessions, *[bytes(1_000)] * 20, qos=0)
    assert client.connection.outbound.outbox.size_bytes <= 16 * KIB
    dropped = sessions.node.counters.dropped[Reason.OUTBOX_BYTES]
    client.read_again()
    assert len(client.publishes()) == 20 - dropped
    assert 0 < dropped < 20


def test_qos_1_waits_in_the_queue_while_a_client_reads_nothing(version: int) -> None:
    sessions = Sessions()
    client = sessions.connect("s", version=version)
    client.subscribe("a", qos=1)
    client.reads = False
    publish(sessions, *[bytes(10_000)] * 20)
    assert client.connection.outbound.outbox.size_bytes < 80_000
    assert sessions.node.queue_budget.used_bytes > 100_000
    client.read_again()
    assert len(client.publishes()) == 20
    assert sessions.node.counters.dropped == {}


def test_unsent_bytes_of_all_clients_together_are_bounded() -> None:
    limit = 1024 * KIB
    settings = {"session": {"outbox_bytes_max": limit}, "node": {"outbox_bytes_max": limit}}
    sessions = Sessions(settings)
    clients = [sessions.connect(name) for name in ("one", "two")]
    for client in clients:
        client.subscribe("a")
        client.reads = False
    publish(sessions, *[bytes(100_000)] * 10, qos=0)
    assert sessions.node.outbox_budget.used_bytes <= limit
    assert sessions.node.counters.dropped[Reason.NODE_OUTBOX_BYTES] > 0
    for client in clients:
        client.close()
    assert sessions.node.outbox_budget.used_bytes == 0


def test_a_message_for_a_client_that_is_away_is_dropped_only_if_it_is_qos_0(version: int) -> None:
    sessions = Sessions()
    client = sessions.connect_durable("s", version=version)
    client.subscribe("a", qos=2)
    client.close()
    for qos in (0, 1, 2):
        publish(sessions, b"%d" % qos, qos=qos)
    client = sessions.connect_durable("s", version=version)
    assert [message.payload for message in client.publishes()] == [b"1", b"2"]


@pytest.mark.spec("MQTT-4.9.0-1", "MQTT-4.9.0-2", "MQTT-3.3.4-9")
@pytest.mark.parametrize("receive_maximum", [1, 3, 65_535])
def test_the_send_quota_starts_at_receive_maximum_or_at_ours(receive_maximum: int) -> None:
    sessions = Sessions({"session": {"inflight_max": 5}})
    client = sessions.connect("s", receive_maximum=receive_maximum)
    client.subscribe("a", qos=2)
    publish(sessions, *[b"x"] * 8, qos=2)
    quota = min(receive_maximum, 5)
    assert len(client.publishes(acknowledge=False)) == quota
    session = client.connection.session
    assert session is not None
    first = next(iter(session.inflight.messages))
    client.send(Puback(first + 20))
    assert client.take() == [], "an acknowledgement of nothing opens no place"


@pytest.mark.spec("MQTT-4.9.0-2")
def test_an_acknowledgement_opens_one_place_of_the_send_quota() -> None:
    sessions = Sessions()
    client = sessions.connect("s", receive_maximum=2)
    client.subscribe("a", qos=1)
    publish(sessions, b"1", b"2", b"3", b"4")
    one, two = client.publishes(acknowledge=False)
    client.send(Puback(two.packet_id))
    assert [message.payload for message in client.publishes(acknowledge=False)] == [b"3"]
    client.send(Puback(one.packet_id))
    assert [message.payload for message in client.publishes(acknowledge=False)] == [b"4"]


def test_large_messages_in_flight_are_few_until_they_are_acknowledged() -> None:
    sessions = Sessions()
    subscriber = sessions.connect("s")
    subscriber.subscribe("t", qos=1)
    publisher = sessions.connect("p")
    for number in range(3 * LARGE_INFLIGHT_MAX):
        publisher.publish("t", b"%d " % number + bytes(SHARED_BYTES), qos=1)
    first = subscriber.publishes(acknowledge=False)
    assert len(first) == LARGE_INFLIGHT_MAX
    for message in first:
        subscriber.send(Puback(message.packet_id))
    rest = subscriber.publishes()
    numbers = [int(message.payload.split(b" ")[0]) for message in [*first, *rest]]
    assert numbers == list(range(3 * LARGE_INFLIGHT_MAX))
