"""PUBLISH, bytes to record: a fast path for frequent packets, a careful one for the rest.

The fast path looks up the topic by its bytes in a table of checked topics. This table is shared by
all connections, and bounded in entries and in bytes per entry. So messages of one topic share one
string. If the fast path cannot read a packet, valid or not, the careful path reads it again from
the start. Only the careful path raises errors.
"""

from typing import Final

from flowguard.codec import tables as t
from flowguard.codec.primitives import decode_binary, decode_text, decode_u16, is_utf8
from flowguard.codec.properties import decode_properties
from flowguard.errors import MalformedPacket, ProtocolViolation
from flowguard.types import MQTT_5, NO_PROPERTIES, Properties, Publish, ReasonCode

TOPICS_MAX: Final = 8_192
TOPIC_BYTES_MAX: Final = 256
"""Maximum size of a cached topic, bytes; all cached topics take some 6 MB at most."""
BLOCKS_MAX: Final = 1_024
BLOCK_BYTES_MAX: Final = 64
"""Maximum size of a cached property block, bytes; clients that send properties tend to repeat them.
All take about 1 MB."""

known_topics: Final[dict[bytes, str]] = {}
_blocks: Final[dict[bytes, Properties]] = {}


def decode_publish(
    data: bytes, pos: int, end: int, flags: int, version: int, from_client: bool
) -> Publish:
    """Return the PUBLISH with body `data[pos:end]` and the fixed header's `flags`.

    `data` holds at least `end` bytes, and may continue with further packets.
    """
    marks = t.PUBLISH_FLAGS[flags]
    try:
        after = pos + 2 + (data[pos] << 8 | data[pos + 1])
        topic = known_topics.get(data[pos + 2 : after])
        if topic is not None and marks is not None:
            qos, retain, dup = marks
            if qos:
                packet_id = data[after] << 8 | data[after + 1]
                after += 2
            else:
                packet_id = 0
            if version == MQTT_5:
                properties_length = data[after]
                after += 1
            else:
                properties_length = 0
            if after <= end and not properties_length and (packet_id or not qos):
                return Publish(topic, data[after:end], qos, retain, dup, packet_id, NO_PROPERTIES)
    except IndexError:
        pass  # The buffer ends within the fields: the careful path raises the error.
    return decode_carefully(data, pos, end, flags, version, from_client)


def publish_at_sight(data: bytes, version: int, size_max: int) -> Publish | None:
    """Return the PUBLISH in `data` if it is small and plain (`PacketDecoder.at_sight`)."""
    size = len(data)
    if not 4 <= size < 0x82 or data[1] != size - 2 or size > size_max:
        return None
    first = data[0]
    if first != 0x32 and first != 0x30:
        return None
    after = 4 + (data[2] << 8 | data[3])
    topic = known_topics.get(data[4:after])
    qos = packet_id = 0
    try:
        if first == 0x32:
            qos = 1
            packet_id = data[after] << 8 | data[after + 1]
            after += 2
        if version == MQTT_5:
            if data[after]:
                return None
            after += 1
    except IndexError:
        return None
    if topic is None or after > size or (qos and not packet_id):
        return None
    return Publish(topic, data[after:], qos, False, False, packet_id, NO_PROPERTIES)


def check_publish_flags(flags: int) -> tuple[int, bool, bool]:
    marks = t.PUBLISH_FLAGS[flags]
    if marks is None:
        # [MQTT-3.3.1-2, MQTT-3.3.1-4] [v3 MQTT-3.3.1-2, v3 MQTT-3.3.1-4]
        raise MalformedPacket("a PUBLISH with QoS 3, or with DUP and QoS 0")
    return marks


def check_topic_name(topic: str) -> None:
    """Raise MalformedPacket unless the name is a topic."""
    if "+" in topic or "#" in topic:
        # [MQTT-3.3.2-2, MQTT-4.7.0-1] [v3 MQTT-3.3.2-2, v3 MQTT-4.7.1-1]
        raise MalformedPacket("a topic name has wildcards")


def decode_carefully(
    data: bytes, pos: int, end: int, flags: int, version: int, from_client: bool
) -> Publish:
    """Do the work of `decode_publish` without the fast path."""
    qos, retain, dup = check_publish_flags(flags)
    raw, pos = decode_binary(data, pos, end)
    topic = _decode_topic(raw)  # [MQTT-3.3.2-1] [v3 MQTT-3.3.2-1]
    packet_id = 0
    if qos:
        packet_id, pos = decode_u16(data, pos, end)
        if packet_id == 0:
            # [MQTT-2.2.1-3, MQTT-2.2.1-4] [v3 MQTT-2.3.1-1]
            raise ProtocolViolation("packet identifier 0")
    properties = NO_PROPERTIES
    if version == MQTT_5:
        properties, pos = _decode_properties(data, pos, end, from_client)
    if not topic:
        if version != MQTT_5:
            # [v3 MQTT-4.7.3-1]
            raise MalformedPacket("an empty topic name")
        if properties.topic_alias is None:
            # [MQTT-4.7.3-1]
            raise ProtocolViolation("an empty topic name and no topic alias")
    payload = data[pos:end]
    if properties.payload_format_indicator and not is_utf8(payload):
        raise MalformedPacket("the payload is not UTF-8", ReasonCode.PAYLOAD_FORMAT_INVALID)
    return Publish(topic, payload, qos, retain, dup, packet_id, properties)


def _decode_topic(raw: bytes) -> str:
    known = known_topics.get(raw)
    if known is not None:
        return known
    topic = decode_text(raw)
    check_topic_name(topic)
    if topic and len(raw) <= TOPIC_BYTES_MAX:
        if len(known_topics) >= TOPICS_MAX:
            known_topics.clear()
        known_topics[raw] = topic
    return topic


def _decode_properties(
    data: bytes, pos: int, end: int, from_client: bool
) -> tuple[Properties, int]:
    if pos >= end or data[pos] > BLOCK_BYTES_MAX or pos + 1 + data[pos] > end:
        return decode_properties(data, pos, end, t.PUBLISH, from_client=from_client)
    after = pos + 1 + data[pos]
    block = data[pos:after]
    known = _blocks.get(block)
    if known is not None and not (from_client and known.subscription_identifiers):
        return known, after
    properties, _ = decode_properties(data, pos, end, t.PUBLISH, from_client=from_client)
    if len(_blocks) >= BLOCKS_MAX:
        _blocks.clear()
    _blocks[block] = properties
    return properties, after
