"""Broken packets on an open connection: the answers, and that other clients do not notice."""

import pytest

from flowguard.codec.packets import Connack, Connect, Disconnect, Pingresp
from flowguard.types import MQTT_5, MQTT_311, ReasonCode
from tests.flowguard.session.sessions import Sessions

MALFORMED, PROTOCOL_ERROR = 0x81, 0x82

BROKEN_IN_BOTH = {
    "packet type 0": (b"\x00\x00", MALFORMED),
    "length of five bytes": (b"\x30\xff\xff\xff\xff\x01", MALFORMED),
    "flags of SUBSCRIBE": (b"\x80\x02\x00\x01", MALFORMED),
    "flags of UNSUBSCRIBE": (b"\xa0\x02\x00\x01", MALFORMED),
    "flags of PUBREL": (b"\x60\x02\x00\x01", MALFORMED),
    "flags of PINGREQ": (b"\xc1\x00", MALFORMED),
    "body of PINGREQ": (b"\xc0\x01\x00", MALFORMED),
    "QoS 3": (b"\x36\x05\x00\x01a\x00\x01", MALFORMED),
    "QoS 0 with DUP": (b"\x38\x04\x00\x01a\x00", MALFORMED),
    "topic beyond the end": (b"\x30\x03\x00\x09a", MALFORMED),
    "topic is not UTF-8": (b"\x30\x04\x00\x01\xff\x00", MALFORMED),
    "short PUBACK": (b"\x40\x01\x00", MALFORMED),
    "identifier 0 in PUBACK": (b"\x40\x02\x00\x00", PROTOCOL_ERROR),
    "identifier 0 in PUBLISH": (b"\x32\x06\x00\x01a\x00\x00\x00", PROTOCOL_ERROR),
    "CONNACK from a client": (b"\x20\x02\x00\x00", PROTOCOL_ERROR),
    "SUBACK from a client": (b"\x90\x03\x00\x01\x00", PROTOCOL_ERROR),
    "PINGRESP from a client": (b"\xd0\x00", PROTOCOL_ERROR),
}
BROKEN_IN_5 = {
    "SUBSCRIBE without filters": (b"\x82\x03\x00\x01\x00", PROTOCOL_ERROR),
    "UNSUBSCRIBE without filters": (b"\xa2\x03\x00\x01\x00", PROTOCOL_ERROR),
    "QoS 3 in SUBSCRIBE": (b"\x82\x07\x00\x01\x00\x00\x01a\x03", PROTOCOL_ERROR),
    "reserved options": (b"\x82\x07\x00\x01\x00\x00\x01a\x40", MALFORMED),
    "property of another packet": (b"\x30\x06\x00\x01a\x02\x25\x01", MALFORMED),
    "unknown property": (b"\x30\x06\x00\x01a\x02\x7f\x01", MALFORMED),
    "no topic and no alias": (b"\x30\x03\x00\x00\x00", PROTOCOL_ERROR),
    "alias 0": (b"\x30\x07\x00\x01a\x03\x23\x00\x00", 0x94),
    "alias never set": (b"\x30\x06\x00\x00\x03\x23\x00\x01", PROTOCOL_ERROR),
    "wildcard in a topic": (b"\x30\x04\x00\x01#\x00", MALFORMED),
    "too large": (b"\x30\xff\xff\xff\x7f", 0x95),
}
BROKEN_IN_311 = {
    "SUBSCRIBE without filters": b"\x82\x02\x00\x01",
    "UNSUBSCRIBE without filters": b"\xa2\x02\x00\x01",
    "QoS 3 in SUBSCRIBE": b"\x82\x06\x00\x01\x00\x01a\x03",
    "options of 5.0": b"\x82\x06\x00\x01\x00\x01a\x04",
    "empty filter": b"\x82\x05\x00\x01\x00\x00\x00",
    "body of DISCONNECT": b"\xe0\x01\x00",
    "wildcard in a topic": b"\x30\x03\x00\x01#",
    "AUTH": b"\xf0\x00",
    "too large": b"\x30\xff\xff\xff\x7f",
}


@pytest.mark.spec("MQTT-4.13.1-1", "MQTT-4.13.2-1", "MQTT-3.14.4-2", "MQTT-2.1.3-1")
@pytest.mark.spec("MQTT-3.8.1-1", "MQTT-3.10.1-1", "MQTT-3.8.3-2", "MQTT-3.10.3-2", "MQTT-3.8.3-5")
@pytest.mark.parametrize(
    ("data", "code"),
    [pytest.param(*case, id=name) for name, case in {**BROKEN_IN_BOTH, **BROKEN_IN_5}.items()],
)
def test_a_broken_packet_of_5_0_is_answered_with_its_reason_and_closes(
    data: bytes, code: int
) -> None:
    sessions = Sessions()
    client = sessions.connect("c")
    client.send_bytes(data)
    (goodbye,) = client.take()
    assert isinstance(goodbye, Disconnect)
    assert (goodbye.reason_code, client.is_closed) == (code, True)
    assert sessions.node.counters.malformed == 1


@pytest.mark.spec("v3:MQTT-4.8.0-1", "v3:MQTT-2.2.2-1", "v3:MQTT-2.2.2-2", "v3:MQTT-3.8.3-4")
@pytest.mark.spec("v3:MQTT-3.8.1-1", "v3:MQTT-3.10.1-1", "v3:MQTT-3.8.3-3", "v3:MQTT-3.10.3-2")
@pytest.mark.parametrize(
    "data",
    [pytest.param(case[0], id=name) for name, case in BROKEN_IN_BOTH.items()]
    + [pytest.param(data, id=name) for name, data in BROKEN_IN_311.items()],
)
def test_a_broken_packet_of_3_1_1_closes_without_a_word(data: bytes) -> None:
    sessions = Sessions()
    client = sessions.connect("c", version=MQTT_311)
    client.send_bytes(data)
    assert client.take() == []
    assert client.is_closed
    assert sessions.node.counters.malformed == 1


@pytest.mark.spec("MQTT-4.13.2-1")
def test_the_connection_closes_even_if_its_last_words_cannot_be_sent() -> None:
    client = Sessions().connect("c")
    client.reads = False
    client.send(Connect("c"))
    assert client.take() == []
    assert client.is_closed


@pytest.mark.spec("MQTT-4.13.2-1")
@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"\x10\x0c\x00\x04MQTT\x05\x02\x00\x00\x00\x00", None),
        (
            b"\x10\x0d\x00\x04MQTT\x05\x01\x00\x00\x00\x00\x00",
            Connack(False, ReasonCode.MALFORMED_PACKET),
        ),
        (
            b"\x10\x0d\x00\x04MQTT\x06\x02\x00\x00\x00\x00\x00",
            Connack(False, ReasonCode.UNSUPPORTED_PROTOCOL_VERSION),
        ),
    ],
    ids=["length", "flags", "version"],
)
def test_a_broken_connect_ends_the_connection(data: bytes, answer: Connack | None) -> None:
    client = Sessions().open()
    client.send_bytes(data)
    assert client.is_closed
    (connack,) = client.take()
    assert isinstance(connack, Connack)
    assert connack.reason_code >= ReasonCode.UNSPECIFIED_ERROR
    if answer is not None:
        assert connack == answer


def test_nothing_of_a_chunk_is_done_behind_its_broken_packet(version: int) -> None:
    sessions = Sessions()
    witness = sessions.connect("w")
    witness.subscribe("a")
    client = sessions.connect("c", version=version)
    publish = b"\x30\x04\x00\x01a\x00" if version == MQTT_5 else b"\x30\x03\x00\x01a"
    client.send_bytes(publish + b"\x00\x00" + publish)
    assert len(witness.publishes()) == 1


def test_a_broken_packet_behind_others_is_found_in_its_turn(version: int) -> None:
    sessions = Sessions()
    client = sessions.connect("c", version=version)
    client.send_bytes(b"\xc0\x00\xc0\x00\x00\x00")
    answers = client.take()
    assert answers[:2] == [Pingresp(), Pingresp()]
    assert [type(packet) for packet in answers[2:]] == [Disconnect] * (version == MQTT_5)
    assert client.is_closed


def test_a_session_survives_the_mistakes_of_its_client(version: int) -> None:
    sessions = Sessions()
    client = sessions.connect_durable("c", version=version)
    client.subscribe("a", qos=1)
    client.send_bytes(b"\x00\x00")
    sessions.connect("p").publish("a", b"x", qos=1)
    client = sessions.connect_durable("c", version=version)
    assert client.connack.session_present
    assert [message.payload for message in client.publishes()] == [b"x"]
