"""Limits that operators set: the largest payload, the smallest packets, bytes in flight."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from flowguard.codec.packets import (
    Connack,
    Connect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Will,
)
from flowguard.config import PACKET_SIZE_MIN, SessionSettings
from flowguard.flow import Reason
from flowguard.session.outbound.inflight import INFLIGHT_BYTES
from flowguard.types import MQTT_5, MQTT_31, MQTT_311, Publish, ReasonCode
from tests.flowguard.node.ledger import check_budgets
from tests.support.stage import Client, Stage

KIB = 1_024

# --- the largest payload -------------------------------------------------------------------------


def limited(payload_bytes_max: int, **session: object) -> tuple[Stage, Client]:
    """A stage with this limit, and a witness of all that gets through."""
    stage = Stage({"session": {"payload_bytes_max": payload_bytes_max, **session}})
    witness = stage.connect("witness")
    witness.subscribe("#", qos=2)
    return stage, witness


def sizes(client: Client) -> list[int]:
    return [len(message.payload) for message in client.publishes()]


@pytest.mark.parametrize("limit", [0, 1, 100, 70_000])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_payload_may_be_as_large_as_the_limit_and_no_larger(
    version: int, qos: int, limit: int
) -> None:
    stage, witness = limited(limit)
    client = stage.connect("c", version=version)
    for size in (limit, limit + 1, limit):
        client.publish("t", bytes(size), qos=qos)
    assert sizes(witness) == [limit, limit]
    assert not client.is_closed
    assert stage.node.counters.dropped == {Reason.PAYLOAD_TOO_LARGE: 1}
    refused = ReasonCode.QUOTA_EXCEEDED if version == MQTT_5 else ReasonCode.SUCCESS
    answers = {0: [], 1: [Puback(n, 0) for n in (1, 2, 3)], 2: [Pubrec(n, 0) for n in (1, 2, 3)]}
    expected: list[Packet] = [*answers[qos]]
    if qos:
        expected[1] = type(answers[qos][1])(2, refused)
    assert client.take() == expected


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_for_very_many_is_held_to_it_too(qos: int) -> None:
    """It goes another way, piece by piece."""
    stage = Stage({"session": {"payload_bytes_max": 10}})
    subscribers = [stage.connect(f"s{number}") for number in range(1_100)]
    for subscriber in subscribers:
        subscriber.subscribe("t")
    client = stage.connect("c")
    client.publish("t", bytes(11), qos=qos)
    client.publish("t", bytes(10), qos=qos)
    assert stage.node.counters.dropped == {Reason.PAYLOAD_TOO_LARGE: 1}
    assert {tuple(sizes(subscriber)) for subscriber in subscribers} == {(10,)}


def test_a_refused_qos_2_message_leaves_nothing_behind(version: int) -> None:
    stage, _ = limited(10)
    client = stage.connect_durable("c", version=version)
    client.publish("t", bytes(11), qos=2)
    client.take()
    session = stage.node.registry.sessions["c"]
    assert not session.inbound_ids
    client.send(Pubrel(1))
    assert client.expect(Pubcomp).packet_id == 1
    client.send(Publish("t", b"again", 2, packet_id=1))
    assert client.expect(Pubrec) == Pubrec(1)


def test_nothing_too_large_is_retained() -> None:
    stage, _ = limited(10)
    client = stage.connect("c")
    client.publish("t", b"kept", retain=True, qos=1)
    client.publish("t", bytes(11), retain=True, qos=1)
    late = stage.connect("late")
    late.subscribe("t")
    assert [message.payload for message in late.publishes()] == [b"kept"]


@pytest.mark.parametrize("size", [10, 11])
def test_a_will_is_held_to_it_at_its_connect(version: int, size: int) -> None:
    stage, _ = limited(10)
    client = stage.attempt(Connect("c", version, will=Will("w", bytes(size))))
    connack = client.expect(Connack)
    assert (connack.reason_code != 0) is client.is_closed is (size > 10)
    if version == MQTT_5:
        assert connack.reason_code == (ReasonCode.QUOTA_EXCEEDED if size > 10 else 0)


def test_what_connack_announces_is_the_largest_packet_all_the_same() -> None:
    stage, _ = limited(10, packet_size_max=5_000)
    assert stage.connect("c").connack.properties.maximum_packet_size == 5_000


def test_where_publishers_wait_for_room_a_payload_too_large_is_refused_at_once() -> None:
    stage, _ = limited(10, queue_policy="block", queue_messages_max=1)
    stage.connect_durable("s", receive_maximum=1).subscribe("t", qos=1)
    publisher = stage.connect("p")
    for _ in range(3):
        publisher.publish("t", b"x", qos=1)
    other = stage.connect("other")
    other.publish("t", bytes(11), qos=1)
    assert other.expect(Puback).reason_code == ReasonCode.QUOTA_EXCEEDED


# --- the smallest packets ------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.1.3-5", "v3:MQTT-3.1.3-5")
@pytest.mark.parametrize("version", [MQTT_31, MQTT_311, MQTT_5])
def test_the_least_maximum_lets_every_client_in_that_must_be(version: int) -> None:
    stage = Stage({"session": {"packet_size_max": PACKET_SIZE_MIN}})
    client = stage.attempt(Connect("x" * 23, version))
    assert client.expect(Connack).reason_code == ReasonCode.SUCCESS
    client.subscribe("t", qos=2)
    client.publish("t", b"small", qos=2)
    client.send(Pingreq())
    assert [message.payload for message in client.publishes()] == [b"small"]
    client.expect(Pingresp)


def test_it_is_the_least_and_what_is_larger_is_refused() -> None:
    with pytest.raises(ValidationError):
        SessionSettings(packet_size_max=PACKET_SIZE_MIN - 1)
    stage = Stage({"session": {"packet_size_max": PACKET_SIZE_MIN}})
    client = stage.attempt(Connect("x" * 24, MQTT_31))
    assert client.is_closed
    assert stage.connect("c").connack.properties.maximum_packet_size == PACKET_SIZE_MIN


# --- bytes in flight to one client ---------------------------------------------------------------


def counted(message: Publish) -> int:
    """At least, as the limit counts."""
    return INFLIGHT_BYTES + 2 * len(message.payload)


@given(
    st.integers(KIB, 40 * KIB),
    st.lists(st.integers(0, 8 * KIB), min_size=1, max_size=25),
    st.sampled_from((MQTT_311, MQTT_5)),
    st.booleans(),
    st.sampled_from((1, 2)),
)
@example(KIB, [0, 8 * KIB, 0], MQTT_5, True, 1)
def test_no_client_has_more_in_flight_than_its_limit_and_one_message_always(
    limit: int, payloads: list[int], version: int, shared: bool, qos: int
) -> None:
    """And all of them arrive, in order, whatever the limit is."""
    stage = Stage({"session": {"inflight_bytes_max": limit}})
    client = stage.connect_durable("s", version=version)
    client.subscribe("$share/g/t" if shared else "t", qos=qos)
    for number, size in enumerate(payloads):
        stage.connect("p").publish("t", number.to_bytes(2, "big") + bytes(size), qos=qos)
    arrived: list[int] = []
    while messages := client.publishes(acknowledge=False):
        assert len(messages) == 1 or sum(map(counted, messages)) <= limit
        check_budgets(stage.node, [client.connection])
        arrived += [int.from_bytes(message.payload[:2], "big") for message in messages]
        for message in messages:
            client.send((Puback if qos == 1 else Pubrec)(message.packet_id))
            if qos == 2:
                client.send(Pubcomp(client.expect(Pubrel).packet_id))
    assert arrived == list(range(len(payloads)))


def test_the_same_message_counts_for_each_of_its_subscribers() -> None:
    stage = Stage({"session": {"inflight_bytes_max": 20 * KIB}})
    clients = [stage.connect_durable(f"s{number}") for number in range(3)]
    for client in clients:
        client.subscribe("t", qos=1)
    for _ in range(4):
        stage.connect("p").publish("t", bytes(8 * KIB), qos=1)
    for client in clients:
        assert [len(client.publishes(acknowledge=False)) for _ in range(2)] == [1, 0]


def test_the_pace_is_the_client_s_after_a_restart_too() -> None:
    stage = Stage({"session": {"inflight_bytes_max": 4 * KIB}})
    stage.connect_durable("s").subscribe("t", qos=1)
    stage.node.registry.sessions["s"].outbound.connection.end(None, stage.now_s)  # type: ignore[union-attr]
    stage.settle()
    for _ in range(20):
        stage.connect("p").publish("t", bytes(KIB), qos=1)
    stage.restart()
    client = stage.connect_durable("s")
    received = 0
    while messages := client.publishes(acknowledge=False):
        assert sum(map(counted, messages)) <= 4 * KIB
        received += len(messages)
        client.send(*(Puback(message.packet_id) for message in messages))
    assert received == 20
