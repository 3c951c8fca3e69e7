"""The record of a message in the log, with its publisher and expiry.

u8 version and flags (bit 7: expires), u16 length of the publisher's client id, f64 expiry,
client id, the message (`flowguard.stores.messages`)
"""

from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import Final

from flowguard.errors import CorruptionError
from flowguard.records import NEVER_S
from flowguard.stores.messages import decode_message, encode_message
from flowguard.types import Publish

_VERSION: Final = 1
_EXPIRES: Final = 0x80
_HEAD: Final = Struct(">BH")
_F64: Final = Struct(">d")


@dataclass(init=False, slots=True)
class LoggedMessage:
    stamp: int
    """Unique, and in the order of commits."""
    publisher: str
    """Client id, or "" for the node itself."""
    message: Publish
    expires_at_s: float

    def __init__(self, stamp: int, publisher: str, message: Publish, expires_at_s: float) -> None:
        self.stamp = stamp
        self.publisher = publisher
        self.message = message
        self.expires_at_s = expires_at_s


def encode_logged(publisher: str, message: Publish, expires_at_s: float) -> bytes:
    client_id = publisher.encode()
    if expires_at_s == NEVER_S:
        head = _HEAD.pack(_VERSION, len(client_id))
    else:
        head = _HEAD.pack(_VERSION | _EXPIRES, len(client_id)) + _F64.pack(expires_at_s)
    return b"".join((head, client_id, encode_message(message)))


def decode_logged(stamp: int, value: bytes) -> LoggedMessage:
    """Return the message. Raises `CorruptionError`."""
    try:
        kind = value[0]
        if kind & ~_EXPIRES != _VERSION:
            raise CorruptionError(f"there is no logged message of version {kind & ~_EXPIRES}")
        pos, expires_at_s = _HEAD.size, NEVER_S
        if kind & _EXPIRES:
            (expires_at_s,) = _F64.unpack_from(value, pos)
            pos += _F64.size
        end = pos + (value[1] << 8 | value[2])
        if end > len(value):
            raise CorruptionError("a logged message is cut short")
        publisher = value[pos:end].decode()
    except (IndexError, StructError, UnicodeDecodeError) as error:
        raise CorruptionError(f"a logged message is damaged: {error}") from error
    return LoggedMessage(stamp, publisher, decode_message(value, end), expires_at_s)
