from typing import Literal

import pytest

from flowguard.codec import (
    Auth,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from flowguard.codec import tables as t
from flowguard.errors import PeerError, ProtocolViolation
from flowguard.types import Properties, ReasonCode, SubscriptionOptions
from tests.flowguard.codec.wire import MALFORMED, VIOLATION, decode, frame, props, text, u16

Role = Literal["server", "client"]

WHY = props(b"\x1f" + text("why"))
METHOD = props(b"\x15" + text("m"))

GOOD: list[tuple[str, int, Role, bytes, Packet]] = [
    ("PUBACK", 4, "server", frame(0x40, u16(9)), Puback(9)),
    ("PUBACK in 3.1", 3, "client", frame(0x40, u16(9)), Puback(9)),
    ("PUBACK of two bytes", 5, "server", frame(0x40, u16(65_535)), Puback(65_535)),
    ("PUBACK of three bytes", 5, "server", frame(0x40, u16(9), b"\x10"), Puback(9, 0x10)),
    ("PUBACK of four bytes", 5, "server", frame(0x40, u16(9), b"\x97\0"), Puback(9, 0x97)),
    (
        "PUBACK with properties",
        5,
        "client",
        frame(0x40, u16(9), b"\x87", WHY),
        Puback(9, 0x87, Properties(reason_string="why")),
    ),
    ("PUBREC", 4, "server", frame(0x50, u16(9)), Pubrec(9)),
    ("PUBREC with reason", 5, "server", frame(0x50, u16(9), b"\x91"), Pubrec(9, 0x91)),
    ("PUBREL", 4, "server", frame(0x62, u16(9)), Pubrel(9)),
    ("PUBREL with reason", 5, "server", frame(0x62, u16(9), b"\x92"), Pubrel(9, 0x92)),
    ("PUBREL again, in 3.1", 3, "server", frame(0x6A, u16(9)), Pubrel(9)),
    ("PUBCOMP", 4, "server", frame(0x70, u16(9)), Pubcomp(9)),
    (
        "PUBCOMP with properties",
        5,
        "server",
        frame(0x70, u16(9), b"\x92", WHY),
        Pubcomp(9, 0x92, Properties(reason_string="why")),
    ),
    (
        "SUBSCRIBE",
        4,
        "server",
        frame(0x82, u16(1), text("a/#"), b"\2", text("b"), b"\0"),
        Subscribe(1, (("a/#", SubscriptionOptions(2)), ("b", SubscriptionOptions(0)))),
    ),
    (
        "SUBSCRIBE with all options",
        5,
        "server",
        frame(0x82, u16(1), props(b"\x0b\x85\x01"), text("a"), b"\x2d"),
        Subscribe(
            1,
            (("a", SubscriptionOptions(1, True, True, 2, 133)),),
            Properties(subscription_identifiers=(133,)),
        ),
    ),
    (
        "SUBSCRIBE to a share",
        5,
        "server",
        frame(0x82, u16(1), props(), text("$share/g/a"), b"\x1a"),
        Subscribe(1, (("$share/g/a", SubscriptionOptions(2, False, True, 1)),)),
    ),
    (
        "SUBSCRIBE again, in 3.1",
        3,
        "server",
        frame(0x8A, u16(1), text("a"), b"\1"),
        Subscribe(1, (("a", SubscriptionOptions(1)),)),
    ),
    (
        "SUBSCRIBE with a filter that no topic matches: the session's business",
        5,
        "server",
        frame(0x82, u16(1), props(), text("a/#/b+"), b"\0"),
        Subscribe(1, (("a/#/b+", SubscriptionOptions()),)),
    ),
    (
        "UNSUBSCRIBE",
        4,
        "server",
        frame(0xA2, u16(1), text("a"), text("+")),
        Unsubscribe(1, ("a", "+")),
    ),
    (
        "UNSUBSCRIBE with properties",
        5,
        "server",
        frame(0xA2, u16(1), props(b"\x26", text("k"), text("v")), text("a")),
        Unsubscribe(1, ("a",), Properties(user_properties=(("k", "v"),))),
    ),
    ("PINGREQ", 4, "server", frame(0xC0), Pingreq()),
    ("PINGREQ in 5.0", 5, "server", frame(0xC0), Pingreq()),
    ("PINGRESP", 5, "client", frame(0xD0), Pingresp()),
    ("SUBACK", 4, "client", frame(0x90, u16(1), b"\0\1\2\x80"), Suback(1, (0, 1, 2, 0x80))),
    (
        "SUBACK with properties",
        5,
        "client",
        frame(0x90, u16(1), WHY, b"\x8f\2"),
        Suback(1, (0x8F, 2), Properties(reason_string="why")),
    ),
    ("UNSUBACK", 4, "client", frame(0xB0, u16(1)), Unsuback(1)),
    (
        "UNSUBACK with properties",
        5,
        "client",
        frame(0xB0, u16(1), WHY, b"\0\x11"),
        Unsuback(1, (0, 0x11), Properties(reason_string="why")),
    ),
    ("DISCONNECT", 4, "server", frame(0xE0), Disconnect()),
    ("DISCONNECT in 5.0", 5, "server", frame(0xE0), Disconnect()),
    ("DISCONNECT with will", 5, "server", frame(0xE0, b"\4"), Disconnect(4)),
    (
        "DISCONNECT with session expiry",
        5,
        "server",
        frame(0xE0, b"\0", props(b"\x11\0\0\0\1")),
        Disconnect(0, Properties(session_expiry_interval=1)),
    ),
    (
        "DISCONNECT of a server",
        5,
        "client",
        frame(0xE0, b"\x9c", props(b"\x1c" + text("other"))),
        Disconnect(0x9C, Properties(server_reference="other")),
    ),
    ("DISCONNECT of a server, short", 5, "client", frame(0xE0), Disconnect()),
    (
        "AUTH",
        5,
        "server",
        frame(0xF0, b"\x18", METHOD),
        Auth(0x18, Properties(authentication_method="m")),
    ),
    ("AUTH with success in short", 5, "client", frame(0xF0), Auth()),
]


@pytest.mark.parametrize(("name", "version", "role", "data", "expected"), GOOD)
def test_packet(name: str, version: int, role: Role, data: bytes, expected: Packet) -> None:
    packet = decode(data, version, role)
    assert packet == expected
    assert type(packet) is type(expected)


@pytest.mark.parametrize("behind", [b"", b"\x01" * 9], ids=["end", "more"])
@pytest.mark.parametrize(
    ("name", "version", "role", "data", "error", "reason"),
    [
        ("PUBACK without packet id", 4, "server", frame(0x40), *MALFORMED),
        ("PUBACK with half a packet id", 5, "server", frame(0x40, b"\1"), *MALFORMED),
        ("PUBACK with packet id 0", 5, "server", frame(0x40, u16(0)), *VIOLATION),
        ("PUBACK with packet id 0 in 3.1.1", 4, "server", frame(0x40, u16(0)), *VIOLATION),
        ("PUBACK of three bytes in 3.1.1", 4, "server", frame(0x40, u16(1), b"\0"), *MALFORMED),
        ("PUBCOMP of four bytes in 3.1", 3, "server", frame(0x70, u16(1), b"\0\0"), *MALFORMED),
        ("PUBACK with a byte too many", 5, "server", frame(0x40, u16(1), b"\0\0\0"), *MALFORMED),
        (
            "PUBACK with a topic alias",
            5,
            "server",
            frame(0x40, u16(1), b"\0\3\x23\0\1"),
            *MALFORMED,
        ),
        pytest.param(
            "SUBSCRIBE with packet id 0",
            5,
            "server",
            frame(0x82, u16(0), props(), text("a"), b"\0"),
            *VIOLATION,
            marks=pytest.mark.spec("MQTT-2.2.1-3"),
        ),
        pytest.param(
            "SUBSCRIBE with packet id 0 in 3.1.1",
            4,
            "server",
            frame(0x82, u16(0), text("a"), b"\0"),
            *VIOLATION,
            marks=pytest.mark.spec("v3:MQTT-2.3.1-1"),
        ),
        pytest.param(
            "SUBSCRIBE without filters",
            5,
            "server",
            frame(0x82, u16(1), props()),
            *VIOLATION,
            marks=pytest.mark.spec("MQTT-3.8.3-2"),
        ),
        pytest.param(
            "SUBSCRIBE without filters in 3.1.1",
            4,
            "server",
            frame(0x82, u16(1)),
            *VIOLATION,
            marks=pytest.mark.spec("v3:MQTT-3.8.3-3"),
        ),
        pytest.param(
            "SUBSCRIBE with an empty filter",
            5,
            "server",
            frame(0x82, u16(1), props(), text(""), b"\0"),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-4.7.3-1"),
        ),
        pytest.param(
            "SUBSCRIBE with an empty filter in 3.1.1",
            4,
            "server",
            frame(0x82, u16(1), text(""), b"\0"),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-4.7.3-1"),
        ),
        pytest.param(
            "SUBSCRIBE with a filter that is not UTF-8",
            5,
            "server",
            frame(0x82, u16(1), props(), text(b"\xff"), b"\0"),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-3.8.3-1"),
        ),
        pytest.param(
            "SUBSCRIBE with a filter that is not UTF-8 in 3.1.1",
            4,
            "server",
            frame(0x82, u16(1), text(b"\xff"), b"\0"),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-3.8.3-1"),
        ),
        pytest.param(
            "SUBSCRIBE with NUL in a filter",
            5,
            "server",
            frame(0x82, u16(1), props(), text("a\0"), b"\0"),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-4.7.3-2"),
        ),
        pytest.param(
            "SUBSCRIBE with NUL in a filter in 3.1.1",
            4,
            "server",
            frame(0x82, u16(1), text("a\0"), b"\0"),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-4.7.3-2"),
        ),
        (
            "SUBSCRIBE without options",
            5,
            "server",
            frame(0x82, u16(1), b"\0", text("a")),
            *MALFORMED,
        ),
        (
            "SUBSCRIBE with QoS 3",
            5,
            "server",
            frame(0x82, u16(1), b"\0", text("a"), b"\3"),
            *VIOLATION,
        ),
        pytest.param(
            "SUBSCRIBE with QoS 3 in 3.1.1",
            4,
            "server",
            frame(0x82, u16(1), text("a"), b"\3"),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-3.8.3-4"),
        ),
        pytest.param(
            "SUBSCRIBE with reserved bits",
            5,
            "server",
            frame(0x82, u16(1), b"\0", text("a"), b"\x40"),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-3.8.3-5"),
        ),
        pytest.param(
            "SUBSCRIBE with 5.0's options in 3.1.1",
            4,
            "server",
            frame(0x82, u16(1), text("a"), b"\4"),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-3.8.3-4"),
        ),
        (
            "SUBSCRIBE with Retain Handling 3",
            5,
            "server",
            frame(0x82, u16(1), b"\0", text("a"), b"\x30"),
            *VIOLATION,
        ),
        pytest.param(
            "SUBSCRIBE to a share with No Local",
            5,
            "server",
            frame(0x82, u16(1), b"\0", text("$share/g/a"), b"\4"),
            *VIOLATION,
            marks=pytest.mark.spec("MQTT-3.8.3-4"),
        ),
        ("SUBSCRIBE without properties", 5, "server", frame(0x82, u16(1)), *MALFORMED),
        (
            "SUBSCRIBE with identifier 0",
            5,
            "server",
            frame(0x82, u16(1), props(b"\x0b\0"), text("a"), b"\0"),
            *VIOLATION,
        ),
        pytest.param(
            "UNSUBSCRIBE without filters",
            5,
            "server",
            frame(0xA2, u16(1), props()),
            *VIOLATION,
            marks=pytest.mark.spec("MQTT-3.10.3-2"),
        ),
        pytest.param(
            "UNSUBSCRIBE without filters in 3.1.1",
            4,
            "server",
            frame(0xA2, u16(1)),
            *VIOLATION,
            marks=pytest.mark.spec("v3:MQTT-3.10.3-2"),
        ),
        pytest.param(
            "UNSUBSCRIBE with a filter that is not UTF-8",
            5,
            "server",
            frame(0xA2, u16(1), props(), text(b"\xff")),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-3.10.3-1"),
        ),
        pytest.param(
            "UNSUBSCRIBE with a filter that is not UTF-8 in 3.1.1",
            4,
            "server",
            frame(0xA2, u16(1), text(b"\xff")),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-3.10.3-1"),
        ),
        pytest.param(
            "UNSUBSCRIBE with packet id 0",
            5,
            "server",
            frame(0xA2, u16(0), props(), text("a")),
            *VIOLATION,
            marks=pytest.mark.spec("MQTT-2.2.1-3"),
        ),
        pytest.param(
            "UNSUBSCRIBE with packet id 0 in 3.1.1",
            4,
            "server",
            frame(0xA2, u16(0), text("a")),
            *VIOLATION,
            marks=pytest.mark.spec("v3:MQTT-2.3.1-1"),
        ),
        (
            "UNSUBSCRIBE with an empty filter",
            4,
            "server",
            frame(0xA2, u16(1), text("")),
            *MALFORMED,
        ),
        ("PINGREQ with a body", 4, "server", frame(0xC0, b"\0"), *MALFORMED),
        ("PINGRESP with a body", 5, "client", frame(0xD0, b"\0"), *MALFORMED),
        ("SUBACK without codes", 5, "client", frame(0x90, u16(1), b"\0"), *VIOLATION),
        pytest.param(
            "SUBACK with a code of 5.0 in 3.1.1",
            4,
            "client",
            frame(0x90, u16(1), b"\x8f"),
            *VIOLATION,
            marks=pytest.mark.spec("v3:MQTT-3.9.3-2"),
        ),
        ("UNSUBACK with codes in 3.1.1", 4, "client", frame(0xB0, u16(1), b"\0"), *MALFORMED),
        ("UNSUBACK without codes", 5, "client", frame(0xB0, u16(1), b"\0"), *VIOLATION),
        ("DISCONNECT with a reason in 3.1.1", 4, "server", frame(0xE0, b"\0"), *MALFORMED),
        ("DISCONNECT with a byte too many", 5, "server", frame(0xE0, b"\0\0\0"), *MALFORMED),
        ("DISCONNECT of a server in 3.1.1", 4, "client", frame(0xE0), *VIOLATION),
        pytest.param(
            "DISCONNECT of a server with session expiry",
            5,
            "client",
            frame(0xE0, b"\0", props(b"\x11\0\0\0\1")),
            *VIOLATION,
            marks=pytest.mark.spec("MQTT-3.14.2-2"),
        ),
        ("AUTH of a client with success", 5, "server", frame(0xF0), *VIOLATION),
        ("AUTH without method", 5, "server", frame(0xF0, b"\x18\0"), *VIOLATION),
        ("AUTH without method, in short", 5, "server", frame(0xF0, b"\x18"), *VIOLATION),
        ("AUTH in 3.1.1", 4, "server", frame(0xF0, b"\x18", METHOD), *MALFORMED),
    ],
)
def test_bad_packet(
    name: str,
    version: int,
    role: Role,
    data: bytes,
    error: type[PeerError],
    reason: ReasonCode,
    behind: bytes,
) -> None:
    with pytest.raises(error) as caught:
        decode(data + behind, version, role)
    assert type(caught.value) is error
    assert caught.value.reason_code == reason


# MQTT 5.0, tables 3-4 to 3-13, written down a second time.


@pytest.mark.parametrize(
    ("first", "role", "codes"),
    [
        pytest.param(
            0x40, "server", "00 10 80 83 87 90 91 97 99", marks=pytest.mark.spec("MQTT-3.4.2-1")
        ),
        pytest.param(
            0x50, "server", "00 10 80 83 87 90 91 97 99", marks=pytest.mark.spec("MQTT-3.5.2-1")
        ),
        pytest.param(0x62, "server", "00 92", marks=pytest.mark.spec("MQTT-3.6.2-1")),
        pytest.param(0x70, "server", "00 92", marks=pytest.mark.spec("MQTT-3.7.2-1")),
        pytest.param(
            0x90,
            "client",
            "00 01 02 80 83 87 8f 91 97 9e a1 a2",
            marks=pytest.mark.spec("MQTT-3.9.3-2"),
        ),
        pytest.param(
            0xB0, "client", "00 11 80 83 87 8f 91", marks=pytest.mark.spec("MQTT-3.11.3-2")
        ),
        pytest.param(
            0xE0,
            "server",
            "00 04 80 81 82 83 90 93 94 95 96 97 98 99",
            marks=pytest.mark.spec("MQTT-3.14.2-1"),
        ),
        pytest.param(
            0xE0,
            "client",
            "00 80 81 82 83 87 89 8b 8c 8d 8e 8f 90 93 94 95 96 97 98 999a 9b 9c 9d 9e 9f a0 a1 a2",
            marks=pytest.mark.spec("MQTT-3.14.2-1"),
        ),
        pytest.param(0xF0, "server", "18 19", marks=pytest.mark.spec("MQTT-3.15.2-1")),
        pytest.param(0xF0, "client", "00 18", marks=pytest.mark.spec("MQTT-3.15.2-1")),
    ],
)
def test_only_listed_reason_codes_are_taken(first: int, role: Role, codes: str) -> None:
    listed = bytes.fromhex(codes)
    for code in range(256):
        if first in (0x90, 0xB0):
            data = frame(first, u16(1), props(), bytes((code,)))
        elif first in (0xE0, 0xF0):
            data = frame(first, bytes((code,)), METHOD if first == 0xF0 else props())
        else:
            data = frame(first, u16(1), bytes((code,)))
        if code in listed:
            assert decode(data, 5, role) is not None
        else:
            with pytest.raises(ProtocolViolation) as caught:
                decode(data, 5, role)
            assert caught.value.reason_code == ReasonCode.PROTOCOL_ERROR


def test_subscriptions_without_identifier_share_their_options() -> None:
    first = decode(frame(0x82, u16(1), text("a"), b"\1"), 4)
    second = decode(frame(0x82, u16(2), props(), text("b"), b"\1"), 5)
    assert isinstance(first, Subscribe)
    assert isinstance(second, Subscribe)
    assert first.filters[0][1] is second.filters[0][1]


@pytest.mark.parametrize("packet_type", [t.PUBACK, t.PUBREC, t.PUBREL, t.PUBCOMP])
@pytest.mark.parametrize("version", [3, 4, 5])
def test_all_packet_ids_of_acknowledgements(packet_type: int, version: int) -> None:
    for packet_id in (1, 255, 256, 65_535):
        first = packet_type << 4 | t.FIXED_FLAGS[packet_type]
        packet = decode(frame(first, u16(packet_id)), version)
        assert isinstance(packet, Puback | Pubrec | Pubrel | Pubcomp)
        assert packet.packet_id == packet_id
