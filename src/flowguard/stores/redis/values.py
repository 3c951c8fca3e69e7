"""Values in Redis, by hand: versioned, big endian; messages lie as they lie in RocksDB.

    entry         u8 version, u8 flags (0-1 QoS granted, 2 retain, 3 expiry, 4 identifiers),
                  u32 size; f64 expiry; count and identifiers, varints; the message
    session       u8 version, u8 flags (0 ends), u32 expiry interval, f64 end
    subscription  u8 version, u8 flags (0-1 QoS, 2 no local, 3 retain as published, 4-5 retain
                  handling), varint identifier
    will          u8 version, u32 delay, the message
    retained      u8 version, f64 expiry, the message

The functions in Redis read the size of an entry, and nothing else.
"""

from struct import Struct
from struct import error as StructError
from typing import Final

from flowguard.codec.primitives import decode_variable, encode_variable
from flowguard.errors import CorruptionError, MalformedPacket
from flowguard.records import NEVER_S, Delivery, WillRecord
from flowguard.stores.messages import decode_message, encode_message
from flowguard.types import Publish, SubscriptionOptions

_VERSION: Final = 1
_ENTRY: Final = Struct(">BBI")
_F64: Final = Struct(">d")
_SESSION: Final = Struct(">BBId")
_SUBSCRIPTION: Final = Struct(">BB")
_WILL: Final = Struct(">BI")
_RETAINED: Final = Struct(">Bd")

_RETAIN: Final = 4
_EXPIRES: Final = 8
_IDENTIFIED: Final = 16
_ENDS: Final = 1
_NO_LOCAL: Final = 4
_AS_PUBLISHED: Final = 8
_HANDLING_SHIFT: Final = 4


def encode_entry(delivery: Delivery) -> bytes:
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
    head = _ENTRY.pack(_VERSION, flags, delivery.size_bytes)
    return head + options + encode_message(delivery.message)


def decode_entry(value: bytes) -> Delivery:
    """The entry. Raises `CorruptionError`."""
    _, flags, _ = _unpack(_ENTRY, value)
    pos = _ENTRY.size
    expires_at_s = NEVER_S
    if flags & _EXPIRES:
        if len(value) < pos + _F64.size:
            raise CorruptionError("an entry is cut short")
        (expires_at_s,) = _F64.unpack_from(value, pos)
        pos += _F64.size
    identifiers: list[int] = []
    if flags & _IDENTIFIED:
        count, pos = _number(value, pos)
        for _ in range(count):
            identifier, pos = _number(value, pos)
            identifiers.append(identifier)
    message = decode_message(value, pos)
    return Delivery(message, flags & 3, bool(flags & _RETAIN), tuple(identifiers), expires_at_s)


def encode_session(expiry_interval_s: int, ends_at_s: float | None) -> bytes:
    flags, end_s = (0, 0.0) if ends_at_s is None else (_ENDS, ends_at_s)
    return _SESSION.pack(_VERSION, flags, expiry_interval_s, end_s)


def decode_session(value: bytes) -> tuple[int, float | None]:
    """The expiry interval in seconds, and when the session ends. Raises `CorruptionError`."""
    _, flags, expiry_interval_s, ends_at_s = _unpack(_SESSION, value)
    return expiry_interval_s, ends_at_s if flags & _ENDS else None


def encode_subscription(options: SubscriptionOptions) -> bytes:
    flags = options.qos | options.retain_handling << _HANDLING_SHIFT
    if options.no_local:
        flags |= _NO_LOCAL
    if options.retain_as_published:
        flags |= _AS_PUBLISHED
    return _SUBSCRIPTION.pack(_VERSION, flags) + encode_variable(options.identifier)


def decode_subscription(value: bytes) -> SubscriptionOptions:
    """The options. Raises `CorruptionError`."""
    _, flags = _unpack(_SUBSCRIPTION, value)
    identifier, _ = _number(value, _SUBSCRIPTION.size)
    no_local, as_published = bool(flags & _NO_LOCAL), bool(flags & _AS_PUBLISHED)
    handling = flags >> _HANDLING_SHIFT & 3
    return SubscriptionOptions(flags & 3, no_local, as_published, handling, identifier)


def encode_will(will: WillRecord) -> bytes:
    return _WILL.pack(_VERSION, will.delay_s) + encode_message(will.message)


def decode_will(value: bytes) -> WillRecord:
    """The will. Raises `CorruptionError`."""
    _, delay_s = _unpack(_WILL, value)
    return WillRecord(decode_message(value, _WILL.size, in_will=True), delay_s)


def encode_retained(message: Publish, expires_at_s: float) -> bytes:
    return _RETAINED.pack(_VERSION, expires_at_s) + encode_message(message)


def decode_retained(value: bytes) -> tuple[Publish, float]:
    """The message, and when it expires. Raises `CorruptionError`."""
    _, expires_at_s = _unpack(_RETAINED, value)
    return decode_message(value, _RETAINED.size), expires_at_s


def _number(value: bytes, pos: int) -> tuple[int, int]:
    try:
        return decode_variable(value, pos, len(value))
    except MalformedPacket as error:
        raise CorruptionError(f"a record is damaged: {error}") from error


def _unpack(layout: Struct, value: bytes) -> tuple:  # type: ignore[type-arg]
    try:
        found = layout.unpack_from(value)
    except StructError as error:
        raise CorruptionError(f"a record is cut short: {error}") from error
    if found[0] != _VERSION:
        raise CorruptionError(f"there is no such record of version {found[0]}")
    return found
