"""The data representations of MQTT (5.0 section 1.5, 3.1.1 section 1.5): bytes <-> values.

Readers take `(data, pos, end)` and return `(value, position after it)`. They read nothing from
`end` on; a value that does not fit before it is a MalformedPacket. Writers trust their caller: a
value out of range is a bug and raises OverflowError or AssertionError.
"""

from typing import Final

from flowguard.errors import MalformedPacket
from flowguard.types import MQTT_5

VARIABLE_MAX: Final = 268_435_455
U16_MAX: Final = 65_535
_UTF8_CHUNK_BYTES: Final = 65_536
_U16: Final = b"".join([value.to_bytes(2, "big") for value in range(U16_MAX + 1)])
"""All two-byte integers in order: to slice one takes a third of the time of encoding it."""


def decode_byte(data: bytes, pos: int, end: int) -> tuple[int, int]:
    if pos >= end:
        raise MalformedPacket("a byte is missing")
    return data[pos], pos + 1


def decode_u16(data: bytes, pos: int, end: int) -> tuple[int, int]:
    if pos + 2 > end:
        raise MalformedPacket("a two byte integer is cut short")
    return data[pos] << 8 | data[pos + 1], pos + 2


def decode_u32(data: bytes, pos: int, end: int) -> tuple[int, int]:
    if pos + 4 > end:
        raise MalformedPacket("a four byte integer is cut short")
    return int.from_bytes(data[pos : pos + 4], "big"), pos + 4


def decode_variable(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """Return a variable byte integer inside a packet; only MQTT 5.0 has them there."""
    value = 0
    for shift in (0, 7, 14, 21):
        if pos >= end:
            raise MalformedPacket("a variable byte integer is cut short")
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                # [MQTT-1.5.5-1]
                raise MalformedPacket("a variable byte integer takes more bytes than it needs")
            return value, pos
    raise MalformedPacket("a variable byte integer takes more than four bytes")


def remaining_length(buffer: bytes | bytearray, pos: int, version: int) -> tuple[int, int]:
    """Return the remaining length of the packet at `pos`, and its end; IndexError if incomplete."""
    size = 0
    for at in range(1, 5):
        byte = buffer[pos + at]
        size |= (byte & 0x7F) << 7 * at - 7
        if byte < 0x80:
            if byte == 0 and at > 1 and version == MQTT_5:
                # [MQTT-1.5.5-1]
                raise MalformedPacket("a remaining length takes more bytes than it needs")
            return size, pos + at + 1
    raise MalformedPacket("a remaining length of more than four bytes")


def decode_binary(data: bytes, pos: int, end: int) -> tuple[bytes, int]:
    length, pos = decode_u16(data, pos, end)
    after = pos + length
    if after > end:
        raise MalformedPacket("a string or binary field is cut short")
    return data[pos:after], after


def decode_string(data: bytes, pos: int, end: int) -> tuple[str, int]:
    raw, pos = decode_binary(data, pos, end)
    return decode_text(raw), pos


def decode_text(raw: bytes) -> str:
    """Return the text of a UTF-8 encoded string without its length."""
    try:
        # Python's strict decoder rejects surrogates and overlong forms, and keeps U+FEFF.
        text = raw.decode()  # [MQTT-1.5.4-1, MQTT-1.5.4-3] [v3 MQTT-1.5.3-1, v3 MQTT-1.5.3-3]
    except UnicodeDecodeError:
        raise MalformedPacket("a string is not UTF-8") from None
    if "\0" in text:
        # [MQTT-1.5.4-2] [v3 MQTT-1.5.3-2]
        raise MalformedPacket("a string holds U+0000")
    return text


def is_utf8(payload: bytes) -> bool:
    """Return True if a payload is UTF-8, also with NUL. O(n), and memory for 64 KiB of text."""
    if payload.isascii():
        return True
    pos = 0
    while pos < len(payload):
        chunk = payload[pos : pos + _UTF8_CHUNK_BYTES]
        try:
            chunk.decode()
        except UnicodeDecodeError as error:
            cut = len(chunk) - error.start
            if error.reason != "unexpected end of data" or pos + len(chunk) == len(payload):
                return False
            pos -= cut  # A character crosses the border and begins the next chunk.
        pos += len(chunk)
    return True


def encode_u16(value: int) -> bytes:
    assert 0 <= value <= U16_MAX
    return _U16[2 * value : 2 * value + 2]


def encode_u32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def encode_variable(value: int) -> bytes:
    """The value as a variable byte integer, in the fewest bytes that hold it."""  # [MQTT-1.5.5-1]
    assert 0 <= value <= VARIABLE_MAX
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_binary(value: bytes) -> bytes:
    return encode_u16(len(value)) + value


def encode_string(text: str) -> bytes:
    raw = text.encode()
    return encode_u16(len(raw)) + raw
