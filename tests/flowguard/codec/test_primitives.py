import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.codec import primitives as p
from flowguard.errors import MalformedPacket
from flowguard.types import ReasonCode
from tests.flowguard.codec.strategies import texts

VARIABLES = [
    (0, "00"),
    (127, "7f"),
    (128, "8001"),
    (16_383, "ff7f"),
    (16_384, "808001"),
    (2_097_151, "ffff7f"),
    (2_097_152, "80808001"),
    (268_435_455, "ffffff7f"),
]


@pytest.mark.spec("MQTT-1.5.5-1")
@pytest.mark.parametrize(("number", "wire"), VARIABLES)
def test_a_variable_byte_integer_is_as_short_as_can_be(number: int, wire: str) -> None:
    raw = bytes.fromhex(wire)
    assert p.encode_variable(number) == raw
    assert p.decode_variable(b"\xff" + raw + b"\xff", 1, 1 + len(raw)) == (number, 1 + len(raw))


@pytest.mark.spec("MQTT-1.5.5-1")
@pytest.mark.parametrize("wire", ["8000", "ff00", "808000", "80808000"])
def test_a_variable_byte_integer_longer_than_needed_is_malformed(wire: str) -> None:
    with pytest.raises(MalformedPacket):
        p.decode_variable(bytes.fromhex(wire), 0, len(wire) // 2)


@pytest.mark.parametrize("wire", ["", "80", "ffff", "ffffff", "ffffffff", "8080808001"])
def test_a_variable_byte_integer_has_one_to_four_bytes(wire: str) -> None:
    with pytest.raises(MalformedPacket):
        p.decode_variable(bytes.fromhex(wire), 0, len(wire) // 2)


@given(st.integers(0, p.VARIABLE_MAX))
def test_variable_byte_integers_come_back(number: int) -> None:
    raw = p.encode_variable(number)
    assert p.decode_variable(raw, 0, len(raw)) == (number, len(raw))


@pytest.mark.parametrize("number", [-1, p.VARIABLE_MAX + 1])
def test_a_number_no_variable_byte_integer_holds_is_a_bug(number: int) -> None:
    with pytest.raises(AssertionError):
        p.encode_variable(number)


def test_integers_come_back() -> None:
    assert p.decode_byte(b"\x07", 0, 1) == (7, 1)
    assert p.decode_u16(p.encode_u16(0xABCD), 0, 2) == (0xABCD, 2)
    assert p.decode_u32(p.encode_u32(0x0123_ABCD), 0, 4) == (0x0123_ABCD, 4)


@pytest.mark.parametrize(
    ("reader", "size"),
    [
        (p.decode_byte, 0),
        (p.decode_u16, 1),
        (p.decode_u32, 3),
        (p.decode_binary, 1),
        (p.decode_binary, 3),
        (p.decode_string, 3),
    ],
)
def test_nothing_behind_the_end_is_read(reader, size: int) -> None:
    data = b"\x00\x02\x41\x41\x41\x41"
    with pytest.raises(MalformedPacket) as caught:
        reader(data, 0, size)
    assert caught.value.reason_code == ReasonCode.MALFORMED_PACKET


@given(texts)
@pytest.mark.spec("MQTT-1.5.4-1", "v3:MQTT-1.5.3-1")
def test_strings_come_back(value: str) -> None:
    raw = p.encode_string(value)
    assert raw[2:] == value.encode("utf-8")
    assert p.decode_string(raw, 0, len(raw)) == (value, len(raw))


@pytest.mark.spec("MQTT-1.5.4-1", "v3:MQTT-1.5.3-1")
@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("a lone continuation byte", b"a\x80"),
        ("a character cut short", b"\xe2\x82"),
        ("the first surrogate", b"\xed\xa0\x80"),
        ("the last surrogate", b"\xed\xbf\xbf"),
        ("a surrogate pair, as in CESU-8", b"\xed\xa0\xbd\xed\xb8\x80"),
        ("an overlong slash", b"\xc0\xaf"),
        ("above U+10FFFF", b"\xf4\x90\x80\x80"),
        ("a byte that is never used", b"\xff"),
    ],
)
def test_what_is_not_utf8_is_malformed(name: str, raw: bytes) -> None:
    with pytest.raises(MalformedPacket) as caught:
        p.decode_text(raw)
    assert caught.value.reason_code == ReasonCode.MALFORMED_PACKET


@pytest.mark.spec("MQTT-1.5.4-2", "v3:MQTT-1.5.3-2")
@pytest.mark.parametrize("raw", [b"\0", b"a\0b", b"a\0"])
def test_a_string_with_nul_is_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedPacket):
        p.decode_text(raw)


@pytest.mark.spec("MQTT-1.5.4-1", "v3:MQTT-1.5.3-1")
def test_an_overlong_nul_is_malformed() -> None:
    with pytest.raises(MalformedPacket):
        p.decode_text(b"\xc0\x80")


@pytest.mark.spec("MQTT-1.5.4-3", "v3:MQTT-1.5.3-3")
@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"\xef\xbb\xbfa", "\ufeffa"),
        (b"a\xef\xbb\xbf", "a\ufeff"),
        (b"a\xef\xbb\xbfb", "a\ufeffb"),
        (b"\xef\xbb\xbf", "\ufeff"),
    ],
)
def test_a_byte_order_mark_is_a_character_like_others(raw: bytes, value: str) -> None:
    assert p.decode_text(raw) == value
    assert p.encode_string(value)[2:] == raw


def test_binary_fields_come_back() -> None:
    assert p.decode_binary(p.encode_binary(b"\0\xff"), 0, 4) == (b"\0\xff", 4)


@given(st.binary(max_size=40) | texts.map(str.encode))
def test_utf8_payloads_are_told_from_others(payload: bytes) -> None:
    try:
        payload.decode()
        expected = True
    except UnicodeDecodeError:
        expected = False
    assert p.is_utf8(payload) is expected


@pytest.mark.parametrize("shift", range(5))
@pytest.mark.parametrize("character", ["é", "€", "😀"])
def test_a_character_across_the_border_of_two_chunks(character: str, shift: int) -> None:
    payload = b"x" * (65_536 - shift) + character.encode() * 40_000
    assert p.is_utf8(payload)
    assert not p.is_utf8(payload[:-1])
    assert not p.is_utf8(payload + b"\xff" + payload)


def test_checking_a_large_payload_takes_little_memory() -> None:
    payload = "😀".encode() * 1_000_000
    tracemalloc.start()
    try:
        assert p.is_utf8(payload)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
