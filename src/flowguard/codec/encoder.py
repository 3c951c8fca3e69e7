"""Packets to bytes, for both roles and all versions.

Properties and reason codes that MQTT 3.1.1 lacks are left out or translated. Nothing is validated,
because all packets come from flowguard itself. A field that does not fit is a bug, and raises an
error.
"""

from struct import Struct
from typing import Final, assert_never

from flowguard.codec import tables as t
from flowguard.codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from flowguard.codec.primitives import (
    VARIABLE_MAX,
    encode_binary,
    encode_string,
    encode_u16,
    encode_variable,
)
from flowguard.codec.properties import encode_properties
from flowguard.types import (
    MQTT_5,
    MQTT_31,
    MQTT_311,
    NO_PROPERTIES,
    Properties,
    Publish,
    SubscriptionOptions,
)

_REFUSED_311: Final = 0x80
_SHORT: Final = [bytes((0x30 | flags, size)) for flags in range(16) for size in range(0x80)]
"""Fixed headers of PUBLISHes with one byte of length: `0x80 * flags + length`."""
_LONGER: Final = Struct(">BBB")
"""Format of fixed headers with two bytes of length."""
NAMES_MAX: Final = 8_192
NAME_BYTES_MAX: Final = 64
"""Maximum size of a cached topic, bytes; all cached topics take some 4 MB at most."""

PINGREQ_FRAME: Final = b"\xc0\x00"
PINGRESP_FRAME: Final = b"\xd0\x00"


def puback_frame(packet_id: int) -> bytes:
    """Return a PUBACK with success and without properties; the bytes are the same in all
    versions."""
    return b"\x40\x02" + encode_u16(packet_id)


def pubrec_frame(packet_id: int) -> bytes:
    return b"\x50\x02" + encode_u16(packet_id)


def pubrel_frame(packet_id: int) -> bytes:
    return b"\x62\x02" + encode_u16(packet_id)


def pubcomp_frame(packet_id: int) -> bytes:
    return b"\x70\x02" + encode_u16(packet_id)


def publish_frame(
    message: Publish, version: int, qos: int, retain: bool, properties: Properties
) -> tuple[bytes, bytes]:
    """Return `(head, tail)` of a PUBLISH that differs between its receivers by the packet id only.

    On the wire: head + packet id (two bytes, only if `qos` > 0) + tail. DUP is off; a
    retransmission sets bit 3 of head[0]. Topic and payload are those of `message`, and the rest is
    as the arguments say; `properties` are for MQTT 5.0 only.

    Properties of the server can make a packet larger than MQTT allows. The encoded length is then
    cut to the maximum. The whole is larger than any client accepts, so it is never sent.
    """
    name = _names.get(message.topic) or _encode_name(message.topic)
    if version == MQTT_5:
        if properties is NO_PROPERTIES:
            tail = b"\0" + message.payload
        else:
            tail = encode_properties(properties) + message.payload
    else:
        tail = message.payload
    size = len(name) + len(tail)
    flags = (qos << 1) + retain
    if qos:
        size += 2  # [MQTT-2.2.1-2] [v3 MQTT-2.3.1-5]
    if size < 0x80:
        return _SHORT[0x80 * flags + size] + name, tail
    if size < 0x4000:
        return _LONGER.pack(0x30 | flags, size & 0x7F | 0x80, size >> 7) + name, tail
    if size > VARIABLE_MAX:
        size = VARIABLE_MAX
    return bytes((0x30 | flags,)) + encode_variable(size) + name, tail


_names: Final[dict[str, bytes]] = {}
"""Encoded topics."""


def _encode_name(topic: str) -> bytes:
    name = encode_string(topic)
    if len(name) <= NAME_BYTES_MAX:
        if len(_names) >= NAMES_MAX:
            _names.clear()
        _names[topic] = name
    return name


def publish_qos_0_frame(message: Publish) -> bytes:
    """Return a whole QoS 0 PUBLISH for 3.1.1 and 3.1, RETAIN off: the form of most messages."""
    head, tail = publish_frame(message, MQTT_311, 0, False, NO_PROPERTIES)
    return head + tail


def encode(packet: Packet, version: int) -> bytes:  # noqa: C901 -- a table in the form of a match
    """Return the bytes of the packet in this version."""
    match packet:
        case Publish():
            return _encode_publish(packet, version)
        case Puback():
            return _encode_ack(t.PUBACK, packet, version)
        case Pubrec():
            return _encode_ack(t.PUBREC, packet, version)
        case Pubrel():
            return _encode_ack(t.PUBREL, packet, version)
        case Pubcomp():
            return _encode_ack(t.PUBCOMP, packet, version)
        case Pingreq():
            return PINGREQ_FRAME
        case Pingresp():
            return PINGRESP_FRAME
        case Connect():
            return _encode_connect(packet, version)
        case Connack():
            return _encode_connack(packet, version)
        case Subscribe():
            return _encode_subscribe(packet, version)
        case Suback():
            return _encode_suback(packet, version)
        case Unsubscribe():
            filters = b"".join([encode_string(name) for name in packet.filters])
            return _with_id(t.UNSUBSCRIBE, packet.packet_id, packet.properties, filters, version)
        case Unsuback():
            codes = bytes(packet.reason_codes) if version == MQTT_5 else b""
            return _with_id(t.UNSUBACK, packet.packet_id, packet.properties, codes, version)
        case Disconnect():
            return _encode_reason(t.DISCONNECT, packet, version)
        case Auth():
            assert version == MQTT_5, "AUTH is new in MQTT 5.0"
            return _encode_reason(t.AUTH, packet, version)
        case _:
            assert_never(packet)


def _frame(packet_type: int, body: bytes) -> bytes:
    first = packet_type << 4 | t.FIXED_FLAGS[packet_type]
    return bytes((first,)) + encode_variable(len(body)) + body


def _properties(properties: Properties, version: int) -> bytes:
    return encode_properties(properties) if version == MQTT_5 else b""


def _encode_publish(packet: Publish, version: int) -> bytes:
    head, tail = publish_frame(packet, version, packet.qos, packet.retain, packet.properties)
    assert len(head) + len(tail) + (2 if packet.qos else 0) <= 5 + VARIABLE_MAX
    if packet.dup:
        head = bytes((head[0] | 8,)) + head[1:]
    if packet.qos:
        return head + encode_u16(packet.packet_id) + tail
    return head + tail


def _encode_ack(
    packet_type: int, packet: Puback | Pubrec | Pubrel | Pubcomp, version: int
) -> bytes:
    body = encode_u16(packet.packet_id)
    if version == MQTT_5:
        if packet.properties is not NO_PROPERTIES:
            body += bytes((packet.reason_code,)) + encode_properties(packet.properties)
        elif packet.reason_code:
            body += bytes((packet.reason_code,))
    return _frame(packet_type, body)


def _encode_reason(packet_type: int, packet: Disconnect | Auth, version: int) -> bytes:
    body = b""
    if version == MQTT_5:
        if packet.properties is not NO_PROPERTIES:
            body = bytes((packet.reason_code,)) + encode_properties(packet.properties)
        elif packet.reason_code:
            body = bytes((packet.reason_code,))
    return _frame(packet_type, body)


def _with_id(
    packet_type: int, packet_id: int, properties: Properties, payload: bytes, version: int
) -> bytes:
    return _frame(packet_type, encode_u16(packet_id) + _properties(properties, version) + payload)


def _encode_connect(packet: Connect, version: int) -> bytes:
    flags = packet.clean_start << 1
    payload = encode_string(packet.client_id)
    if packet.will is not None:
        will = packet.will
        flags |= 4 | will.qos << 3 | will.retain << 5
        payload += _properties(will.properties, version)
        payload += encode_string(will.topic) + encode_binary(will.payload)
    if packet.username is not None:
        flags |= 0x80
        payload += encode_string(packet.username)
    if packet.password is not None:
        flags |= 0x40
        payload += encode_binary(packet.password)
    name = b"\0\6MQIsdp" if version == MQTT_31 else b"\0\4MQTT"
    return _frame(
        t.CONNECT,
        name
        + bytes((version, flags))
        + encode_u16(packet.keep_alive_s)
        + _properties(packet.properties, version)
        + payload,
    )


def _encode_connack(packet: Connack, version: int) -> bytes:
    code = packet.reason_code
    session_present = packet.session_present
    if version != MQTT_5:
        code = t.CONNACK_TO_311.get(code, 3)
        session_present = session_present and version != MQTT_31  # New in 3.1.1.
    body = bytes((session_present, code)) + _properties(packet.properties, version)
    return _frame(t.CONNACK, body)


def _encode_subscribe(packet: Subscribe, version: int) -> bytes:
    """Encode a SUBSCRIBE; its identifier is that of the properties, which the options repeat."""
    parts: list[bytes] = []
    for name, options in packet.filters:
        parts.append(encode_string(name))
        parts.append(bytes((_options_byte(options) if version == MQTT_5 else options.qos,)))
    return _with_id(t.SUBSCRIBE, packet.packet_id, packet.properties, b"".join(parts), version)


def _options_byte(options: SubscriptionOptions) -> int:
    return (
        options.qos
        | options.no_local << 2
        | options.retain_as_published << 3
        | options.retain_handling << 4
    )


def _encode_suback(packet: Suback, version: int) -> bytes:
    codes = packet.reason_codes
    if version != MQTT_5:
        codes = tuple([min(code, _REFUSED_311) for code in codes])
    return _with_id(t.SUBACK, packet.packet_id, packet.properties, bytes(codes), version)
