import pytest

from flowguard.codec import publish as module
from flowguard.codec.publish import BLOCK_BYTES_MAX, BLOCKS_MAX, TOPIC_BYTES_MAX, TOPICS_MAX
from flowguard.errors import MalformedPacket, PeerError, ProtocolViolation
from flowguard.types import Properties, Publish, ReasonCode
from tests.flowguard.codec.wire import MALFORMED, VIOLATION, decode, frame, props, text, u16

GOOD = [
    ("QoS 0", 4, frame(0x30, text("a/b"), b"hi"), Publish("a/b", b"hi")),
    ("QoS 0 in 5.0", 5, frame(0x30, text("a/b"), props(), b"hi"), Publish("a/b", b"hi")),
    ("QoS 0 in 3.1", 3, frame(0x30, text("a/b"), b"hi"), Publish("a/b", b"hi")),
    (
        "QoS 1 with DUP and RETAIN",
        4,
        frame(0x3B, text("a"), u16(7), b"x"),
        Publish("a", b"x", 1, True, True, 7),
    ),
    (
        "QoS 2, the largest packet id",
        5,
        frame(0x34, text("a"), u16(65_535), props(), b"x"),
        Publish("a", b"x", 2, False, False, 65_535),
    ),
    ("no payload", 4, frame(0x30, text("a")), Publish("a", b"")),
    (
        "no payload in 5.0",
        5,
        frame(0x32, text("a"), u16(1), props()),
        Publish("a", b"", 1, False, False, 1),
    ),
    ("no UTF-8 in the payload", 4, frame(0x30, text("a"), b"\xff\0"), Publish("a", b"\xff\0")),
    ("a topic of spaces and dollars", 4, frame(0x30, text(" $/ ")), Publish(" $/ ", b"")),
    ("a long topic", 4, frame(0x30, text("t" * 65_535)), Publish("t" * 65_535, b"")),
    (
        "properties",
        5,
        frame(0x30, text("a"), props(b"\x02\0\0\0\x05", b"\x26", text("k"), text("v")), b"x"),
        Publish(
            "a",
            b"x",
            properties=Properties(message_expiry_interval=5, user_properties=(("k", "v"),)),
        ),
    ),
    (
        "an alias for a name",
        5,
        frame(0x30, text("a"), props(b"\x23\0\x03"), b"x"),
        Publish("a", b"x", properties=Properties(topic_alias=3)),
    ),
    (
        "an alias in place of a name",
        5,
        frame(0x30, text(""), props(b"\x23\0\x03"), b"x"),
        Publish("", b"x", properties=Properties(topic_alias=3)),
    ),
    (
        "a UTF-8 payload that says so, NUL included",
        5,
        frame(0x30, text("a"), props(b"\x01\x01"), "é\0".encode()),
        Publish("a", "é\0".encode(), properties=Properties(payload_format_indicator=1)),
    ),
]


@pytest.mark.parametrize("again", [False, True], ids=["topic unknown", "topic known"])
@pytest.mark.parametrize(("name", "version", "data", "expected"), GOOD)
def test_publish(name: str, version: int, data: bytes, expected: Publish, again: bool) -> None:
    module.known_topics.clear()
    if again:
        decode(data, version)
    assert decode(data, version) == expected


@pytest.mark.parametrize("behind", [b"", b"\x00" * 9, b"a" * 9], ids=["end", "zeros", "letters"])
@pytest.mark.parametrize("known", [False, True], ids=["topic unknown", "topic known"])
@pytest.mark.parametrize(
    ("name", "version", "data", "error", "reason"),
    [
        pytest.param(
            "QoS 3",
            5,
            frame(0x36, text("a"), u16(1), props()),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-3.3.1-4"),
        ),
        pytest.param(
            "QoS 3 in 3.1.1",
            4,
            frame(0x36, text("a"), u16(1)),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-3.3.1-4"),
        ),
        pytest.param(
            "DUP with QoS 0",
            5,
            frame(0x38, text("a"), props()),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-3.3.1-2"),
        ),
        pytest.param(
            "DUP with QoS 0 in 3.1.1",
            4,
            frame(0x38, text("a")),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-3.3.1-2"),
        ),
        pytest.param(
            "packet id 0",
            5,
            frame(0x32, text("a"), u16(0), props()),
            *VIOLATION,
            marks=pytest.mark.spec("MQTT-2.2.1-3"),
        ),
        pytest.param(
            "packet id 0 in 3.1.1",
            4,
            frame(0x34, text("a"), u16(0)),
            *VIOLATION,
            marks=pytest.mark.spec("v3:MQTT-2.3.1-1"),
        ),
        pytest.param(
            "a topic with +",
            5,
            frame(0x30, text("a/+"), props()),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-3.3.2-2", "MQTT-4.7.0-1"),
        ),
        pytest.param(
            "a topic with #",
            4,
            frame(0x30, text("a/#")),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-3.3.2-2", "v3:MQTT-4.7.1-1"),
        ),
        pytest.param(
            "no topic and no alias",
            5,
            frame(0x30, text(""), props(), b"x"),
            *VIOLATION,
            marks=pytest.mark.spec("MQTT-4.7.3-1"),
        ),
        pytest.param(
            "no topic in 3.1.1",
            4,
            frame(0x30, text(""), b"x"),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-4.7.3-1"),
        ),
        pytest.param(
            "a topic that is not UTF-8",
            5,
            frame(0x30, text(b"\xff"), props()),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-3.3.2-1", "MQTT-1.5.4-1"),
        ),
        pytest.param(
            "a topic that is not UTF-8 in 3.1.1",
            4,
            frame(0x30, text(b"\xed\xa0\x80")),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-3.3.2-1", "v3:MQTT-1.5.3-1"),
        ),
        pytest.param(
            "a topic with NUL",
            5,
            frame(0x30, text("a\0b"), props()),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-1.5.4-2", "MQTT-4.7.3-2"),
        ),
        pytest.param(
            "a topic with NUL in 3.1.1",
            4,
            frame(0x30, text("a\0b")),
            *MALFORMED,
            marks=pytest.mark.spec("v3:MQTT-1.5.3-2", "v3:MQTT-4.7.3-2"),
        ),
        pytest.param(
            "a subscription identifier from a client",
            5,
            frame(0x30, text("a"), props(b"\x0b\x01")),
            *VIOLATION,
            marks=pytest.mark.spec("MQTT-3.3.4-6"),
        ),
        pytest.param(
            "topic alias 0",
            5,
            frame(0x30, text("a"), props(b"\x23\0\0")),
            ProtocolViolation,
            ReasonCode.TOPIC_ALIAS_INVALID,
            marks=pytest.mark.spec("MQTT-3.3.2-8"),
        ),
        (
            "a payload that is not the UTF-8 it claims to be",
            5,
            frame(0x30, text("a"), props(b"\x01\x01"), b"\xff"),
            MalformedPacket,
            ReasonCode.PAYLOAD_FORMAT_INVALID,
        ),
        ("nothing at all", 4, frame(0x30), *MALFORMED),
        ("half a topic length", 4, frame(0x30, b"\0"), *MALFORMED),
        ("a topic longer than the packet", 4, frame(0x30, b"\0\x05a"), *MALFORMED),
        ("no packet id", 4, frame(0x32, text("a")), *MALFORMED),
        ("half a packet id", 4, frame(0x32, text("a"), b"\1"), *MALFORMED),
        pytest.param(
            "no property length",
            5,
            frame(0x30, text("a")),
            *MALFORMED,
            marks=pytest.mark.spec("MQTT-2.2.2-1"),
        ),
        (
            "properties longer than the packet",
            5,
            frame(0x30, text("a"), b"\x05\x01\x01"),
            *MALFORMED,
        ),
        ("a property for CONNECT", 5, frame(0x30, text("a"), props(b"\x21\0\1")), *MALFORMED),
    ],
)
def test_bad_publish(
    name: str,
    version: int,
    data: bytes,
    error: type[PeerError],
    reason: ReasonCode,
    known: bool,
    behind: bytes,
) -> None:
    """The packets behind it never make good what it lacks."""
    module.known_topics.clear()
    if known:
        for topic in ("a", "aaaaa", "\x01\x01"):
            decode(frame(0x30, text(topic)), 4)
    with pytest.raises(error) as caught:
        decode(data + behind, version)
    assert type(caught.value) is error
    assert caught.value.reason_code == reason


def test_a_client_may_be_sent_subscription_identifiers() -> None:
    packet = decode(frame(0x30, text("a"), props(b"\x0b\x01\x0b\x80\x01"), b"x"), 5, "client")
    assert packet == Publish("a", b"x", properties=Properties(subscription_identifiers=(1, 128)))


def test_messages_for_one_topic_share_its_string() -> None:
    data = frame(0x30, text("shared/é"))
    first, second = decode(data, 4), decode(frame(0x32, text("shared/é"), u16(1), b"\0"), 5)
    assert isinstance(first, Publish)
    assert isinstance(second, Publish)
    assert first.topic is second.topic


def test_the_known_topics_are_bounded() -> None:
    module.known_topics.clear()
    for number in range(TOPICS_MAX + 10):
        decode(frame(0x30, text(f"bound/{number}")), 4)
        assert len(module.known_topics) <= TOPICS_MAX
    assert len(module.known_topics) == 10


def test_long_and_bad_topics_are_not_remembered() -> None:
    module.known_topics.clear()
    longest = "t" * TOPIC_BYTES_MAX
    decode(frame(0x30, text(longest)), 4)
    decode(frame(0x30, text(longest + "t")), 4)
    decode(frame(0x30, text(""), props(b"\x23\0\x03")), 5)
    for bad in (b"a/+", b"#", b"a\0", b"\xff"):
        with pytest.raises(PeerError):
            decode(frame(0x30, text(bad)), 4)
    assert list(module.known_topics) == [longest.encode()]


def properties_of(data: bytes) -> Properties:
    packet = decode(data, 5)
    assert isinstance(packet, Publish)
    return packet.properties


def expiry(seconds: int) -> bytes:
    return frame(0x30, text("a"), props(b"\x02", u16(0), u16(seconds)), b"x")


def test_equal_property_blocks_share_one_record() -> None:
    module._blocks.clear()
    first = properties_of(expiry(7))
    assert first == Properties(message_expiry_interval=7)
    assert properties_of(expiry(7)) is first
    assert properties_of(expiry(8)) == Properties(message_expiry_interval=8)


def test_the_known_blocks_are_bounded() -> None:
    module._blocks.clear()
    for seconds in range(BLOCKS_MAX + 10):
        assert properties_of(expiry(seconds)).message_expiry_interval == seconds
        assert len(module._blocks) <= BLOCKS_MAX
    assert len(module._blocks) == 10


def test_long_and_bad_blocks_are_not_remembered() -> None:
    module._blocks.clear()
    for size in (BLOCK_BYTES_MAX - 3, BLOCK_BYTES_MAX - 2):
        properties_of(frame(0x30, text("a"), props(b"\x03", text("t" * size))))
    for bad in (props(b"\x01\x02"), props(b"\x21\0\1"), b"\x05\x01\x01"):
        with pytest.raises(PeerError):
            decode(frame(0x30, text("a"), bad), 5)
    assert [len(block) for block in module._blocks] == [BLOCK_BYTES_MAX + 1]


@pytest.mark.spec("MQTT-3.3.4-6")
def test_a_known_block_is_still_judged_by_its_sender() -> None:
    data = frame(0x30, text("a"), props(b"\x0b\x01"))
    assert decode(data, 5, "client") is not None
    with pytest.raises(ProtocolViolation):
        decode(data, 5)


def test_a_known_block_is_still_held_against_the_payload() -> None:
    assert decode(frame(0x30, text("a"), props(b"\1\1"), b"x"), 5) is not None
    with pytest.raises(MalformedPacket) as caught:
        decode(frame(0x30, text("a"), props(b"\1\1"), b"\xff"), 5)
    assert caught.value.reason_code == ReasonCode.PAYLOAD_FORMAT_INVALID
