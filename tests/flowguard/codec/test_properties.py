from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.codec import properties as p
from flowguard.codec import tables as t
from flowguard.codec.properties import TABLE, WILL, Property, decode_properties, encode_properties
from flowguard.errors import MalformedPacket, PeerError, ProtocolViolation
from flowguard.types import NO_PROPERTIES, Properties, ReasonCode
from tests.flowguard.codec import strategies
from tests.flowguard.codec.wire import props, text

SAMPLE = {
    p.BYTE: b"\x01",
    p.U16: b"\x00\x07",
    p.U32: b"\x00\x00\x00\x07",
    p.VARIABLE: b"\x07",
    p.STRING: text("s"),
    p.BINARY: text(b"\xff"),
    p.PAIR: text("k") + text("v"),
}
VALUE: dict[int, object] = {
    p.BYTE: 1,
    p.U16: 7,
    p.U32: 7,
    p.VARIABLE: (7,),
    p.STRING: "s",
    p.BINARY: b"\xff",
    p.PAIR: (("k", "v"),),
}
PACKETS = range(1, 16)


def decode(block: bytes, packet_type: int, *, in_will: bool = False) -> Properties:
    properties, after = decode_properties(
        b"\xaa" + block + b"\xaa", 1, 1 + len(block), packet_type, in_will
    )
    assert after == 1 + len(block)
    return properties


def error(block: bytes, packet_type: int, *, in_will: bool = False) -> PeerError:
    with pytest.raises(PeerError) as caught:
        decode(block, packet_type, in_will=in_will)
    return caught.value


def carrier_of(row: Property) -> tuple[int, bool]:
    """One packet that may carry it."""
    if row.carriers == WILL:
        return t.CONNECT, True
    return next(n for n in PACKETS if row.carriers >> n & 1), False


def test_the_table_names_every_field_once() -> None:
    assert sorted(row.field for row in TABLE) == sorted(item.name for item in fields(Properties))
    assert len({row.number for row in TABLE}) == 27


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.field)
def test_each_property_both_ways(row: Property) -> None:
    block = props(bytes((row.number,)) + SAMPLE[row.wire])
    packet_type, in_will = carrier_of(row)
    expected = Properties(**{row.field: VALUE[row.wire]})  # type: ignore[arg-type]
    assert decode(block, packet_type, in_will=in_will) == expected
    assert encode_properties(expected) == block


# MQTT 5.0, table 2-4, written down a second time: property -> packets; 0 is the will.
WHO_CARRIES_WHAT = {
    1: {3, 0},
    2: {3, 0},
    3: {3, 0},
    8: {3, 0},
    9: {3, 0},
    11: {3, 8},
    17: {1, 2, 14},
    18: {2},
    19: {2},
    21: {1, 2, 15},
    22: {1, 2, 15},
    23: {1},
    24: {0},
    25: {1},
    26: {2},
    28: {2, 14},
    31: {2, 4, 5, 6, 7, 9, 11, 14, 15},
    33: {1, 2},
    34: {1, 2},
    35: {3},
    36: {2},
    37: {2},
    38: {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14, 15},
    39: {1, 2},
    40: {2},
    41: {2},
    42: {2},
}


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.field)
def test_only_its_packets_carry_a_property(row: Property) -> None:
    block = props(bytes((row.number,)) + SAMPLE[row.wire])
    for packet_type in range(16):
        in_will = packet_type == 0
        place = t.CONNECT if in_will else packet_type
        if packet_type in WHO_CARRIES_WHAT[row.number]:
            assert decode(block, place, in_will=in_will) is not NO_PROPERTIES
        else:
            refused = error(block, place, in_will=in_will)
            assert isinstance(refused, MalformedPacket)
            assert refused.reason_code == ReasonCode.MALFORMED_PACKET


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.field)
def test_only_some_properties_may_come_twice(row: Property) -> None:
    one = bytes((row.number,)) + SAMPLE[row.wire]
    packet_type, in_will = carrier_of(row)
    if row.field in ("user_properties", "subscription_identifiers"):
        twice = getattr(decode(props(one, one), packet_type, in_will=in_will), row.field)
        assert twice == VALUE[row.wire] * 2  # type: ignore[operator]
    else:
        refused = error(props(one, one), packet_type, in_will=in_will)
        assert isinstance(refused, ProtocolViolation)
        assert refused.reason_code == ReasonCode.PROTOCOL_ERROR


def test_a_subscribe_has_one_identifier() -> None:
    assert decode(props(b"\x0b\x01"), t.SUBSCRIBE).subscription_identifiers == (1,)
    refused = error(props(b"\x0b\x01\x0b\x02"), t.SUBSCRIBE)
    assert refused.reason_code == ReasonCode.PROTOCOL_ERROR


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.field)
def test_a_property_cut_short_is_malformed(row: Property) -> None:
    whole = bytes((row.number,)) + SAMPLE[row.wire]
    packet_type, in_will = carrier_of(row)
    for size in range(1, len(whole)):
        refused = error(props(whole[:size]), packet_type, in_will=in_will)
        assert refused.reason_code == ReasonCode.MALFORMED_PACKET


@pytest.mark.parametrize(
    ("name", "packet_type", "block", "reason"),
    [
        ("receive maximum 0", t.CONNECT, "21 0000", ReasonCode.PROTOCOL_ERROR),
        ("maximum packet size 0", t.CONNECT, "27 00000000", ReasonCode.PROTOCOL_ERROR),
        pytest.param(
            "topic alias 0",
            t.PUBLISH,
            "23 0000",
            ReasonCode.TOPIC_ALIAS_INVALID,
            marks=pytest.mark.spec("MQTT-3.3.2-8"),
        ),
        ("subscription identifier 0", t.SUBSCRIBE, "0b 00", ReasonCode.PROTOCOL_ERROR),
        ("payload format 2", t.PUBLISH, "01 02", ReasonCode.PROTOCOL_ERROR),
        ("request problem information 2", t.CONNECT, "17 02", ReasonCode.PROTOCOL_ERROR),
        ("request response information 2", t.CONNECT, "19 02", ReasonCode.PROTOCOL_ERROR),
        ("maximum QoS 2", t.CONNACK, "24 02", ReasonCode.PROTOCOL_ERROR),
        ("retain available 2", t.CONNACK, "25 02", ReasonCode.PROTOCOL_ERROR),
        ("wildcards available 255", t.CONNACK, "28 ff", ReasonCode.PROTOCOL_ERROR),
        pytest.param(
            "a response topic with +",
            t.PUBLISH,
            "08 0003 612f2b",
            ReasonCode.MALFORMED_PACKET,
            marks=pytest.mark.spec("MQTT-3.3.2-14"),
        ),
        pytest.param(
            "a response topic with #",
            t.PUBLISH,
            "08 0001 23",
            ReasonCode.MALFORMED_PACKET,
            marks=pytest.mark.spec("MQTT-3.3.2-14"),
        ),
        pytest.param(
            "an empty response topic",
            t.PUBLISH,
            "08 0000",
            ReasonCode.MALFORMED_PACKET,
            marks=pytest.mark.spec("MQTT-4.7.3-1"),
        ),
        pytest.param(
            "a response topic that is not UTF-8",
            t.PUBLISH,
            "08 0001 ff",
            ReasonCode.MALFORMED_PACKET,
            marks=pytest.mark.spec("MQTT-3.3.2-13"),
        ),
        pytest.param(
            "a content type that is not UTF-8",
            t.PUBLISH,
            "03 0001 ff",
            ReasonCode.MALFORMED_PACKET,
            marks=pytest.mark.spec("MQTT-3.3.2-19"),
        ),
        pytest.param(
            "a user property's name with NUL",
            t.PUBLISH,
            "26 0001 00 0001 61",
            ReasonCode.MALFORMED_PACKET,
            marks=pytest.mark.spec("MQTT-1.5.7-1"),
        ),
        pytest.param(
            "a user property's value with a surrogate",
            t.PUBLISH,
            "26 0001 61 0003 eda080",
            ReasonCode.MALFORMED_PACKET,
            marks=pytest.mark.spec("MQTT-1.5.7-1"),
        ),
        pytest.param(
            "a subscription identifier with a byte too many",
            t.SUBSCRIBE,
            "0b 8100",
            ReasonCode.MALFORMED_PACKET,
            marks=pytest.mark.spec("MQTT-1.5.5-1"),
        ),
        ("a property that does not exist", t.PUBLISH, "04 00", ReasonCode.MALFORMED_PACKET),
        ("an identifier of two bytes", t.PUBLISH, "8101 00", ReasonCode.MALFORMED_PACKET),
    ],
)
def test_a_bad_value_has_its_reason_code(
    name: str, packet_type: int, block: str, reason: ReasonCode
) -> None:
    refused = error(props(bytes.fromhex(block)), packet_type)
    assert refused.reason_code == reason
    assert isinstance(refused, MalformedPacket) is (reason == ReasonCode.MALFORMED_PACKET)


def test_a_block_longer_than_the_packet_is_malformed() -> None:
    with pytest.raises(MalformedPacket):
        decode_properties(b"\x03\x01\x01\x26\x00", 0, 3, t.PUBLISH)


def test_a_missing_block_is_malformed() -> None:
    with pytest.raises(MalformedPacket):
        decode_properties(b"\x00", 1, 1, t.PUBLISH)


@pytest.mark.spec("MQTT-2.2.2-1")
def test_no_properties_are_one_record_and_one_byte() -> None:
    assert decode(b"\0", t.PUBLISH) is NO_PROPERTIES
    assert encode_properties(NO_PROPERTIES) == b"\0"
    assert encode_properties(Properties()) == b"\0"


def test_zero_is_a_value_and_not_absence() -> None:
    properties = Properties(message_expiry_interval=0, content_type="", correlation_data=b"")
    block = encode_properties(properties)
    assert block == props(b"\x02\0\0\0\0", b"\x03\0\0", b"\x09\0\0")
    assert decode(block, t.PUBLISH) == properties


def test_user_properties_keep_their_order_and_repetitions() -> None:
    pairs = (("b", "2"), ("a", "1"), ("b", "1"), ("b", "2"))
    properties = Properties(user_properties=pairs, content_type="x")
    assert decode(encode_properties(properties), t.PUBLISH).user_properties == pairs


def test_equal_properties_are_equal_bytes() -> None:
    one = Properties(content_type="x", topic_alias=4)
    assert encode_properties(one) == encode_properties(Properties(topic_alias=4, content_type="x"))


@given(st.data(), st.sampled_from(PACKETS))
def test_properties_come_back(data: st.DataObject, packet_type: int) -> None:
    properties = data.draw(strategies.properties(packet_type))
    assert decode(encode_properties(properties), packet_type) == properties


@given(st.data())
def test_will_properties_come_back(data: st.DataObject) -> None:
    properties = data.draw(strategies.properties(t.CONNECT, in_will=True))
    assert decode(encode_properties(properties), t.CONNECT, in_will=True) == properties


@given(st.binary(max_size=60), st.sampled_from(PACKETS), st.booleans())
def test_any_bytes_are_properties_or_a_peer_error(
    block: bytes, packet_type: int, in_will: bool
) -> None:
    try:
        _, after = decode_properties(block, 0, len(block), packet_type, in_will)
    except PeerError:
        return
    assert 0 < after <= len(block)
