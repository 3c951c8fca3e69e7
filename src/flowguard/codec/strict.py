"""Strings that the standard advises against: a receiver may reject their packets as malformed.

These are control characters and Unicode's non-characters ([MQTT 5.0, 1.5.4], [MQTT 3.1.1, 1.5.3]);
U+0000 is always forbidden. Payloads are no strings, whatever their format indicator is.
"""

import re
from collections.abc import Iterator
from typing import Final

from flowguard.codec import properties as p
from flowguard.codec.packets import (
    Connect,
    Packet,
    Pingreq,
    Pingresp,
    Subscribe,
    Unsubscribe,
)
from flowguard.errors import MalformedPacket
from flowguard.types import NO_PROPERTIES, Properties, Publish

_PLANE_ENDS: Final = "".join(
    chr(plane << 16 | 0xFFFE) + chr(plane << 16 | 0xFFFF) for plane in range(17)
)
_UNWANTED: Final = re.compile(f"[\x01-\x1f\x7f-\x9f\ufdd0-\ufdef{_PLANE_ENDS}]")
_OF_STRINGS: Final = tuple(row.field for row in p.TABLE if row.wire == p.STRING)


def check_strings(packet: Packet) -> None:
    """Raise MalformedPacket if a string of the packet has such a character. O(total length)."""
    for text in _strings(packet):
        if _UNWANTED.search(text) is not None:
            raise MalformedPacket("a string holds a control character, or a non-character")


def _strings(packet: Packet) -> Iterator[str]:
    match packet:
        case Publish():
            yield packet.topic
        case Subscribe():
            yield from (topic_filter for topic_filter, _ in packet.filters)
        case Unsubscribe():
            yield from packet.filters
        case Connect():
            yield packet.client_id
            yield packet.username or ""
            if packet.will is not None:
                yield packet.will.topic
                yield from _strings_of(packet.will.properties)
        case Pingreq() | Pingresp():
            return
    yield from _strings_of(packet.properties)


def _strings_of(properties: Properties) -> Iterator[str]:
    if properties is NO_PROPERTIES:
        return
    for field in _OF_STRINGS:
        yield getattr(properties, field) or ""
    for name, text in properties.user_properties:
        yield name
        yield text
