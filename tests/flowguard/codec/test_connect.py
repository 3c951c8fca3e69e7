"""CONNECT, on the wire."""

import pytest

from flowguard.codec import Connect, PacketDecoder, Will
from flowguard.errors import MalformedPacket, PeerError, ProtocolViolation
from flowguard.types import Properties, ReasonCode
from tests.flowguard.codec.wire import (
    MALFORMED,
    MAX,
    VIOLATION,
    connect,
    decode_connect,
    frame,
    props,
    text,
)


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("the least", connect(4), Connect("c", 4, True, 60)),
        ("the least in 5.0", connect(5), Connect("c", 5, True, 60)),
        pytest.param("the least in 3.1", connect(3), Connect("c", 3, True, 60), id="MQIsdp"),
        ("no client id", connect(5, payload=text("")), Connect("", 5, True, 60)),
        ("a session to resume", connect(4, flags=0), Connect("c", 4, False, 60)),
        pytest.param(
            "everything",
            connect(
                4,
                flags=0xF6,
                payload=text("c") + text("w/t") + text(b"\xff") + text("u") + text(b"\0p"),
            ),
            Connect("c", 4, True, 60, "u", b"\0p", Will("w/t", b"\xff", 2, True)),
            marks=pytest.mark.spec(
                "v3:MQTT-3.1.3-1", "v3:MQTT-3.1.2-9", "v3:MQTT-3.1.2-19", "v3:MQTT-3.1.2-21"
            ),
        ),
        pytest.param(
            "everything in 5.0",
            connect(
                5,
                flags=0xCE,
                properties=props(b"\x11\0\0\0\x09", b"\x21\0\x05"),
                payload=text("c")
                + props(b"\x18\0\0\0\x03")
                + text("w/t")
                + text("bye")
                + text("u")
                + text("p"),
            ),
            Connect(
                "c",
                5,
                True,
                60,
                "u",
                b"p",
                Will("w/t", b"bye", 1, False, Properties(will_delay_interval=3)),
                Properties(session_expiry_interval=9, receive_maximum=5),
            ),
            marks=pytest.mark.spec(
                "MQTT-3.1.3-1", "MQTT-3.1.2-9", "MQTT-3.1.2-17", "MQTT-3.1.2-19", "MQTT-3.1.3-12"
            ),
        ),
        (
            "a user name alone",
            connect(4, flags=0x82, payload=text("c") + text("u")),
            Connect("c", 4, True, 60, "u"),
        ),
        (
            "a password alone in 5.0",
            connect(5, flags=0x42, payload=text("c") + text("p")),
            Connect("c", 5, True, 60, None, b"p"),
        ),
        (
            "an empty user name and password",
            connect(4, flags=0xC2, payload=text("c") + text("") + text("")),
            Connect("c", 4, True, 60, "", b""),
        ),
        (
            "an authentication method with data",
            connect(5, properties=props(b"\x15" + text("m"), b"\x16" + text("d"))),
            Connect(
                "c",
                5,
                True,
                60,
                properties=Properties(authentication_method="m", authentication_data=b"d"),
            ),
        ),
    ],
)
def test_connect(name: str, data: bytes, expected: Connect) -> None:
    assert decode_connect(data) == expected


UNSUPPORTED = (ProtocolViolation, ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)


# name, version to answer in, bytes, error, reason code


@pytest.mark.parametrize(
    ("name", "answer_in", "data", "error", "reason"),
    [
        pytest.param(
            "another name",
            0,
            connect(5, name="AMQP"),
            *UNSUPPORTED,
            marks=pytest.mark.spec("MQTT-3.1.2-1", "v3:MQTT-3.1.2-1"),
        ),
        ("an old name with a new level", 3, connect(4, name="MQIsdp"), *UNSUPPORTED),
        ("an old name, misspelt", 0, connect(3, name="MQIsdP"), *UNSUPPORTED),
        pytest.param(
            "level 6", 5, connect(6), *UNSUPPORTED, marks=pytest.mark.spec("MQTT-3.1.2-2")
        ),
        pytest.param(
            "level 3 with the new name",
            4,
            connect(3, name="MQTT"),
            *UNSUPPORTED,
            marks=pytest.mark.spec("v3:MQTT-3.1.2-2"),
        ),
        ("a bridge's level", 5, connect(0x84), *UNSUPPORTED),
        ("nothing", 0, frame(0x10), *MALFORMED),
        ("a name cut short", 0, frame(0x10, b"\0\4MQT"), *MALFORMED),
        ("no level", 0, frame(0x10, text("MQTT")), *MALFORMED),
        ("no flags", 4, frame(0x10, text("MQTT"), b"\4"), *MALFORMED),
        ("half a keep-alive", 4, frame(0x10, text("MQTT"), b"\4\2\0"), *MALFORMED),
        pytest.param(
            "the reserved flag",
            5,
            connect(5, flags=3),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-3.1.2-3", "MQTT-3.1.4-1"),
        ),
        pytest.param(
            "the reserved flag in 3.1.1",
            4,
            connect(4, flags=3),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-3.1.2-3"),
        ),
        pytest.param(
            "Will QoS without will",
            5,
            connect(5, flags=0x0A),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-3.1.2-11"),
        ),
        pytest.param(
            "Will QoS without will in 3.1.1",
            4,
            connect(4, flags=0x12),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-3.1.2-11", "v3:MQTT-3.1.2-13"),
        ),
        pytest.param(
            "Will Retain without will",
            5,
            connect(5, flags=0x22),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-3.1.2-13"),
        ),
        pytest.param(
            "Will Retain without will in 3.1.1",
            4,
            connect(4, flags=0x22),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-3.1.2-11", "v3:MQTT-3.1.2-15"),
        ),
        pytest.param(
            "Will QoS 3",
            5,
            connect(5, flags=0x1E, payload=text("c") + props() + text("w") + text("")),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-3.1.2-12"),
        ),
        pytest.param(
            "Will QoS 3 in 3.1.1",
            4,
            connect(4, flags=0x1E, payload=text("c") + text("w") + text("")),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-3.1.2-14"),
        ),
        pytest.param(
            "a password without user name in 3.1.1",
            4,
            connect(4, flags=0x42, payload=text("c") + text("p")),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-3.1.2-22"),
        ),
        pytest.param(
            "no client id",
            4,
            connect(4, payload=b""),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-3.1.3-3"),
        ),
        pytest.param(
            "no client id in 5.0",
            5,
            connect(5, payload=b""),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-3.1.3-3"),
        ),
        pytest.param(
            "a client id that is not UTF-8",
            5,
            connect(5, payload=text(b"\xff")),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-3.1.3-4"),
        ),
        pytest.param(
            "a client id that is not UTF-8 in 3.1.1",
            4,
            connect(4, payload=text(b"\xff")),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-3.1.3-4"),
        ),
        pytest.param(
            "a will that is not there",
            5,
            connect(5, flags=6),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-3.1.2-9"),
        ),
        pytest.param(
            "a will that is not there in 3.1.1",
            4,
            connect(4, flags=6, payload=text("c") + text("w")),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-3.1.2-9"),
        ),
        pytest.param(
            "a will that no flag announces",
            5,
            connect(5, payload=text("c") + props() + text("w") + text("x")),
            *MALFORMED,
        ),
        pytest.param(
            "a will that no flag announces in 3.1.1",
            4,
            connect(4, payload=text("c") + text("w") + text("x")),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-3.1.2-11"),
        ),
        pytest.param(
            "a will topic that is not UTF-8",
            5,
            connect(5, flags=6, payload=text("c") + props() + text(b"\xff") + text("")),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-3.1.3-11"),
        ),
        pytest.param(
            "a will topic that is not UTF-8 in 3.1.1",
            4,
            connect(4, flags=6, payload=text("c") + text(b"\xff") + text("")),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-3.1.3-10"),
        ),
        pytest.param(
            "an empty will topic",
            5,
            connect(5, flags=6, payload=text("c") + props() + text("") + text("")),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-4.7.3-1"),
        ),
        pytest.param(
            "an empty will topic in 3.1.1",
            4,
            connect(4, flags=6, payload=text("c") + text("") + text("")),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-4.7.3-1"),
        ),
        pytest.param(
            "a will topic with wildcards",
            5,
            connect(5, flags=6, payload=text("c") + props() + text("a/#") + text("")),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-4.7.0-1"),
        ),
        pytest.param(
            "a will topic with wildcards in 3.1.1",
            4,
            connect(4, flags=6, payload=text("c") + text("+") + text("")),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-4.7.1-1"),
        ),
        (
            "a will that is not the UTF-8 it claims to be",
            5,
            connect(5, flags=6, payload=text("c") + props(b"\1\1") + text("w") + text(b"\xff")),
            MalformedPacket,
            ReasonCode.PAYLOAD_FORMAT_INVALID,
        ),
        pytest.param(
            "a user name that is not there",
            5,
            connect(5, flags=0x82),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-3.1.2-17"),
        ),
        pytest.param(
            "a user name that is not there in 3.1.1",
            4,
            connect(4, flags=0x82),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-3.1.2-19"),
        ),
        pytest.param(
            "a user name that no flag announces",
            5,
            connect(5, payload=text("c") + text("u")),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-3.1.2-16"),
        ),
        pytest.param(
            "a user name that no flag announces in 3.1.1",
            4,
            connect(4, payload=text("c") + text("u")),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-3.1.2-18"),
        ),
        pytest.param(
            "a user name that is not UTF-8",
            5,
            connect(5, flags=0x82, payload=text("c") + text(b"\xc0\xaf")),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-3.1.3-12"),
        ),
        pytest.param(
            "a user name that is not UTF-8 in 3.1.1",
            4,
            connect(4, flags=0x82, payload=text("c") + text(b"\xc0\xaf")),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-3.1.3-11"),
        ),
        pytest.param(
            "a password that is not there",
            5,
            connect(5, flags=0xC2, payload=text("c") + text("u")),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-3.1.2-19"),
        ),
        pytest.param(
            "a password that is not there in 3.1.1",
            4,
            connect(4, flags=0xC2, payload=text("c") + text("u")),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-3.1.2-21"),
        ),
        pytest.param(
            "a password that no flag announces",
            5,
            connect(5, flags=0x82, payload=text("c") + text("u") + text("p")),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-3.1.2-18"),
        ),
        pytest.param(
            "a password that no flag announces in 3.1.1",
            4,
            connect(4, flags=0x82, payload=text("c") + text("u") + text("p")),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-3.1.2-20"),
        ),
        ("no properties in 5.0", 5, frame(0x10, text("MQTT"), b"\5\2\0\0"), *MALFORMED),
        (
            "a will property in the wrong place",
            5,
            connect(5, properties=props(b"\x18\0\0\0\1")),
            *MALFORMED,
        ),
        (
            "authentication data without method",
            5,
            connect(5, properties=props(b"\x16" + text("d"))),
            *VIOLATION,
        ),
        ("Receive Maximum 0", 5, connect(5, properties=props(b"\x21\0\0")), *VIOLATION),
    ],
)
def test_bad_connect(
    name: str, answer_in: int, data: bytes, error: type[PeerError], reason: ReasonCode
) -> None:
    decoder = PacketDecoder(MAX)
    decoder.feed(data)
    with pytest.raises(error) as caught:
        decoder.next()
    assert type(caught.value) is error
    assert caught.value.reason_code == reason
    assert decoder.version == answer_in


@pytest.mark.spec("MQTT-1.5.5-1")
@pytest.mark.parametrize("first", range(0x10, 0x20))
@pytest.mark.parametrize("flags", [0x02, 0x03, 0x0A, 0x1B, 0x22, 0x3B])
def test_what_31_gives_no_meaning_is_not_judged_there(first: int, flags: int) -> None:
    """DUP, QoS and RETAIN of CONNECT, the reserved flag, and details of a will without a will."""
    old, new = connect(3, flags=flags)[1:], connect(4, flags=flags)[1:]
    assert decode_connect(bytes((first,)) + old) == Connect("c", 3, True, 60)
    if (first, flags) != (0x10, 0x02):
        with pytest.raises(MalformedPacket):
            decode_connect(bytes((first,)) + new)


@pytest.mark.parametrize(
    ("flags", "fields", "username", "password"),
    [
        (0x82, b"", None, None),
        (0xC2, b"", None, None),
        (0xC2, text("u"), "u", None),
        (0xC2, text("u") + text("p"), "u", b"p"),
    ],
)
def test_31_may_announce_a_user_name_and_not_send_it(
    flags: int, fields: bytes, username: str | None, password: bytes | None
) -> None:
    """The Remaining Length field takes precedence over the User Name flag (MQTT 3.1, 3.1)."""
    packet = decode_connect(connect(3, flags=flags, payload=text("c") + fields))
    assert (packet.username, packet.password) == (username, password)


@pytest.mark.parametrize("flags", [0x1E, 0x1F])
def test_a_will_of_31_has_no_qos_3(flags: int) -> None:
    with pytest.raises(MalformedPacket):
        decode_connect(connect(3, flags=flags, payload=text("c") + text("w") + text("x")))


def test_a_length_with_a_byte_too_many_is_malformed_in_5_only() -> None:
    for version in (3, 4):
        data = connect(version)
        padded = data[:1] + bytes((data[1] | 0x80, 0)) + data[2:]
        assert decode_connect(padded).version == version
    data = connect(5)
    with pytest.raises(MalformedPacket):
        decode_connect(data[:1] + bytes((data[1] | 0x80, 0)) + data[2:])
