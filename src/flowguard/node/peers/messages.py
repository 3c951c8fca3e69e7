"""Messages that nodes of a cluster forward to each other, as bytes.

u8 flags, f64 expiry time in seconds since the Unix epoch, u16 size and client id of the
publisher, u16 number of shared subscriptions, each: u16 size and filter with `$share/`, u8 size
and name of the node that serves it; then the message (`stores.messages`)

A burst (`codec.burst`) has u8 flags, u8 QoS, u8 1 for MQTT 5.0, u32 size of a packet and u32 of
its payload, u16 size and client id of the publisher, u16 size and topic; then the packets
"""

from struct import Struct
from struct import error as StructError
from typing import Final, final

from flowguard.codec.burst import Burst
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
SHARED_ONLY: Final = 32
"""For members of shared subscriptions alone."""
BURST: Final = 64
"""Packets of one topic and size, for sessions of the receiver."""

_HEAD: Final = Struct(">BdH")
_BURST_FLAGS: Final = bytes((BURST,))
_BURST_HEAD: Final = Struct(">BBBIIHH")
_U16: Final = Struct(">H")
NO_SHARES: Final = b"\0\0"
OTHER_SHARES: Final = ""
"""Names the node that serves each shared subscription that a message does not name."""
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
        """The node that serves a shared subscription, by its filter; see `OTHER_SHARES`."""

    def server_of(self, share: str) -> str:
        """Return the only node that may serve a shared subscription, or "" if none may."""
        return self.shares.get(share) or self.shares.get(OTHER_SHARES, "")


def encode_shares(shares: dict[str, str]) -> bytes:
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


def is_burst(data: bytes) -> bool:
    """Return True if a peer has forwarded a burst, not a message."""
    return data[:1] == _BURST_FLAGS


def encode_burst(burst: Burst, publisher: str) -> bytes:
    """Encode a burst of one topic."""
    assert burst.topics is None
    client_id, topic = publisher.encode(), burst.topic.encode()
    head = _BURST_HEAD.pack(
        BURST,
        burst.qos,
        burst.is_5,
        burst.frame_bytes_max,
        burst.payload_bytes_max,
        len(client_id),
        len(topic),
    )
    return b"".join((head, client_id, topic, burst.frames))


def decode_burst(data: bytes) -> tuple[Burst, str]:
    """Return a burst and its publisher. Raises `MalformedPacket`."""
    try:
        _, qos, is_5, frame_bytes, payload_bytes, id_bytes, topic_bytes = _BURST_HEAD.unpack_from(
            data, 0
        )
        topic_at = _BURST_HEAD.size + id_bytes
        frames_at = topic_at + topic_bytes
        publisher = data[_BURST_HEAD.size : topic_at].decode()
        topic, frames = data[topic_at:frames_at].decode(), data[frames_at:]
        count, rest_bytes = divmod(len(frames), frame_bytes)
    except (StructError, UnicodeDecodeError, ZeroDivisionError) as error:
        raise MalformedPacket(f"a burst of a peer is damaged: {error}") from error
    if rest_bytes or not count:
        raise MalformedPacket("a burst of a peer is cut short")
    burst = Burst(topic, frames, count, frame_bytes, payload_bytes, qos=qos, is_5=is_5 > 0)
    return burst, publisher
