"""PUBACK, PUBREC, PUBREL, PUBCOMP: the answers to answers, also to those that make no sense."""

import pytest

from flowguard.codec.packets import (
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
)
from flowguard.types import MQTT_5, MQTT_311, Publish, ReasonCode
from tests.flowguard.session.sessions import Client, Sessions


def sent_one(sessions: Sessions, qos: int, version: int = MQTT_5) -> tuple[Client, Publish]:
    """A subscriber that holds one unacknowledged message, and the message."""
    subscriber = sessions.connect_durable("s", version=version)
    subscriber.subscribe("t", qos=qos)
    sessions.connect("p").publish("t", b"x", qos=qos)
    (message,) = subscriber.publishes(acknowledge=False)
    return subscriber, message


@pytest.mark.spec("MQTT-3.6.1-1", "v3:MQTT-3.6.1-1")
@pytest.mark.parametrize("first_byte", [0x60, 0x61, 0x63, 0x64, 0x6A])
def test_a_pubrel_with_other_flags_closes_the_connection(version: int, first_byte: int) -> None:
    client = Sessions().connect("c", version=version)
    client.send_bytes(bytes((first_byte, 2, 0, 1)))
    assert client.is_closed


def test_a_pubrec_is_answered_with_pubrel_and_pubcomp_ends_it(version: int) -> None:
    sessions = Sessions()
    client, message = sent_one(sessions, 2, version)
    client.send(Pubrec(message.packet_id))
    assert client.expect(Pubrel) == Pubrel(message.packet_id)
    client.send(Pubcomp(message.packet_id))
    assert sessions.store.fetch("s", 0, 10) == []


def test_a_pubrec_sent_twice_is_answered_twice(version: int) -> None:
    client, message = sent_one(Sessions(), 2, version)
    client.send(Pubrec(message.packet_id), Pubrec(message.packet_id))
    assert client.take() == [Pubrel(message.packet_id)] * 2


@pytest.mark.parametrize("refusal", [0x80, 0x83, 0x87, 0x90, 0x97, 0x99])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_the_client_refuses_is_done(qos: int, refusal: int) -> None:
    sessions = Sessions()
    client, message = sent_one(sessions, qos)
    answer = Puback if qos == 1 else Pubrec
    client.send(answer(message.packet_id, refusal))
    assert client.take() == []
    assert sessions.store.fetch("s", 0, 10) == []
    client.close()
    assert sessions.connect_durable("s").publishes() == []


@pytest.mark.parametrize(
    ("packet", "answer"),
    [
        (Puback(7), []),
        (Pubcomp(7), []),
        (Pubrec(7), [Pubrel(7, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)]),
        (Pubrel(7), [Pubcomp(7, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)]),
    ],
)
def test_an_unknown_identifier_is_no_reason_to_close(
    version: int, packet: Puback | Pubcomp | Pubrec | Pubrel, answer: list[object]
) -> None:
    client = Sessions().connect("c", version=version)
    client.send(packet, Pingreq())
    expected = answer if version == MQTT_5 else [type(each)(7) for each in answer]
    assert client.take() == [*expected, Pingresp()]


# --- answers that do not fit ---------------------------------------------------------------------

STEPS: dict[str, tuple[int, type[Puback] | type[Pubrec] | None]] = {
    "QoS 1": (1, None),
    "QoS 2": (2, None),
    "QoS 2 after PUBREC": (2, Pubrec),
}
FITTING = {
    ("QoS 1", Puback),
    ("QoS 2", Pubrec),
    ("QoS 2 after PUBREC", Pubrec),
    ("QoS 2 after PUBREC", Pubcomp),
}


@pytest.mark.spec("MQTT-4.13.1-1", "v3:MQTT-4.8.0-1")
@pytest.mark.parametrize("durable", [True, False], ids=["durable", "clean"])
@pytest.mark.parametrize("kind", [Puback, Pubrec, Pubcomp])
@pytest.mark.parametrize("step", STEPS)
def test_an_answer_that_does_not_fit_its_message_ends_the_connection(
    version: int, step: str, kind: type[Puback] | type[Pubrec] | type[Pubcomp], durable: bool
) -> None:
    sessions = Sessions()
    qos, before = STEPS[step]
    connect = sessions.connect_durable if durable else sessions.connect
    subscriber = connect("s", version=version)
    subscriber.subscribe("t", qos=qos)
    sessions.connect("p").publish("t", b"x", qos=qos)
    (message,) = subscriber.publishes(acknowledge=False)
    if before is not None:
        subscriber.send(before(message.packet_id))
        subscriber.expect(Pubrel)
    subscriber.send(kind(message.packet_id))
    assert subscriber.is_closed is ((step, kind) not in FITTING)
    if subscriber.is_closed and version == MQTT_5:
        assert subscriber.expect(Disconnect).reason_code == ReasonCode.PROTOCOL_ERROR


@pytest.mark.spec("MQTT-4.13.1-1", "MQTT-4.4.0-1")
def test_what_was_answered_wrongly_is_sent_again_to_who_comes_back() -> None:
    sessions = Sessions()
    client, message = sent_one(sessions, 2)
    client.send(Pubcomp(message.packet_id))
    assert client.is_closed
    (again,) = sessions.connect_durable("s").publishes()
    assert (again.packet_id, again.payload, again.dup) == (message.packet_id, b"x", True)


@pytest.mark.spec("MQTT-4.13.1-1", "v3:MQTT-4.8.0-1")
def test_a_pubrel_before_its_pubrec_ends_the_connection(version: int) -> None:
    sessions = Sessions()
    sessions.connect_durable("s").subscribe("t", qos=2)
    client = sessions.connect_durable("c", version=version)
    sessions.hold_commits = True
    packet_id = client.publish("t", b"x", qos=2)
    client.send(Pubrel(packet_id))
    assert client.is_closed
    sessions.release_commits()
    again = sessions.connect_durable("c", version=version)
    again.send(Publish("t", b"x", 2, dup=True, packet_id=packet_id))
    assert again.take() == [Pubrec(packet_id)]


# --- what a connection in error leaves behind ------------------------------------------------


def test_a_publish_that_ended_its_connection_may_be_sent_again() -> None:
    sessions = Sessions({"session": {"receive_maximum": 1}})
    first = sessions.connect_durable("c")
    first.publish("t", b"1", qos=2)
    second_id = first.publish("t", b"2", qos=2)
    assert first.expect(Disconnect).reason_code == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
    again = sessions.connect_durable("c")
    again.send(Publish("t", b"2", 2, dup=True, packet_id=second_id))
    assert again.expect(Pubrec).packet_id == second_id


# --- Request Problem Information -------------------------------------------------------------


def test_a_disconnect_says_why_whatever_was_asked() -> None:
    client = Sessions().connect("c", request_problem_information=0)
    client.send_bytes(b"\x00\x00")
    assert client.expect(Disconnect).properties.reason_string


def test_311_is_never_told_why() -> None:
    client = Sessions().connect("c", version=MQTT_311)
    client.send_bytes(b"\x00\x00")
    assert client.is_closed
    assert client.take() == []
