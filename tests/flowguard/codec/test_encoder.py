import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.codec import (
    Auth,
    Connack,
    Connect,
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
    Will,
    encode,
    puback_frame,
    pubcomp_frame,
    publish_frame,
    publish_qos_0_frame,
    pubrec_frame,
    pubrel_frame,
)
from flowguard.codec.encoder import NAME_BYTES_MAX, NAMES_MAX
from flowguard.types import NO_PROPERTIES, Properties, Publish, SubscriptionOptions
from tests.flowguard.codec import strategies
from tests.flowguard.codec.wire import connect, decode, frame, props, text, u16

WHY = Properties(reason_string="why")
WHY_BLOCK = props(b"\x1f" + text("why"))

WIRE: list[tuple[str, int, Packet, bytes]] = [
    ("CONNECT", 4, Connect("c", 4, True, 60), connect(4)),
    ("CONNECT in 3.1", 3, Connect("c", 3, False, 60), connect(3, flags=0)),
    ("CONNECT in 5.0", 5, Connect("c", 5, True, 60), connect(5)),
    (
        "CONNECT with everything",
        5,
        Connect("c", 5, True, 60, "u", b"p", Will("w", b"x", 1, True, WHY), WHY),
        connect(
            5,
            flags=0xEE,
            properties=WHY_BLOCK,
            payload=text("c") + WHY_BLOCK + text("w") + text("x") + text("u") + text("p"),
        ),
    ),
    ("CONNACK", 4, Connack(True), b"\x20\2\1\0"),
    ("CONNACK in 3.1, without session present", 3, Connack(True), b"\x20\2\0\0"),
    ("CONNACK busy", 4, Connack(False, 0x89, WHY), b"\x20\2\0\3"),
    ("CONNACK busy in 5.0", 5, Connack(False, 0x89, WHY), frame(0x20, b"\0\x89", WHY_BLOCK)),
    ("PUBLISH", 4, Publish("a", b"x"), frame(0x30, text("a"), b"x")),
    ("PUBLISH in 5.0", 5, Publish("a", b"x"), frame(0x30, text("a"), b"\0x")),
    (
        "PUBLISH again",
        4,
        Publish("a", b"x", 2, True, True, 7),
        frame(0x3D, text("a"), u16(7), b"x"),
    ),
    (
        "PUBLISH without its properties",
        4,
        Publish("a", b"", properties=WHY),
        frame(0x30, text("a")),
    ),
    (
        "PUBLISH by alias alone",
        5,
        Publish("", b"x", 1, packet_id=7, properties=Properties(topic_alias=3)),
        frame(0x32, text(""), u16(7), props(b"\x23\0\3"), b"x"),
    ),
    ("PUBLISH of 127", 4, Publish("a", b"x" * 124), b"\x30\x7f\0\1a" + b"x" * 124),
    ("PUBLISH of 128", 4, Publish("a", b"x" * 125), b"\x30\x80\1\0\1a" + b"x" * 125),
    ("PUBLISH of 20,000", 5, Publish("a", b"x" * 20_000), frame(0x30, b"\0\1a\0" + b"x" * 20_000)),
    ("PUBACK", 5, Puback(258), b"\x40\2\1\2"),
    ("PUBACK with reason", 5, Puback(258, 0x10), b"\x40\3\1\2\x10"),
    ("PUBACK with properties", 5, Puback(258, 0, WHY), frame(0x40, b"\1\2\0", WHY_BLOCK)),
    ("PUBACK, what 3.1.1 can say of it", 4, Puback(258, 0x87, WHY), b"\x40\2\1\2"),
    ("PUBREC", 5, Pubrec(258, 0x91), b"\x50\3\1\2\x91"),
    ("PUBREL", 5, Pubrel(258), b"\x62\2\1\2"),
    ("PUBCOMP", 5, Pubcomp(258, 0x92), b"\x70\3\1\2\x92"),
    (
        "SUBSCRIBE",
        4,
        Subscribe(1, (("a", SubscriptionOptions(2, True, True, 1, 9)),), WHY),
        frame(0x82, u16(1), text("a"), b"\2"),
    ),
    (
        "SUBSCRIBE in 5.0",
        5,
        Subscribe(1, (("a", SubscriptionOptions(2, True, True, 1)),)),
        frame(0x82, u16(1), b"\0", text("a"), b"\x1e"),
    ),
    ("SUBACK", 4, Suback(1, (2, 0x8F, 0)), frame(0x90, u16(1), b"\2\x80\0")),
    ("SUBACK in 5.0", 5, Suback(1, (2, 0x8F), WHY), frame(0x90, u16(1), WHY_BLOCK, b"\2\x8f")),
    ("UNSUBSCRIBE", 4, Unsubscribe(1, ("a", "b")), frame(0xA2, u16(1), text("a"), text("b"))),
    ("UNSUBSCRIBE in 5.0", 5, Unsubscribe(1, ("a",)), frame(0xA2, u16(1), b"\0", text("a"))),
    ("UNSUBACK", 4, Unsuback(1, (0, 0x11)), frame(0xB0, u16(1))),
    ("UNSUBACK in 5.0", 5, Unsuback(1, (0, 0x11)), frame(0xB0, u16(1), b"\0\0\x11")),
    ("PINGREQ", 4, Pingreq(), b"\xc0\0"),
    ("PINGRESP", 5, Pingresp(), b"\xd0\0"),
    ("DISCONNECT", 4, Disconnect(0x8B, WHY), b"\xe0\0"),
    ("DISCONNECT in short", 5, Disconnect(), b"\xe0\0"),
    ("DISCONNECT with reason", 5, Disconnect(0x8B), b"\xe0\1\x8b"),
    ("DISCONNECT with properties", 5, Disconnect(0, WHY), frame(0xE0, b"\0", WHY_BLOCK)),
    ("AUTH in short", 5, Auth(), b"\xf0\0"),
    ("AUTH", 5, Auth(0x18, WHY), frame(0xF0, b"\x18", WHY_BLOCK)),
]


@pytest.mark.parametrize(("name", "version", "packet", "expected"), WIRE)
def test_encode(name: str, version: int, packet: Packet, expected: bytes) -> None:
    assert encode(packet, version) == expected


def test_auth_before_5_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        encode(Auth(0x18, WHY), 4)


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (0x00, 0),
        (0x84, 1),
        (0x85, 2),
        (0x88, 3),
        (0x89, 3),
        (0x97, 3),
        (0x9F, 3),
        (0x86, 4),
        (0x87, 5),
        (0x8A, 5),
        (0x8C, 5),
        (0x9A, 5),
        (0x80, 3),
    ],
)
def test_a_reason_becomes_a_return_code(reason: int, code: int) -> None:
    assert encode(Connack(False, reason), 4) == bytes((0x20, 2, 0, code))


@pytest.mark.spec("MQTT-2.2.1-2", "v3:MQTT-2.3.1-5")
@pytest.mark.parametrize("version", [3, 4, 5])
def test_qos_0_has_no_packet_id(version: int) -> None:
    """Not even if the record, shared with a QoS 1 delivery, has one."""
    head, tail = publish_frame(Publish("a", b"x", 1, packet_id=9), version, 0, False, NO_PROPERTIES)
    assert decode(head + tail, version) == Publish("a", b"x")
    assert encode(Publish("a", b"x", 0, packet_id=9), version) == head + tail


@given(st.data(), strategies.versions, st.integers(0, 2), st.booleans(), strategies.packet_ids)
def test_a_frame_in_two_parts(
    data: st.DataObject, version: int, qos: int, retain: bool, packet_id: int
) -> None:
    message = data.draw(strategies.publishes(version, "server"))
    head, tail = publish_frame(message, version, qos, retain, message.properties)
    if qos:
        again = bytes((head[0] | 8,)) + head[1:]
        for dup, first in ((False, head), (True, again)):
            whole = first + packet_id.to_bytes(2, "big") + tail
            assert decode(whole, version, "client") == Publish(
                message.topic, message.payload, qos, retain, dup, packet_id, message.properties
            )
    else:
        assert decode(head + tail, version, "client") == Publish(
            message.topic, message.payload, 0, retain, False, 0, message.properties
        )


@pytest.mark.parametrize(
    "size", [0, 110, 120, 121, 122, 123, 124, 125, 126, 16_376, 16_380, 16_384]
)
@pytest.mark.parametrize("qos", [0, 1])
def test_the_length_counts_the_packet_id(size: int, qos: int) -> None:
    for length in range(size, size + 4):
        message = Publish("a", b"x" * length, qos, packet_id=qos)
        assert decode(encode(message, 4), 4) == message


def test_more_topics_than_are_remembered() -> None:
    """Remembered, forgotten or too long to be remembered: each frame has its own topic."""
    topics = [f"t/{n}" for n in range(NAMES_MAX + 2)]
    topics += ["x" * length for length in range(NAME_BYTES_MAX - 4, NAME_BYTES_MAX + 2)]
    for _ in range(2):
        for topic in topics:
            head, tail = publish_frame(Publish(topic, b""), 4, 0, False, NO_PROPERTIES)
            assert head + tail == frame(0x30, text(topic))


def test_acknowledgements_are_the_same_in_all_versions() -> None:
    for packet_id in (1, 258, 65_535):
        for version in (3, 4, 5):
            assert puback_frame(packet_id) == encode(Puback(packet_id), version)
            assert pubrec_frame(packet_id) == encode(Pubrec(packet_id), version)
            assert pubrel_frame(packet_id) == encode(Pubrel(packet_id), version)
            assert pubcomp_frame(packet_id) == encode(Pubcomp(packet_id), version)


@pytest.mark.spec("MQTT-1.5.5-1")
@given(st.integers(0, 70_000))
def test_lengths_on_the_wire_are_as_short_as_can_be(size: int) -> None:
    data = encode(Publish("a", bytes(size)), 5)
    length = data[1 : len(data) - size - 4]
    assert len(length) == 1 or length[-1] != 0


@pytest.mark.spec("MQTT-2.2.2-1")
@pytest.mark.parametrize(
    "packet",
    [
        Connect("c"),
        Connect("c", will=Will("w", b"")),
        Connack(),
        Publish("a", b""),
        Subscribe(1, (("a", SubscriptionOptions()),)),
        Suback(1, (0,)),
        Unsubscribe(1, ("a",)),
        Unsuback(1, (0,)),
    ],
    ids=lambda packet: type(packet).__name__,
)
def test_no_properties_are_said_to_be_none(packet: Packet) -> None:
    """5.0 reads them back, so the zero length is encoded; 3.1.1 has one byte less for each."""
    blocks = 2 if isinstance(packet, Connect) and packet.will else 1
    codes = 1 if isinstance(packet, Unsuback) else 0
    assert len(encode(packet, 5)) == len(encode(packet, 4)) + blocks + codes


@given(strategies.publishes(4))
def test_a_qos_0_frame_in_one_piece(message: Publish) -> None:
    plain = Publish(message.topic, message.payload)
    assert publish_qos_0_frame(message) == encode(plain, 4)
    for version in (3, 4):
        assert decode(publish_qos_0_frame(message), version) == plain
