"""Packets as fields of a line: what they ask and answer, without passwords and tokens."""

from dataclasses import fields
from typing import Any, Final

from flowguard.codec import tables as t
from flowguard.codec.packets import (
    Acknowledgement,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)
from flowguard.codec.publish import decode_publish
from flowguard.codec.sides import FROM_CLIENT, FROM_SERVER
from flowguard.errors import PeerError
from flowguard.ops.trace.heads import Head
from flowguard.types import Properties, Publish, ReasonCode

NAMES: Final = {
    getattr(t, name): name
    for name in (
        *("CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP"),
        *("SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK"),
        *("PINGREQ", "PINGRESP", "DISCONNECT", "AUTH"),
    )
}
SECRET: Final = frozenset({"authentication_data"})
FILTERS_MAX: Final = 20
"""Filters, or codes of filters, that are shown of one packet."""
CHARACTER_BYTES_MAX: Final = 4
"""Size of a character; a payload that is cut within one is no UTF-8."""


def packet_of(head: Head, version: int, *, from_client: bool) -> Packet | None:
    """Return the packet, its payload cut if the head is, or None if other fields are cut.

    Raises MalformedPacket and ProtocolViolation for an invalid packet.
    """
    data, start, size_bytes = head
    first, end = data[0], len(data)
    is_cut = end < size_bytes
    if first >> 4 == t.PUBLISH:
        for cut in range(CHARACTER_BYTES_MAX if is_cut else 1):
            try:
                at = start, end - cut
                return decode_publish(data, *at, first & 15, version, from_client)
            except PeerError:
                if not is_cut:
                    raise
        return None
    read = (FROM_CLIENT if from_client else FROM_SERVER).get(first >> 4)
    if read is None or is_cut:
        return None
    return read(data, start, end, first & 15, version)


def name_of(first: int) -> str:
    """Return the name of the packet that begins with this byte."""
    return NAMES.get(first >> 4, "unknown")


def fields_of(packet: Packet, payload_max: int) -> dict[str, object]:
    """Return what a packet contains, with at most `payload_max` bytes of a payload."""
    found: dict[str, Any] = {}
    match packet:
        case Publish():
            found |= _publish(packet, payload_max)
        case Connect():
            found |= _connect(packet)
        case Connack():
            found["code"] = code_text(packet.reason_code)
            found["session_present"] = packet.session_present
        case Subscribe():
            found["packet_id"] = packet.packet_id
            filters = packet.filters[:FILTERS_MAX]
            found["filters"] = [f"{filter} qos={options.qos}" for filter, options in filters]
        case Unsubscribe():
            found["packet_id"] = packet.packet_id
            found["filters"] = list(packet.filters[:FILTERS_MAX])
        case Suback() | Unsuback():
            found["packet_id"] = packet.packet_id
            found["codes"] = [code_text(code) for code in packet.reason_codes[:FILTERS_MAX]]
        case Acknowledgement():
            found["packet_id"] = packet.packet_id
            found["code"] = code_text(packet.reason_code)
        case Disconnect() | Auth():
            found["code"] = code_text(packet.reason_code)
    properties = getattr(packet, "properties", None)
    if properties is not None:
        found |= _properties(properties, payload_max)
    return found


def _publish(packet: Publish, payload_max: int) -> dict[str, object]:
    found: dict[str, object] = {"topic": packet.topic, "qos": packet.qos}
    if packet.qos:
        found["packet_id"] = packet.packet_id
    found |= {name: True for name in ("retain", "dup") if getattr(packet, name)}
    if payload_max:
        found["payload"] = packet.payload[:payload_max].decode(errors="backslashreplace")
    return found


def _connect(packet: Connect) -> dict[str, object]:
    """Return the fields of a CONNECT, without its password."""
    found: dict[str, object] = {"version": packet.version, "clean_start": packet.clean_start}
    found["keep_alive_s"] = packet.keep_alive_s
    if packet.username is not None:
        found["user"] = packet.username
    will: Will | None = packet.will
    if will is not None:
        found["will"] = f"{will.topic} qos={will.qos}"
    return found


def _properties(properties: Properties, payload_max: int) -> dict[str, object]:
    """Return the properties that are present. User properties may be as confidential as a payload,
    so their values are shown only with it."""
    found: dict[str, object] = {}
    for each in fields(properties):
        value = getattr(properties, each.name)
        if value is None or value == () or each.name in SECRET:
            continue
        if each.name == "user_properties":
            pairs = value[:FILTERS_MAX]
            value = [f"{name}={text}" if payload_max else name for name, text in pairs]
        found[each.name] = f"{len(value)} bytes" if isinstance(value, bytes) else value
    return found


def code_text(code: int) -> str:
    try:
        return f"0x{code:02X} {ReasonCode(code).name.lower()}"
    except ValueError:
        return f"0x{code:02X}"
