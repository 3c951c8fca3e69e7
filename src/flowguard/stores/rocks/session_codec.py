"""Records other than queues: sessions, subscriptions, wills, retained messages; versioned.

    session       u8 version, uid, u8 flags (0 ends), u64 qno, u32 expiry interval, f64 end
    subscription  u8 version, uid, u8 flags (0-1 QoS, 2 no local, 3 retain as published, 4-5 retain
                  handling), varint identifier
    inbound id    u8 version, uid
    will          u8 version, u32 delay, the message
    retained      u8 version, uid, f64 expiry; the message

The uid (u64 clock, u32 node) says which node put the row last, and when: a merge decides by it.
"""

from struct import Struct
from struct import error as StructError
from typing import Final

from flowguard.errors import CorruptionError
from flowguard.records import WillRecord
from flowguard.stores.messages import decode_message, encode_message
from flowguard.stores.rocks.codec import decode_varint, encode_varint
from flowguard.types import Publish, SubscriptionOptions

_VERSION: Final = 1
_SESSION: Final = Struct(">BQIBQId")
_QNO_AT: Final = 14
_SUBSCRIPTION: Final = Struct(">BQIB")
_INBOUND: Final = Struct(">BQI")
_WILL: Final = Struct(">BI")
_RETAINED: Final = Struct(">BQId")

_ENDS: Final = 1
_NO_LOCAL: Final = 4
_AS_PUBLISHED: Final = 8
_HANDLING_SHIFT: Final = 4


def row_uid(value: bytes) -> bytes:
    """The uid of a session, a subscription, an inbound id or a retained message."""
    return value[1:13]


def encode_session(
    qno: int, expiry_interval_s: int, ends_at_s: float | None, hlc: int, node: int
) -> bytes:
    flags, end_s = (0, 0.0) if ends_at_s is None else (_ENDS, ends_at_s)
    return _SESSION.pack(_VERSION, hlc, node, flags, qno, expiry_interval_s, end_s)


def decode_session(value: bytes) -> tuple[int, int, float | None]:
    """The qno, the expiry interval in seconds, and when the session ends."""
    _, _, _, flags, qno, expiry_interval_s, ends_at_s = _unpack(_SESSION, value)
    return qno, expiry_interval_s, ends_at_s if flags & _ENDS else None


def with_qno(row: bytes, qno: int) -> bytes:
    return row[:_QNO_AT] + qno.to_bytes(8, "big") + row[_QNO_AT + 8 :]


def encode_subscription(options: SubscriptionOptions, hlc: int, node: int) -> bytes:
    flags = options.qos | options.retain_handling << _HANDLING_SHIFT
    if options.no_local:
        flags |= _NO_LOCAL
    if options.retain_as_published:
        flags |= _AS_PUBLISHED
    return _SUBSCRIPTION.pack(_VERSION, hlc, node, flags) + encode_varint(options.identifier)


def decode_subscription(value: bytes) -> SubscriptionOptions:
    _, _, _, flags = _unpack(_SUBSCRIPTION, value)
    identifier, _ = decode_varint(value, _SUBSCRIPTION.size)
    no_local, as_published = bool(flags & _NO_LOCAL), bool(flags & _AS_PUBLISHED)
    return SubscriptionOptions(
        flags & 3, no_local, as_published, flags >> _HANDLING_SHIFT & 3, identifier
    )


def encode_inbound(hlc: int, node: int) -> bytes:
    return _INBOUND.pack(_VERSION, hlc, node)


def check_inbound(value: bytes) -> None:
    """Check the row. Raises `CorruptionError`."""
    _unpack(_INBOUND, value)


def encode_will(will: WillRecord) -> bytes:
    return _WILL.pack(_VERSION, will.delay_s) + encode_message(will.message)


def decode_will(value: bytes) -> WillRecord:
    _, delay_s = _unpack(_WILL, value)
    return WillRecord(decode_message(value, _WILL.size, in_will=True), delay_s)


def encode_retained(message: Publish, expires_at_s: float, hlc: int, node: int) -> bytes:
    return _RETAINED.pack(_VERSION, hlc, node, expires_at_s) + encode_message(message)


def decode_retained(value: bytes) -> tuple[Publish, float]:
    _, _, _, expires_at_s = _unpack(_RETAINED, value)
    return decode_message(value, _RETAINED.size), expires_at_s


def _unpack(layout: Struct, value: bytes) -> tuple:  # type: ignore[type-arg]
    try:
        found = layout.unpack_from(value)
    except StructError as error:
        raise CorruptionError(f"a record is cut short: {error}") from error
    if found[0] != _VERSION:
        raise CorruptionError(f"there is no such record of version {found[0]}")
    return found
