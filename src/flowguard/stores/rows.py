"""Parts of records with the same format in all stores: wills, subscription flags, versions.

will          u8 version, u32 delay, the message
flags         0-1 QoS, 2 no local, 3 retain as published, 4-5 retain handling, 6 retained messages
              are still to be sent: those of topics after the one at the end of the row
"""

from struct import Struct
from struct import error as StructError
from typing import Final

from flowguard.codec.primitives import decode_variable
from flowguard.errors import CorruptionError, MalformedPacket
from flowguard.records import WillRecord
from flowguard.stores.messages import decode_message, encode_message
from flowguard.types import SubscriptionOptions

VERSION: Final = 1
"""Version of all records that begin with one."""
_WILL: Final = Struct(">BI")
_NO_LOCAL: Final = 4
_AS_PUBLISHED: Final = 8
_HANDLING_SHIFT: Final = 4
_OWED: Final = 64
_PLAIN: Final[dict[int, SubscriptionOptions]] = {}
"""Options without an identifier, by their flags, which are a byte."""


def unpack(layout: Struct, value: bytes) -> tuple:  # type: ignore[type-arg]
    """Return the numbers at the start of a record, its version first. Raises `CorruptionError`."""
    try:
        found = layout.unpack_from(value)
    except StructError as error:
        raise CorruptionError(f"a record is cut short: {error}") from error
    if found[0] != VERSION:
        raise CorruptionError(f"there is no such record of version {found[0]}")
    return found


def text(rest: bytes) -> str:
    """Return the text at the end of a row. Raises `CorruptionError`."""
    try:
        return rest.decode()
    except UnicodeDecodeError as error:
        raise CorruptionError(f"a record is damaged: {error}") from error


def number(value: bytes, pos: int) -> tuple[int, int]:
    """Return a number of one to four bytes, and its end. Raises `CorruptionError`."""
    try:
        return decode_variable(value, pos, len(value))
    except MalformedPacket as error:
        raise CorruptionError(f"a record is damaged: {error}") from error


def subscription_flags(options: SubscriptionOptions, retained_after: str | None = None) -> int:
    """Return all options but the identifier, and whether retained messages are still to be sent."""
    flags = options.qos | options.retain_handling << _HANDLING_SHIFT
    if retained_after is not None:
        flags |= _OWED
    if options.no_local:
        flags |= _NO_LOCAL
    if options.retain_as_published:
        flags |= _AS_PUBLISHED
    return flags


def subscription_options(flags: int, identifier: int) -> SubscriptionOptions:
    """Return the options that `subscription_flags` has packed; those without an identifier are
    shared, as nearly all of a million sessions have the same."""
    flags &= ~_OWED
    if identifier:
        return _options(flags, identifier)
    found = _PLAIN.get(flags)
    if found is None:
        found = _PLAIN[flags] = _options(flags, 0)
    return found


def _options(flags: int, identifier: int) -> SubscriptionOptions:
    no_local, as_published = bool(flags & _NO_LOCAL), bool(flags & _AS_PUBLISHED)
    handling = flags >> _HANDLING_SHIFT & 3
    return SubscriptionOptions(flags & 3, no_local, as_published, handling, identifier)


def retained_after(flags: int, rest: bytes) -> str | None:
    """Return the topic after which retained messages are still to be sent (`PutSubscription`), or
    None. `rest` is the end of the row. Raises `CorruptionError`."""
    return text(rest) if flags & _OWED else None


def encode_will(will: WillRecord) -> bytes:
    return _WILL.pack(VERSION, will.delay_s) + encode_message(will.message)


def decode_will(value: bytes) -> WillRecord:
    """Return the will. Raises `CorruptionError`."""
    _, delay_s = unpack(_WILL, value)
    return WillRecord(decode_message(value, _WILL.size, in_will=True), delay_s)
