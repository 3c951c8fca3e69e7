"""Packets by hand, for tests that must not trust the encoder."""

import re
from typing import Literal

import pytest

from flowguard.codec import Connect, Packet, PacketDecoder, Puback
from flowguard.codec.bodies import count_pubacks
from flowguard.errors import MalformedPacket, PeerError, ProtocolViolation
from flowguard.types import MQTT_5, ReasonCode

MAX = 268_435_460
"""The largest packet there can be: a limit that is none."""
MALFORMED = (MalformedPacket, ReasonCode.MALFORMED_PACKET)
VIOLATION = (ProtocolViolation, ReasonCode.PROTOCOL_ERROR)
"""The error of decoding a broken packet, and the reason code for its sender."""


def u16(number: int) -> bytes:
    return bytes((number >> 8, number & 255))


def text(value: str | bytes) -> bytes:
    """A string or binary field; bytes go out as they are, UTF-8 or not."""
    raw = value.encode() if isinstance(value, str) else value
    return u16(len(raw)) + raw


def frame(first: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    size = len(body)
    length = b""
    while size >= 128:
        length += bytes((size & 127 | 128,))
        size >>= 7
    return bytes((first,)) + length + bytes((size,)) + body


def props(*parts: bytes) -> bytes:
    """A property block of fewer than 128 bytes."""
    body = b"".join(parts)
    assert len(body) < 128
    return bytes((len(body),)) + body


def connect(
    version: int = MQTT_5,
    *,
    name: str | bytes = "",
    flags: int = 2,
    properties: bytes | None = None,
    payload: bytes = b"\x00\x01c",
) -> bytes:
    block = b"" if version != MQTT_5 else props() if properties is None else properties
    magic = name or ("MQIsdp" if version == 3 else "MQTT")
    return frame(0x10, text(magic), bytes((version, flags)), u16(60), block, payload)


def decode(
    data: bytes, version: int = MQTT_5, role: Literal["server", "client"] = "server"
) -> Packet | None:
    """Return the one packet in `data`, or None if it is not complete. Nothing may be left behind
    it.

    It is decoded by `next()` and again by `next_batch()`, which must agree on packets, errors and
    rests. So must `at_sight()`, which need not decode anything, but nothing else.
    """
    decoder, batches = PacketDecoder(MAX, version, role), PacketDecoder(MAX, version, role)
    glance = PacketDecoder(MAX, version, role)
    seen: Packet | None = glance.at_sight(data)
    if count_pubacks(data):
        seen = Puback(data[2] << 8 | data[3])
    assert glance.buffered_bytes == 0
    decoder.feed(data)
    batches.feed(data)
    broken: PeerError | None = None
    packet: Packet | None = None
    try:
        packet = decoder.next()
    except PeerError as error:
        broken = error
    if broken is not None:
        assert seen is None
        with pytest.raises(type(broken), match=re.escape(broken.why)) as caught:
            batches.next_batch(10)
        assert caught.value.reason_code == broken.reason_code
        assert batches.version == decoder.version
        raise broken
    assert seen is None or packet == seen
    batch = batches.next_batch(10)
    assert batch == ([] if packet is None else [packet])
    assert batches.buffered_bytes == decoder.buffered_bytes
    if packet is not None:
        assert type(batch[0]) is type(packet)
        assert decoder.next() is None
        assert decoder.buffered_bytes == 0
    return packet


def decode_connect(data: bytes) -> Connect:
    packet = decode(data, 0)
    assert isinstance(packet, Connect)
    return packet
