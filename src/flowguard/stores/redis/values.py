"""Values in Redis: versioned, big endian. Messages have the same format as in RocksDB.

    entry         `stores.entries`
    state         u64 last commit, u64 bytes of all entries, u64 next position, u64 highest
                  position sent; token of the owner
    session       u8 version, u8 flags (0 ends, 1 application), u32 expiry interval, f64 end,
                  user or empty
    subscription  u8 version, u8 flags (`stores.rows`), varint identifier, topic or empty
    will          `stores.rows`
    retained      u8 version, f64 expiry, the message

The functions in Redis read only states and the sizes of entries.
"""

from struct import Struct
from typing import Final

from flowguard.codec.primitives import encode_variable
from flowguard.errors import CorruptionError
from flowguard.stores.messages import decode_message, encode_message
from flowguard.stores.rows import (
    VERSION,
    number,
    retained_after,
    subscription_flags,
    subscription_options,
    text,
    unpack,
)
from flowguard.types import Publish, SubscriptionOptions

_SESSION: Final = Struct(">BBId")
_STATE: Final = Struct(">QQQQ")
_SUBSCRIPTION: Final = Struct(">BB")
_RETAINED: Final = Struct(">Bd")

_ENDS: Final = 1
_APPLICATION: Final = 2


def encode_session(
    expiry_interval_s: int, ends_at_s: float | None, *, is_application: bool = False, user: str = ""
) -> bytes:
    flags, end_s = (0, 0.0) if ends_at_s is None else (_ENDS, ends_at_s)
    if is_application:
        flags |= _APPLICATION
    return _SESSION.pack(VERSION, flags, expiry_interval_s, end_s) + user.encode()


def decode_session(value: bytes) -> tuple[int, float | None]:
    """Return the expiry interval in seconds, and the end of the session or None. Raises
    `CorruptionError`."""
    _, flags, expiry_interval_s, ends_at_s = unpack(_SESSION, value)
    return expiry_interval_s, ends_at_s if flags & _ENDS else None


def is_applications(value: bytes) -> bool:
    """Return True if a session is an application's. Raises `CorruptionError`."""
    return bool(unpack(_SESSION, value)[1] & _APPLICATION)


def session_user(value: bytes) -> str:
    """Return the user of a session, or "" if it has none. Raises `CorruptionError`."""
    return text(value[_SESSION.size :])


def decode_state(value: bytes) -> tuple[int, int, int, int]:
    """Return last commit, bytes, next position and highest position sent. Raises
    `CorruptionError`."""
    if len(value) < _STATE.size:
        raise CorruptionError("the state of a session is cut short")
    version, size_bytes, next_pos, sent_pos = _STATE.unpack_from(value)
    return version, size_bytes, next_pos, sent_pos


def encode_subscription(options: SubscriptionOptions, after: str | None) -> bytes:
    """`after` is the topic after which retained messages are still to be sent, or None."""
    head = _SUBSCRIPTION.pack(VERSION, subscription_flags(options, after))
    return head + encode_variable(options.identifier) + (after or "").encode()


def decode_subscription(value: bytes) -> tuple[SubscriptionOptions, str | None]:
    """Return the options, and the topic after which retained messages are still to be sent, or
    None. Raises `CorruptionError`."""
    _, flags = unpack(_SUBSCRIPTION, value)
    identifier, end = number(value, _SUBSCRIPTION.size)
    return subscription_options(flags, identifier), retained_after(flags, value[end:])


def encode_retained(message: Publish, expires_at_s: float) -> bytes:
    return _RETAINED.pack(VERSION, expires_at_s) + encode_message(message)


def decode_retained(value: bytes) -> tuple[Publish, float]:
    """Return the message and its expiry. Raises `CorruptionError`."""
    _, expires_at_s = unpack(_RETAINED, value)
    return decode_message(value, _RETAINED.size), expires_at_s
