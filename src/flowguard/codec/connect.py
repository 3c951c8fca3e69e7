"""CONNECT and CONNACK, bytes to records, for levels 3 (MQIsdp), 4 and 5."""

from typing import Final

from flowguard.codec import tables as t
from flowguard.codec.packets import Connack, Connect, Will
from flowguard.codec.primitives import (
    decode_binary,
    decode_byte,
    decode_string,
    decode_u16,
    is_utf8,
)
from flowguard.codec.properties import decode_properties
from flowguard.codec.publish import check_topic_name
from flowguard.errors import MalformedPacket, ProtocolViolation
from flowguard.types import MQTT_5, MQTT_31, MQTT_311, NO_PROPERTIES, ReasonCode

_RESERVED: Final = 0x01
_CLEAN_START: Final = 0x02
_WILL: Final = 0x04
_WILL_DETAILS: Final = 0x38  # Will QoS and Will Retain
_WILL_RETAIN: Final = 0x20
_PASSWORD: Final = 0x40
_USERNAME: Final = 0x80


def decode_protocol(data: bytes, pos: int, end: int) -> tuple[int, bool, int]:
    """Return (version for this client, whether the client requested it, position after it).

    A client that requests an unknown version is answered in the nearest one.
    """
    name, pos = decode_binary(data, pos, end)
    if name not in (b"MQTT", b"MQIsdp"):
        # [MQTT-3.1.2-1] [v3 MQTT-3.1.2-1]
        raise ProtocolViolation("not MQTT", ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)
    level, pos = decode_byte(data, pos, end)
    if name == b"MQIsdp":
        return MQTT_31, level == MQTT_31, pos
    version = MQTT_5 if level >= MQTT_5 else MQTT_311
    return version, level == version, pos


def decode_connect(data: bytes, pos: int, end: int, version: int) -> Connect:
    """Decode a CONNECT from its connect flags on; `decode_protocol` has read the rest."""
    flags, pos = decode_byte(data, pos, end)
    _check_connect_flags(flags, version)
    keep_alive_s, pos = decode_u16(data, pos, end)
    properties = NO_PROPERTIES
    if version == MQTT_5:
        properties, pos = decode_properties(data, pos, end, t.CONNECT)
        if properties.authentication_data is not None and properties.authentication_method is None:
            raise ProtocolViolation("authentication data without a method")
    # [MQTT-3.1.3-1, MQTT-3.1.3-3, MQTT-3.1.3-4]
    # [v3 MQTT-3.1.3-1, v3 MQTT-3.1.3-3, v3 MQTT-3.1.3-4]
    client_id, pos = decode_string(data, pos, end)
    will: Will | None = None
    if flags & _WILL:
        # [MQTT-3.1.2-9] [v3 MQTT-3.1.2-9]
        will, pos = _decode_will(data, pos, end, version, flags)
    may_lack = version == MQTT_31  # [MQTT 3.1, 3.1]: the length decides, not the flags.
    username: str | None = None
    if flags & _USERNAME and not (may_lack and pos == end):
        # [MQTT-3.1.2-17, MQTT-3.1.3-12] [v3 MQTT-3.1.2-19, v3 MQTT-3.1.3-11]
        username, pos = decode_string(data, pos, end)
    password: bytes | None = None
    if flags & _PASSWORD and not (may_lack and pos == end):
        # [MQTT-3.1.2-19] [v3 MQTT-3.1.2-21]
        password, pos = decode_binary(data, pos, end)
    if pos != end:
        # Fields without a flag are found at this point.
        # [MQTT-3.1.2-16, MQTT-3.1.2-18] [v3 MQTT-3.1.2-11, v3 MQTT-3.1.2-18, v3 MQTT-3.1.2-20]
        raise MalformedPacket("a CONNECT with bytes left over")
    clean_start = flags & _CLEAN_START != 0
    return Connect(
        client_id, version, clean_start, keep_alive_s, username, password, will, properties
    )


def _check_connect_flags(flags: int, version: int) -> None:
    """Reject illegal connect flags, except those without a meaning in MQTT 3.1."""
    if version == MQTT_31:
        flags &= ~_RESERVED if flags & _WILL else ~(_RESERVED | _WILL_DETAILS)
    if flags & _RESERVED:
        # [MQTT-3.1.2-3] [v3 MQTT-3.1.2-3]
        raise MalformedPacket("the reserved connect flag is set")
    if not flags & _WILL and flags & _WILL_DETAILS:
        # [MQTT-3.1.2-11, MQTT-3.1.2-13] [v3 MQTT-3.1.2-11, v3 MQTT-3.1.2-13, v3 MQTT-3.1.2-15]
        raise MalformedPacket("Will QoS or Will Retain without a will")
    if (flags >> 3) & 3 == 3:
        # [MQTT-3.1.2-12] [v3 MQTT-3.1.2-14]
        raise MalformedPacket("Will QoS 3")
    if version != MQTT_5 and flags & _PASSWORD and not flags & _USERNAME:
        # [v3 MQTT-3.1.2-22]
        raise MalformedPacket("a password without a user name")


def _decode_will(data: bytes, pos: int, end: int, version: int, flags: int) -> tuple[Will, int]:
    properties = NO_PROPERTIES
    if version == MQTT_5:
        properties, pos = decode_properties(data, pos, end, t.CONNECT, in_will=True)
    topic, pos = decode_string(data, pos, end)  # [MQTT-3.1.3-11] [v3 MQTT-3.1.3-10]
    if not topic:
        # [MQTT-4.7.3-1] [v3 MQTT-4.7.3-1]
        raise MalformedPacket("an empty will topic")
    check_topic_name(topic)
    payload, pos = decode_binary(data, pos, end)
    if properties.payload_format_indicator and not is_utf8(payload):
        raise MalformedPacket("the will payload is not UTF-8", ReasonCode.PAYLOAD_FORMAT_INVALID)
    return Will(topic, payload, (flags >> 3) & 3, flags & _WILL_RETAIN != 0, properties), pos


def decode_connack(data: bytes, pos: int, end: int, flags: int, version: int) -> Connack:
    session, pos = decode_byte(data, pos, end)
    if version == MQTT_31:
        session = 0  # MQTT 3.1 reserves this byte.
    if session > 1:
        # [MQTT-3.2.2-1]
        raise MalformedPacket("reserved bits of the connect acknowledge flags are set")
    code, pos = decode_byte(data, pos, end)
    properties = NO_PROPERTIES
    if version == MQTT_5:
        if code not in t.CONNACK_REASONS:
            # [MQTT-3.2.2-8]
            raise ProtocolViolation("not a CONNACK reason code")
        properties, pos = decode_properties(data, pos, end, t.CONNACK)
    else:
        if code >= len(t.CONNACK_FROM_311):
            raise MalformedPacket("a reserved CONNACK return code")
        code = t.CONNACK_FROM_311[code]
    if session and code:
        # [MQTT-3.2.2-6] [v3 MQTT-3.2.2-4]
        raise ProtocolViolation("a refusal with Session Present")
    if pos != end:
        raise MalformedPacket("a CONNACK with bytes left over")
    return Connack(session == 1, code, properties)
