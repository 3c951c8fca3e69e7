"""The properties of MQTT 5.0 (section 2.2.2): one table for decoder and encoder.

A property that is unknown, that the packet may not carry, or that does not fit its wire type is a
MalformedPacket (2.2.2.2). One that comes twice, or with a value that the standard excludes, is a
ProtocolViolation with the reason code that the property's own section names.
"""

from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from flowguard.codec import tables as t
from flowguard.codec.primitives import (
    decode_binary,
    decode_byte,
    decode_string,
    decode_u16,
    decode_u32,
    decode_variable,
    encode_binary,
    encode_string,
    encode_u16,
    encode_u32,
    encode_variable,
)
from flowguard.errors import MalformedPacket, ProtocolViolation
from flowguard.types import NO_PROPERTIES, Properties, ReasonCode

# Wire types (table 2-4). Each BYTE of the table is a boolean or a QoS of 0 or 1.
BYTE: Final = 0
U16: Final = 1
U32: Final = 2
VARIABLE: Final = 3
STRING: Final = 4
BINARY: Final = 5
PAIR: Final = 6

USER_PROPERTIES_MAX: Final = 2_000
"""Maximum number of user properties in a packet. The limit is our choice, because each takes at
least five bytes on the wire, and much more work than as many bytes of payload. The answer to more
is 0x97 (Quota exceeded)."""

WILL: Final = 1 << 0
"""Will properties inside CONNECT, under packet type 0, which does not exist."""


@dataclass(frozen=True, slots=True)
class Property:
    """One row: bit n of `carriers` is set if packet type n may carry it."""

    number: int
    field: str
    wire: int
    carriers: int
    repeats: bool = False


def _carriers(*packet_types: int) -> int:
    return sum(1 << packet_type for packet_type in packet_types)


_MESSAGE: Final = 1 << t.PUBLISH | WILL
_CONNECT: Final = 1 << t.CONNECT
_CONNACK: Final = 1 << t.CONNACK
_HELLO: Final = _CONNECT | _CONNACK
_AUTHENTICATED: Final = _HELLO | 1 << t.AUTH
_ANSWERS: Final = _carriers(
    t.CONNACK,
    t.PUBACK,
    t.PUBREC,
    t.PUBREL,
    t.PUBCOMP,
    t.SUBACK,
    t.UNSUBACK,
    t.DISCONNECT,
    t.AUTH,
)
_ALL: Final = _ANSWERS | _MESSAGE | _CONNECT | 1 << t.SUBSCRIBE | 1 << t.UNSUBSCRIBE

TABLE: Final[tuple[Property, ...]] = (
    Property(1, "payload_format_indicator", BYTE, _MESSAGE),
    Property(2, "message_expiry_interval", U32, _MESSAGE),
    Property(3, "content_type", STRING, _MESSAGE),
    Property(8, "response_topic", STRING, _MESSAGE),
    Property(9, "correlation_data", BINARY, _MESSAGE),
    Property(
        11, "subscription_identifiers", VARIABLE, _carriers(t.PUBLISH, t.SUBSCRIBE), repeats=True
    ),
    Property(17, "session_expiry_interval", U32, _HELLO | 1 << t.DISCONNECT),
    Property(18, "assigned_client_identifier", STRING, _CONNACK),
    Property(19, "server_keep_alive", U16, _CONNACK),
    Property(21, "authentication_method", STRING, _AUTHENTICATED),
    Property(22, "authentication_data", BINARY, _AUTHENTICATED),
    Property(23, "request_problem_information", BYTE, _CONNECT),
    Property(24, "will_delay_interval", U32, WILL),
    Property(25, "request_response_information", BYTE, _CONNECT),
    Property(26, "response_information", STRING, _CONNACK),
    Property(28, "server_reference", STRING, _CONNACK | 1 << t.DISCONNECT),
    Property(31, "reason_string", STRING, _ANSWERS),
    Property(33, "receive_maximum", U16, _HELLO),
    Property(34, "topic_alias_maximum", U16, _HELLO),
    Property(35, "topic_alias", U16, 1 << t.PUBLISH),
    Property(36, "maximum_qos", BYTE, _CONNACK),
    Property(37, "retain_available", BYTE, _CONNACK),
    Property(38, "user_properties", PAIR, _ALL, repeats=True),
    Property(39, "maximum_packet_size", U32, _HELLO),
    Property(40, "wildcard_subscription_available", BYTE, _CONNACK),
    Property(41, "subscription_identifier_available", BYTE, _CONNACK),
    Property(42, "shared_subscription_available", BYTE, _CONNACK),
)
_BY_NUMBER: Final = {row.number: row for row in TABLE}
_OF_PUBLISH: Final = tuple([row for row in TABLE if row.carriers & 1 << t.PUBLISH])
_OTHERS: Final = tuple([row for row in TABLE if row not in _OF_PUBLISH])
_values: Final = attrgetter(*[row.field for row in TABLE])
_values_of_publish: Final = attrgetter(*[row.field for row in _OF_PUBLISH])
_other_values: Final = attrgetter(*[row.field for row in _OTHERS])
_NO_OTHERS: Final = (None,) * len(_OTHERS)

_NEVER_ZERO: Final = {
    "receive_maximum": ReasonCode.PROTOCOL_ERROR,
    "maximum_packet_size": ReasonCode.PROTOCOL_ERROR,
    "topic_alias": ReasonCode.TOPIC_ALIAS_INVALID,  # [MQTT-3.3.2-8]
}


def decode_properties(
    data: bytes,
    pos: int,
    end: int,
    packet_type: int,
    in_will: bool = False,
    from_client: bool = False,
) -> tuple[Properties, int]:
    """Return the properties at `pos`, after their length, and the position after them.

    Takes O(bytes) and some milliseconds at most, because repeatable properties are counted.
    `from_client`: a PUBLISH may not have subscription identifiers.
    """
    length, pos = decode_variable(data, pos, end)
    if length == 0:
        return NO_PROPERTIES, pos
    stop = pos + length
    if stop > end:
        raise MalformedPacket("the properties are longer than the packet")
    carrier = WILL if in_will else 1 << packet_type
    properties = Properties()
    seen = 0
    identifiers: list[int] = []
    users: list[tuple[str, str]] = []
    while pos < stop:
        row = _row(data[pos], carrier, seen)
        pos += 1
        seen |= 1 << row.number
        if row.wire == PAIR:
            user, pos = _decode_user(data, pos, stop, len(users))
            users.append(user)
        elif row.wire == VARIABLE:
            number, pos = decode_variable(data, pos, stop)
            if number == 0 or (identifiers and packet_type == t.SUBSCRIBE):
                raise ProtocolViolation("a subscription identifier is zero or comes twice")
            identifiers.append(number)
            if from_client and packet_type == t.PUBLISH:
                # [MQTT-3.3.4-6]
                raise ProtocolViolation("a client may not send subscription identifiers in PUBLISH")
        else:
            value, pos = _decode_value(row, data, pos, stop)
            setattr(properties, row.field, value)
    if identifiers:
        properties.subscription_identifiers = tuple(identifiers)
    if users:
        properties.user_properties = tuple(users)
    return properties, pos


def _decode_user(data: bytes, pos: int, stop: int, count: int) -> tuple[tuple[str, str], int]:
    """Return the user property at `pos`, which comes after `count` others."""
    if count == USER_PROPERTIES_MAX:
        raise ProtocolViolation(
            f"more than {USER_PROPERTIES_MAX} user properties", ReasonCode.QUOTA_EXCEEDED
        )
    name, pos = decode_string(data, pos, stop)  # [MQTT-1.5.7-1]
    text, pos = decode_string(data, pos, stop)
    return (name, text), pos


def _row(number: int, carrier: int, seen: int) -> Property:
    # Identifiers are variable byte integers, but all defined ones take one byte.
    row = _BY_NUMBER.get(number)
    if row is None:
        raise MalformedPacket(f"there is no property {number:#04x}")
    if not row.carriers & carrier:
        raise MalformedPacket(f"this packet cannot carry {row.field}")
    if seen >> number & 1 and not row.repeats:
        raise ProtocolViolation(f"{row.field} comes twice")
    return row


def _decode_value(row: Property, data: bytes, pos: int, stop: int) -> tuple[int | str | bytes, int]:
    wire = row.wire
    if wire == STRING:
        text, pos = decode_string(data, pos, stop)
        if row.field == "response_topic" and (not text or "+" in text or "#" in text):
            # [MQTT-3.3.2-14, MQTT-4.7.3-1]
            raise MalformedPacket("the response topic is empty or has wildcards")
        return text, pos
    if wire == BINARY:
        return decode_binary(data, pos, stop)
    if wire == BYTE:
        number, pos = decode_byte(data, pos, stop)
        if number > 1:
            raise ProtocolViolation(f"{row.field} is neither 0 nor 1")
        return number, pos
    number, pos = decode_u16(data, pos, stop) if wire == U16 else decode_u32(data, pos, stop)
    if number == 0 and row.field in _NEVER_ZERO:
        raise ProtocolViolation(f"{row.field} is zero", _NEVER_ZERO[row.field])
    return number, pos


def encode_properties(properties: Properties) -> bytes:
    """Return length and properties, by rising identifier; user properties keep their order."""
    if properties is NO_PROPERTIES:
        return b"\0"  # [MQTT-2.2.2-1]
    rows = TABLE
    values: tuple[object, ...]
    if _other_values(properties) == _NO_OTHERS:
        rows, values = _OF_PUBLISH, _values_of_publish(properties)  # The frequent, faster case.
    else:
        values = _values(properties)
    parts: list[bytes] = []
    for row, value in zip(rows, values, strict=True):
        if value is None or value == ():
            continue
        prefix = bytes((row.number,))
        if isinstance(value, int):
            parts.append(prefix + _encode_number(row.wire, value))
        elif isinstance(value, str):
            parts.append(prefix + encode_string(value))
        elif isinstance(value, bytes):
            parts.append(prefix + encode_binary(value))
        elif row.wire == VARIABLE:
            parts += [prefix + encode_variable(i) for i in properties.subscription_identifiers]
        else:
            for name, text in properties.user_properties:
                parts.append(prefix + encode_string(name) + encode_string(text))
    body = b"".join(parts)
    return encode_variable(len(body)) + body


def _encode_number(wire: int, value: int) -> bytes:
    if wire == BYTE:
        return bytes((value,))
    return encode_u16(value) if wire == U16 else encode_u32(value)
