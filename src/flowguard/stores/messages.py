"""The record of a message in all stores: versioned, big endian, no reflection.

u8 version, u8 flags (0-1 QoS, 2 retain, 3 properties), u16 topic length, topic,
properties as on the wire, payload
"""

from struct import Struct
from typing import Final

from flowguard.codec.properties import decode_properties, encode_properties
from flowguard.codec.tables import PUBLISH
from flowguard.errors import CorruptionError, MalformedPacket
from flowguard.types import NO_PROPERTIES, Publish

MESSAGE: Final = 1
"""Version of the record."""
RETAIN: Final = 4
_PROPERTIES: Final = 8
_MESSAGE_HEAD: Final = Struct(">BBH")


def encode_message(message: Publish, with_topic: bool = True) -> bytes:
    """Return the record, without its topic if that is stored separately."""
    topic = message.topic.encode() if with_topic else b""
    flags = message.qos | (RETAIN if message.retain else 0)
    if message.properties is NO_PROPERTIES:
        return _MESSAGE_HEAD.pack(MESSAGE, flags, len(topic)) + topic + message.payload
    head = _MESSAGE_HEAD.pack(MESSAGE, flags | _PROPERTIES, len(topic))
    return b"".join((head, topic, encode_properties(message.properties), message.payload))


def decode_message(
    data: bytes, pos: int, in_will: bool = False, topic: str | None = None
) -> Publish:
    """Return the message from `pos` to the end; `topic` is the one stored separately, if any."""
    try:
        version, flags = data[pos], data[pos + 1]
        end = pos + 4 + (data[pos + 2] << 8 | data[pos + 3])
        if version != MESSAGE:
            raise CorruptionError(f"there is no message record of version {version}")
        if end > len(data):
            raise CorruptionError("a message record is cut short")
        if topic is None:
            topic = data[pos + 4 : end].decode()
        pos = end
        properties = NO_PROPERTIES
        if flags & _PROPERTIES:
            properties, pos = decode_properties(data, pos, len(data), PUBLISH, in_will)
    except (MalformedPacket, UnicodeDecodeError, IndexError) as error:
        raise CorruptionError(f"a message record is damaged: {error}") from error
    return Publish(topic, data[pos:], flags & 3, bool(flags & RETAIN), properties=properties)
