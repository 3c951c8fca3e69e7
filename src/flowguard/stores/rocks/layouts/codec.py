"""Records of messages and entries: versioned, big endian, no reflection.

Encoders do not check their arguments. Decoders raise `CorruptionError` for damaged records.

    message   as in `flowguard.stores.messages`
    entry     u8 version and kind, u8 flags (0-1 QoS granted, 2 retain, 3 expiry, 4 identifiers),
              u32 size, uid: u64 clock, u32 node; the uid of the message, if it is in family p;
              f64 expiry; number and identifiers, varints; the message, if it is inline

The uid of an entry is unique among all queues and all copies of the directory.
"""

from struct import Struct
from typing import Final

from flowguard.errors import CorruptionError
from flowguard.records import NEVER_S, Delivery
from flowguard.stores.messages import MESSAGE, RETAIN, decode_message, encode_message
from flowguard.types import NO_PROPERTIES

UID_BYTES: Final = 12
INLINE: Final = b"\0"
"""`Delivery.place` of a message in its entry; a uid means family p, empty means unknown."""

_ENTRY_INLINE: Final = 0x10
_ENTRY_SHARED: Final = 0x11

_F64: Final = Struct(">d")
_HEAD: Final = Struct(">BBIQI")
_BOTH_HEADS: Final = Struct(">BBIQIBBH")
_UID_AT: Final = 6
_HEAD_BYTES: Final = 18
_SHARED_HEAD_BYTES: Final = 30

_EXPIRES: Final = 8
_IDENTIFIED: Final = 16


def encode_varint(value: int) -> bytes:
    """Return a value of any size with seven bits a byte, least significant first."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_varint(data: bytes, pos: int) -> tuple[int, int]:
    """Return the value at `pos`, and the position after it."""
    value = 0
    shift = 0
    while pos < len(data):
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
    raise CorruptionError("a number is cut short")


def uid(hlc: int, node: int) -> bytes:
    return hlc.to_bytes(8, "big") + node.to_bytes(4, "big")


# --- entries --------------------------------------------------------------------------------------


def encode_entry(delivery: Delivery, size_bytes: int, hlc: int, node: int) -> bytes:
    message = delivery.message
    flags = delivery.qos
    if delivery.retain:
        flags |= RETAIN
    if (
        message.properties is NO_PROPERTIES
        and not delivery.identifiers
        and delivery.expires_at_s == NEVER_S
    ):
        # A faster path for the frequent case.
        topic = message.topic.encode()
        of_message = message.qos
        if message.retain:
            of_message |= RETAIN
        head = _BOTH_HEADS.pack(
            _ENTRY_INLINE, flags, size_bytes, hlc, node, MESSAGE, of_message, len(topic)
        )
        return head + topic + message.payload
    flags, options = _options(delivery, flags)
    head = _HEAD.pack(_ENTRY_INLINE, flags, size_bytes, hlc, node)
    return b"".join((head, options, encode_message(message)))


def encode_shared_entry(
    delivery: Delivery, size_bytes: int, hlc: int, node: int, place: bytes
) -> bytes:
    """Return an entry whose message is in family p, with the uid `place`."""
    flags = delivery.qos
    if delivery.retain:
        flags |= RETAIN
    flags, options = _options(delivery, flags)
    return _HEAD.pack(_ENTRY_SHARED, flags, size_bytes, hlc, node) + place + options


def _options(delivery: Delivery, flags: int) -> tuple[int, bytes]:
    options = b""
    if delivery.expires_at_s != NEVER_S:
        flags |= _EXPIRES
        options = _F64.pack(delivery.expires_at_s)
    if delivery.identifiers:
        flags |= _IDENTIFIED
        options += encode_varint(len(delivery.identifiers))
        for identifier in delivery.identifiers:
            options += encode_varint(identifier)
    return flags, options


def entry_size_bytes(value: bytes) -> int:
    """Return the size in bytes that the entry counts in its queue."""
    if len(value) < _HEAD_BYTES:
        raise CorruptionError("an entry is cut short")
    return int.from_bytes(value[2:6], "big")


def entry_uid(value: bytes) -> bytes:
    """Return the uid of the entry; byte order is the order in which a node accepted entries."""
    return value[_UID_AT:_HEAD_BYTES]


def entry_place(value: bytes) -> bytes:
    """Return the place of an entry's message: its uid in family p, or INLINE."""
    kind = value[0] if len(value) >= _HEAD_BYTES else 0
    if kind == _ENTRY_INLINE:
        return INLINE
    if kind != _ENTRY_SHARED or len(value) < _SHARED_HEAD_BYTES:
        raise CorruptionError("an entry is damaged, or of another version")
    return value[_HEAD_BYTES:_SHARED_HEAD_BYTES]


def decode_entry(value: bytes, shared: bytes | None) -> Delivery:
    """`shared` is the row of family p if `entry_place` returns a uid."""
    place = entry_place(value)
    flags = value[1]
    pos = _HEAD_BYTES if place is INLINE else _SHARED_HEAD_BYTES
    expires_at_s = NEVER_S
    if flags & _EXPIRES:
        if len(value) < pos + 8:
            raise CorruptionError("an entry is cut short")
        (expires_at_s,) = _F64.unpack_from(value, pos)
        pos += 8
    identifiers: tuple[int, ...] = ()
    if flags & _IDENTIFIED:
        count, pos = decode_varint(value, pos)
        found: list[int] = []
        while len(found) < count:
            identifier, pos = decode_varint(value, pos)
            found.append(identifier)
        identifiers = tuple(found)
    if place is INLINE:
        message = decode_message(value, pos)
    elif shared is None:
        raise CorruptionError("an entry's message is not there")
    else:
        message = decode_message(shared, 0)
    retain = bool(flags & RETAIN)
    return Delivery(message, flags & 3, retain, identifiers, expires_at_s, place=place)
