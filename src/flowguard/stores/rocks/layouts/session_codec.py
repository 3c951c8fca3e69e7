"""Records other than queues: sessions, subscriptions, wills, retained messages; versioned.

    session       u8 version, uid, u8 flags (0 ends, 1 application), u64 qno, u32 expiry interval,
                  f64 end, user or empty
    subscription  u8 version, uid, u8 flags (`stores.rows`), varint identifier, topic or empty
    inbound id    u8 version, uid
    will          `stores.rows`
    retained      u8 version, uid, f64 expiry; the message

The uid (u64 clock, u32 node) has the node and time of the row's last write; a merge compares it.
"""

from struct import Struct
from typing import Final

from flowguard.stores.messages import decode_message, encode_message
from flowguard.stores.rocks.layouts.codec import decode_varint, encode_varint
from flowguard.stores.rows import (
    VERSION,
    retained_after,
    subscription_flags,
    subscription_options,
    text,
    unpack,
)
from flowguard.types import Publish, SubscriptionOptions

_SESSION: Final = Struct(">BQIBQId")
_QNO_AT: Final = 14
_SUBSCRIPTION: Final = Struct(">BQIB")
_INBOUND: Final = Struct(">BQI")
_RETAINED: Final = Struct(">BQId")

_ENDS: Final = 1
_APPLICATION: Final = 2


def row_uid(value: bytes) -> bytes:
    """Return the uid of a session, a subscription, an inbound id or a retained message."""
    return value[1:13]


def encode_session(
    qno: int,
    expiry_interval_s: int,
    ends_at_s: float | None,
    hlc: int,
    node: int,
    *,
    is_application: bool = False,
    user: str = "",
) -> bytes:
    flags, end_s = (0, 0.0) if ends_at_s is None else (_ENDS, ends_at_s)
    if is_application:
        flags |= _APPLICATION
    head = _SESSION.pack(VERSION, hlc, node, flags, qno, expiry_interval_s, end_s)
    return head + user.encode()


def decode_session(value: bytes) -> tuple[int, int, float | None]:
    """Return the qno, the expiry interval in seconds, and the end of the session or None."""
    _, _, _, flags, qno, expiry_interval_s, ends_at_s = unpack(_SESSION, value)
    return qno, expiry_interval_s, ends_at_s if flags & _ENDS else None


def is_applications(value: bytes) -> bool:
    return bool(unpack(_SESSION, value)[3] & _APPLICATION)


def session_user(value: bytes) -> str:
    """Return the user of a session, or "" if it has none. Raises `CorruptionError`."""
    return text(value[_SESSION.size :])


def with_qno(row: bytes, qno: int) -> bytes:
    return row[:_QNO_AT] + qno.to_bytes(8, "big") + row[_QNO_AT + 8 :]


def encode_subscription(
    options: SubscriptionOptions, after: str | None, hlc: int, node: int
) -> bytes:
    """`after` is the topic after which retained messages are still to be sent, or None."""
    head = _SUBSCRIPTION.pack(VERSION, hlc, node, subscription_flags(options, after))
    return head + encode_varint(options.identifier) + (after or "").encode()


def decode_subscription(value: bytes) -> tuple[SubscriptionOptions, str | None]:
    """Return options, and the topic after which retained messages are still to send, or None."""
    _, _, _, flags = unpack(_SUBSCRIPTION, value)
    identifier, end = decode_varint(value, _SUBSCRIPTION.size)
    return subscription_options(flags, identifier), retained_after(flags, value[end:])


def encode_inbound(hlc: int, node: int) -> bytes:
    return _INBOUND.pack(VERSION, hlc, node)


def check_inbound(value: bytes) -> None:
    """Check the row. Raises `CorruptionError`."""
    unpack(_INBOUND, value)


def encode_retained(message: Publish, expires_at_s: float, hlc: int, node: int) -> bytes:
    return _RETAINED.pack(VERSION, hlc, node, expires_at_s) + encode_message(message)


def decode_retained(value: bytes) -> tuple[Publish, float]:
    _, _, _, expires_at_s = unpack(_RETAINED, value)
    return decode_message(value, _RETAINED.size), expires_at_s
