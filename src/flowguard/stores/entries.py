"""Entries of queues in Redis and Kafka: versioned, big endian.

u8 version, u8 flags (0-1 QoS granted, 2 retain, 3 expiry, 4 identifiers), u32 size; f64 expiry;
number and identifiers, varints; the message
"""

from struct import Struct
from typing import Final

from flowguard.codec.primitives import encode_variable
from flowguard.errors import CorruptionError
from flowguard.records import NEVER_S, Delivery
from flowguard.stores.messages import decode_message, encode_message
from flowguard.stores.rows import VERSION, number, unpack

_ENTRY: Final = Struct(">BBI")
_F64: Final = Struct(">d")
_RETAIN: Final = 4
_EXPIRES: Final = 8
_IDENTIFIED: Final = 16


def encode_entry(delivery: Delivery, with_topic: bool = True) -> bytes:
    """Return the entry, without the message's topic if that is stored separately."""
    flags = delivery.qos
    if delivery.retain:
        flags |= _RETAIN
    options = b""
    if delivery.expires_at_s != NEVER_S:
        flags |= _EXPIRES
        options = _F64.pack(delivery.expires_at_s)
    if delivery.identifiers:
        flags |= _IDENTIFIED
        numbers = (len(delivery.identifiers), *delivery.identifiers)
        options += b"".join(map(encode_variable, numbers))
    head = _ENTRY.pack(VERSION, flags, delivery.size_bytes)
    return head + options + encode_message(delivery.message, with_topic)


def decode_entry(value: bytes, topic: str | None = None) -> Delivery:
    """Return the entry; `topic` is the one stored separately, if any. Raises `CorruptionError`."""
    _, flags, _ = unpack(_ENTRY, value)
    pos = _ENTRY.size
    expires_at_s = NEVER_S
    if flags & _EXPIRES:
        if len(value) < pos + _F64.size:
            raise CorruptionError("an entry is cut short")
        (expires_at_s,) = _F64.unpack_from(value, pos)
        pos += _F64.size
    identifiers: list[int] = []
    if flags & _IDENTIFIED:
        count, pos = number(value, pos)
        for _ in range(count):
            identifier, pos = number(value, pos)
            identifiers.append(identifier)
    message = decode_message(value, pos, topic=topic)
    return Delivery(message, flags & 3, bool(flags & _RETAIN), tuple(identifiers), expires_at_s)
