"""Packets of a `LocalClient`, built from its arguments; a wrong argument is named in the error.

A broker ends the connection of a client that violates MQTT. For a local client, the caller gets a
TypeError or ValueError instead, before anything is taken or sent.
"""

from reprlib import repr as shortened
from typing import Final

from flowguard.codec import tables as t
from flowguard.codec.packets import Connect, Subscribe, Unsubscribe, Will
from flowguard.codec.properties import (
    BINARY,
    BYTE,
    PAIR,
    STRING,
    TABLE,
    U16,
    U32,
    VARIABLE,
    Property,
    decode_properties,
    encode_properties,
)
from flowguard.errors import PeerError
from flowguard.routing import has_wildcard, parse_shared, valid_filter
from flowguard.types import (
    MQTT_5,
    NO_PROPERTIES,
    SESSION_NEVER_EXPIRES,
    Properties,
    Publish,
    SubscriptionOptions,
)

FIELD_BYTES_MAX: Final = 65_535
"""Maximum size of a UTF-8 text or of binary data, bytes: MQTT stores lengths in two bytes."""
_PACKET_ID: Final = 1
"""Placeholder until the client assigns a free identifier; each takes two bytes on the wire."""
_EXPECTED: Final = {
    BYTE: (int, "0 or 1 is expected"),
    U16: (int, "a number up to 65,535 is expected"),
    U32: (int, "a number up to 4,294,967,295 is expected"),
    VARIABLE: (tuple, "a tuple of numbers up to 268,435,455 is expected"),
    STRING: (str, "a str of at most 65,535 bytes in UTF-8 is expected"),
    BINARY: (bytes, "bytes are expected, 65,535 at most"),
    PAIR: (tuple, "a tuple of pairs of str is expected, each of at most 65,535 bytes in UTF-8"),
}
"""Python type of a property and its description, by its type on the wire."""


def publish_packet(
    topic: str, payload: bytes, qos: int, retain: bool, properties: Properties
) -> Publish:
    """Return a PUBLISH; raises TypeError and ValueError with the argument and its valid values."""
    payload = _checked_bytes("payload", payload)
    qos, retain = _checked_message("", topic, qos, retain, properties, t.PUBLISH)
    packet_id = _PACKET_ID if qos else 0
    return Publish(topic, payload, qos, retain, packet_id=packet_id, properties=properties)


def subscribe_packet(filters: tuple[str, ...], qos: int) -> Subscribe:
    """Return a SUBSCRIBE for all filters; raises TypeError and ValueError."""
    _check_filters(filters)
    options = SubscriptionOptions(_checked_qos("qos", qos))
    return Subscribe(_PACKET_ID, tuple((filter, options) for filter in filters))


def unsubscribe_packet(filters: tuple[str, ...]) -> Unsubscribe:
    """Return an UNSUBSCRIBE for all filters; raises TypeError and ValueError."""
    _check_filters(filters)
    return Unsubscribe(_PACKET_ID, filters)


def connect_packet(
    client_id: str,
    *,
    clean_start: bool,
    session_expiry_s: int,
    username: str | None,
    password: bytes | None,
    will: Will | None,
    receive_maximum: int,
) -> Connect:
    """Return a CONNECT without a keep-alive, because client and broker share a process.

    `session_expiry_s` 0: the session ends with the connection. Raises TypeError and ValueError.
    """
    _check_text("client_id", client_id)
    clean_start = _checked_flag("clean_start", clean_start)
    session_expiry_s = _checked_number("session_expiry_s", session_expiry_s, SESSION_NEVER_EXPIRES)
    if username is not None:
        _check_text("username", username)
    if password is not None:
        password = _checked_field("password", password)
    if will is not None:
        will = _checked_will(will)
    properties = Properties(
        session_expiry_interval=session_expiry_s or None, receive_maximum=receive_maximum
    )
    return Connect(client_id, MQTT_5, clean_start, 0, username, password, will, properties)


def _checked_will(will: object) -> Will:
    if not isinstance(will, Will):
        raise _wrong_type("will", will, "a Will")
    payload = _checked_field("will.payload", will.payload)
    qos, retain = _checked_message(
        "will.", will.topic, will.qos, will.retain, will.properties, None
    )
    return Will(will.topic, payload, qos, retain, will.properties)


def _checked_message(
    of: str, topic: str, qos: int, retain: bool, properties: Properties, packet_type: int | None
) -> tuple[int, bool]:
    """Check QoS and retain flag; `of`: prefix of the arguments' names; `packet_type` None: a
    will."""
    _check_text(f"{of}topic", topic)
    if has_wildcard(topic):
        raise ValueError(f"{of}topic {shortened(topic)} has wildcards, which are for filters")
    qos, retain = _checked_qos(f"{of}qos", qos), _checked_flag(f"{of}retain", retain)
    if properties is not NO_PROPERTIES:
        _check_properties(f"{of}properties", properties, packet_type)
    if not topic and (packet_type is None or properties.topic_alias is None):
        raise ValueError(f"{of}topic is empty; it has one character at least")
    return qos, retain


def _check_filters(filters: tuple[str, ...]) -> None:
    if not filters:
        raise ValueError("no filter is given; one at least is expected")
    for filter in filters:
        _check_text("filter", filter)
        try:
            parse_shared(filter)
        except ValueError as error:
            raise ValueError(f"filter {shortened(filter)} is not valid: {error}") from None
        if not valid_filter(filter):
            raise ValueError(
                f"filter {shortened(filter)} is not valid: it has one character at least, "
                "+ stands alone in its level, and # alone in the last one"
            )


def _check_properties(name: str, properties: object, packet_type: int | None) -> None:
    """Check each property against the codec's table: its value, and the packets that may have
    it."""
    if not isinstance(properties, Properties):
        raise _wrong_type(name, properties, "Properties")
    for row in TABLE:
        value = getattr(properties, row.field)
        if value is None or value == ():
            continue
        why = _why_not(row, value, packet_type)
        if why:
            raise ValueError(f"{name}.{row.field} is {shortened(value)}: {why}")


def _why_not(row: Property, value: object, packet_type: int | None) -> str:
    """Return why a property cannot be sent, or "" if it can."""
    kind, expected = _EXPECTED[row.wire]
    if not isinstance(value, kind):
        return expected
    try:
        data = encode_properties(Properties(**{row.field: value}))  # type: ignore[arg-type]
        in_will = packet_type is None
        decode_properties(data, 0, len(data), packet_type or 0, in_will, from_client=True)
    except PeerError as error:
        return error.why
    except (TypeError, ValueError, AttributeError, ArithmeticError, AssertionError):
        return expected
    return ""


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise _wrong_type(name, text, "a str")
    if "\0" in text:
        raise ValueError(f"{name} {shortened(text)} has U+0000 in it, which no text of MQTT may")
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{name} {shortened(text)} has a surrogate, and is no UTF-8") from None
    if size_bytes > FIELD_BYTES_MAX:
        raise ValueError(f"{name} has {size_bytes:,} bytes in UTF-8; 65,535 are the most")


def _checked_field(name: str, data: object) -> bytes:
    """Return binary data that fit in two bytes of length."""
    data = _checked_bytes(name, data)
    if len(data) > FIELD_BYTES_MAX:
        raise ValueError(f"{name} has {len(data):,} bytes; 65,535 are the most")
    return data


def _checked_bytes(name: str, data: object) -> bytes:
    if isinstance(data, bytes):
        return data
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise _wrong_type(name, data, "bytes")


def _checked_qos(name: str, qos: object) -> int:
    return _checked_number(name, qos, 2)


def _checked_number(name: str, number: object, most: int) -> int:
    """Return a whole number as an int; accepts equal values such as 3600.0, or True for 1."""
    if not (isinstance(number, int) or (isinstance(number, float) and number.is_integer())):
        raise _wrong_type(name, number, "an int")
    if not 0 <= number <= most:
        raise ValueError(f"{name} is {number}; 0 to {most:,} is expected")
    return int(number)


def _checked_flag(name: str, flag: object) -> bool:
    """Return a flag as a bool; accepts 0 and 1."""
    if not isinstance(flag, int) or flag not in (0, 1):
        raise _wrong_type(name, flag, "a bool")
    return bool(flag)


def _wrong_type(name: str, value: object, expected: str) -> TypeError:
    return TypeError(f"{name} is expected to be {expected}, not {type(value).__name__}")
