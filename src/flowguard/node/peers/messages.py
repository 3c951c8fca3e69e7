"""Messages that nodes of a cluster forward to each other, as bytes.

u8 flags, f64 expiry time in seconds since the Unix epoch, u16 size and client id of the
publisher, u16 number of shared subscriptions, each: u16 size and filter with `$share/`, u8 size
and name of the node that serves it; then the message (`stores.messages`)
"""

from struct import Struct
from struct import error as StructError
from typing import Final, final

from flowguard.errors import CorruptionError, MalformedPacket
from flowguard.stores.messages import decode_message, encode_message
from flowguard.types import Publish

DELIVER: Final = 1
"""For sessions of the receiver."""
ORDER: Final = 2
"""A retained message for the owner of its topic, which orders it."""
APPLY: Final = 4
"""A retained message from the owner of its topic."""
BEGINS: Final = 8
"""All retained messages of the sender's topics follow."""
ENDS: Final = 16
"""They are complete."""
ONE_SHARE: Final = 32
"""For members of the only shared subscription that the message names."""

_HEAD: Final = Struct(">BdH")
_U16: Final = Struct(">H")
NO_SHARES: Final = b"\0\0"
_NOTHING: Final = Publish("", b"")


@final
class ForwardedMessage:
    __slots__ = ("expires_at_s", "flags", "message", "publisher", "shares")

    def __init__(
        self,
        flags: int,
        message: Publish,
        expires_at_s: float,
        publisher: str,
        shares: dict[str, str],
    ) -> None:
        self.flags = flags
        self.message = message
        self.expires_at_s = expires_at_s
        self.publisher = publisher
        self.shares = shares
        """The node that serves a shared subscription, by its filter."""


def encode_shares(shares: dict[str, str]) -> bytes:
    """Encode the nodes that serve shared subscriptions."""
    parts = [_U16.pack(len(shares))]
    for share, name in shares.items():
        text, node = share.encode(), name.encode()
        parts += [_U16.pack(len(text)), text, bytes((len(node),)), node]
    return b"".join(parts)


def encode_forwarded(
    message: Publish, flags: int, expires_at_s: float, publisher: str, shares: bytes
) -> bytes:
    """Encode a message with the flags above; `shares` are those of `encode_shares`."""
    client_id = publisher.encode()
    head = _HEAD.pack(flags, expires_at_s, len(client_id))
    return b"".join((head, client_id, shares, encode_message(message)))


def encode_mark(flags: int) -> bytes:
    """Encode `BEGINS` or `ENDS`, which have no message."""
    return encode_forwarded(_NOTHING, flags, 0.0, "", NO_SHARES)


def decode_forwarded(data: bytes) -> ForwardedMessage:
    """Return what `encode_forwarded` has encoded. Raises `MalformedPacket`."""
    try:
        flags, expires_at_s, size = _HEAD.unpack_from(data, 0)
        pos = _HEAD.size + size
        publisher = data[_HEAD.size : pos].decode()
        (count,) = _U16.unpack_from(data, pos)
        pos += _U16.size
        shares: dict[str, str] = {}
        for _ in range(count):
            (size,) = _U16.unpack_from(data, pos)
            end = pos + _U16.size + size
            share = data[pos + _U16.size : end].decode()
            pos = end + 1 + data[end]
            shares[share] = data[end + 1 : pos].decode()
        message = decode_message(data, pos)
    except (StructError, UnicodeDecodeError, IndexError, CorruptionError) as error:
        raise MalformedPacket(f"a message of a peer is damaged: {error}") from error
    return ForwardedMessage(flags, message, expires_at_s, publisher, shares)
