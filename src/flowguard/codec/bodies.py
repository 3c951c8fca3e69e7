"""The bodies of all packets but CONNECT, CONNACK and PUBLISH, bytes to records.

Every reader takes `(data, pos, end, flags, version)`, reads `data[pos:end]` to its last byte and
raises PeerError; `flags` are the fixed header's, already found legal.
"""

from typing import Final

from flowguard.codec import tables as t
from flowguard.codec.packets import (
    Auth,
    Disconnect,
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
from flowguard.codec.primitives import decode_byte, decode_string, decode_u16
from flowguard.codec.properties import decode_properties
from flowguard.errors import MalformedPacket, ProtocolViolation
from flowguard.types import MQTT_5, NO_PROPERTIES, Properties, ReasonCode, SubscriptionOptions

FILTERS_MAX: Final = 20_000
"""Maximum number of filters in a SUBSCRIBE or UNSUBSCRIBE. The limit is our choice, because each
filter takes four bytes on the wire, and all are decoded at once, in some milliseconds. The answer
to more is 0x97 (Quota exceeded)."""

PUBACK_BYTES: Final = 4
"""Size of a PUBACK with success, as most are: no reason code or properties [MQTT-3.4.2-1]."""


def decode_puback(data: bytes, pos: int, end: int, flags: int, version: int) -> Puback:
    # [MQTT-3.4.2-1]
    packet_id, reason, properties = _decode_ack(data, pos, end, version, t.PUBACK, t.PUBACK_REASONS)
    return Puback(packet_id, reason, properties)


def count_pubacks(data: bytes) -> int:
    """Return the number of packets if all are PUBACKs with success, PUBACK_BYTES each; else 0.

    Subscribers that receive many messages at once answer with such a chunk.
    """
    size = len(data)
    if size % PUBACK_BYTES:
        return 0
    for start in range(0, size, PUBACK_BYTES):
        if data[start] != 0x40 or data[start + 1] != 2:
            return 0
        if not (data[start + 2] or data[start + 3]):
            return 0  # [MQTT-2.2.1-3]
    return size // PUBACK_BYTES


def decode_pubrec(data: bytes, pos: int, end: int, flags: int, version: int) -> Pubrec:
    # [MQTT-3.5.2-1]
    packet_id, reason, properties = _decode_ack(data, pos, end, version, t.PUBREC, t.PUBREC_REASONS)
    return Pubrec(packet_id, reason, properties)


def decode_pubrel(data: bytes, pos: int, end: int, flags: int, version: int) -> Pubrel:
    # [MQTT-3.6.2-1]
    packet_id, reason, properties = _decode_ack(data, pos, end, version, t.PUBREL, t.PUBREL_REASONS)
    return Pubrel(packet_id, reason, properties)


def decode_pubcomp(data: bytes, pos: int, end: int, flags: int, version: int) -> Pubcomp:
    # [MQTT-3.7.2-1]
    packet_id, reason, properties = _decode_ack(
        data, pos, end, version, t.PUBCOMP, t.PUBCOMP_REASONS
    )
    return Pubcomp(packet_id, reason, properties)


def _decode_ack(
    data: bytes, pos: int, end: int, version: int, packet_type: int, reasons: frozenset[int]
) -> tuple[int, int, Properties]:
    packet_id, pos = _decode_packet_id(data, pos, end)
    if pos == end:
        return packet_id, ReasonCode.SUCCESS, NO_PROPERTIES
    reason, properties = _decode_reason(data, pos, end, version, packet_type, reasons)
    return packet_id, reason, properties


def _decode_packet_id(data: bytes, pos: int, end: int) -> tuple[int, int]:
    packet_id, pos = decode_u16(data, pos, end)
    if packet_id == 0:
        # [MQTT-2.2.1-3] [v3 MQTT-2.3.1-1]
        raise ProtocolViolation("packet identifier 0")
    return packet_id, pos


def _decode_reason(
    data: bytes, pos: int, end: int, version: int, packet_type: int, reasons: frozenset[int]
) -> tuple[int, Properties]:
    """Read a reason code, and properties if there is more; only MQTT 5.0 has either."""
    if version != MQTT_5:
        raise MalformedPacket("a packet with bytes left over")
    reason = data[pos]
    if reason not in reasons:
        raise ProtocolViolation(f"reason code {reason:#04x} is not for this packet")
    pos += 1
    if pos == end:
        return reason, NO_PROPERTIES
    properties, pos = decode_properties(data, pos, end, packet_type)
    _check_all_read(pos, end)
    return reason, properties


def _check_all_read(pos: int, end: int) -> None:
    if pos != end:
        raise MalformedPacket("a packet with bytes left over")


def _options_table() -> dict[int, SubscriptionOptions]:
    return {
        qos | no_local << 2 | rap << 3 | handling << 4: SubscriptionOptions(
            qos, no_local, rap, handling
        )
        for qos in range(3)
        for no_local in (False, True)
        for rap in (False, True)
        for handling in range(3)
    }


_OPTIONS: Final = _options_table()
"""All legal option bytes; subscriptions without identifier share these records."""


def decode_subscribe(data: bytes, pos: int, end: int, flags: int, version: int) -> Subscribe:
    packet_id, pos = _decode_packet_id(data, pos, end)
    properties = NO_PROPERTIES
    identifier = 0
    if version == MQTT_5:
        properties, pos = decode_properties(data, pos, end, t.SUBSCRIBE)
        if properties.subscription_identifiers:
            identifier = properties.subscription_identifiers[0]
    filters: list[tuple[str, SubscriptionOptions]] = []
    while pos < end:
        topic_filter, pos = _decode_filter(data, pos, end)
        byte, pos = decode_byte(data, pos, end)
        options = _decode_options(byte, version)
        if options.no_local and topic_filter.startswith("$share/"):
            # [MQTT-3.8.3-4]
            raise ProtocolViolation("No Local on a shared subscription")
        if identifier:
            options = SubscriptionOptions(
                options.qos,
                options.no_local,
                options.retain_as_published,
                options.retain_handling,
                identifier,
            )
        _check_count(len(filters))
        filters.append((topic_filter, options))
    if not filters:
        # [MQTT-3.8.3-2] [v3 MQTT-3.8.3-3]
        raise ProtocolViolation("a SUBSCRIBE without topic filters")
    return Subscribe(packet_id, tuple(filters), properties)


def _decode_options(byte: int, version: int) -> SubscriptionOptions:
    if byte & (0xC0 if version == MQTT_5 else 0xFC):
        # [MQTT-3.8.3-5] [v3 MQTT-3.8.3-4]
        raise MalformedPacket("reserved bits of the subscription options are set")
    options = _OPTIONS.get(byte)
    if options is None:
        if version != MQTT_5:
            # [v3 MQTT-3.8.3-4]
            raise MalformedPacket("QoS 3 in a SUBSCRIBE")
        raise ProtocolViolation("QoS 3 or Retain Handling 3 in a SUBSCRIBE")
    return options


def _check_count(count: int) -> None:
    if count == FILTERS_MAX:
        raise ProtocolViolation(f"more than {FILTERS_MAX} topic filters", ReasonCode.QUOTA_EXCEEDED)


def _decode_filter(data: bytes, pos: int, end: int) -> tuple[str, int]:
    # [MQTT-3.8.3-1, MQTT-3.10.3-1] [v3 MQTT-3.8.3-1, v3 MQTT-3.10.3-1]
    topic_filter, pos = decode_string(data, pos, end)
    if not topic_filter:
        # [MQTT-4.7.3-1] [v3 MQTT-4.7.3-1]
        raise MalformedPacket("an empty topic filter")
    return topic_filter, pos


def decode_unsubscribe(data: bytes, pos: int, end: int, flags: int, version: int) -> Unsubscribe:
    packet_id, pos = _decode_packet_id(data, pos, end)
    properties = NO_PROPERTIES
    if version == MQTT_5:
        properties, pos = decode_properties(data, pos, end, t.UNSUBSCRIBE)
    filters: list[str] = []
    while pos < end:
        topic_filter, pos = _decode_filter(data, pos, end)
        _check_count(len(filters))
        filters.append(topic_filter)
    if not filters:
        # [MQTT-3.10.3-2] [v3 MQTT-3.10.3-2]
        raise ProtocolViolation("an UNSUBSCRIBE without topic filters")
    return Unsubscribe(packet_id, tuple(filters), properties)


def decode_suback(data: bytes, pos: int, end: int, flags: int, version: int) -> Suback:
    packet_id, pos = _decode_packet_id(data, pos, end)
    properties = NO_PROPERTIES
    if version == MQTT_5:
        properties, pos = decode_properties(data, pos, end, t.SUBACK)
    codes = tuple(data[pos:end])
    if not codes:
        raise ProtocolViolation("a SUBACK without reason codes")
    if not t.SUBACK_REASONS.issuperset(codes) or (
        version != MQTT_5 and not t.SUBACK_REASONS_311.issuperset(codes)
    ):
        # [MQTT-3.9.3-2] [v3 MQTT-3.9.3-2]
        raise ProtocolViolation("not a SUBACK reason code")
    return Suback(packet_id, codes, properties)


def decode_unsuback(data: bytes, pos: int, end: int, flags: int, version: int) -> Unsuback:
    packet_id, pos = _decode_packet_id(data, pos, end)
    if version != MQTT_5:
        _check_all_read(pos, end)
        return Unsuback(packet_id)
    properties, pos = decode_properties(data, pos, end, t.UNSUBACK)
    codes = tuple(data[pos:end])
    if not codes or not t.UNSUBACK_REASONS.issuperset(codes):
        # [MQTT-3.11.3-2]
        raise ProtocolViolation("not UNSUBACK reason codes")
    return Unsuback(packet_id, codes, properties)


def decode_pingreq(data: bytes, pos: int, end: int, flags: int, version: int) -> Pingreq:
    _check_all_read(pos, end)
    return Pingreq()


def decode_pingresp(data: bytes, pos: int, end: int, flags: int, version: int) -> Pingresp:
    _check_all_read(pos, end)
    return Pingresp()


def decode_disconnect_from_client(
    data: bytes, pos: int, end: int, flags: int, version: int
) -> Disconnect:
    if pos == end:
        return Disconnect()
    # [MQTT-3.14.2-1]
    reason, properties = _decode_reason(
        data, pos, end, version, t.DISCONNECT, t.DISCONNECT_REASONS_OF_CLIENT
    )
    return Disconnect(reason, properties)


def decode_disconnect_from_server(
    data: bytes, pos: int, end: int, flags: int, version: int
) -> Disconnect:
    if version != MQTT_5:
        raise ProtocolViolation("only clients send DISCONNECT before MQTT 5.0")
    if pos == end:
        return Disconnect()
    reason, properties = _decode_reason(
        data, pos, end, version, t.DISCONNECT, t.DISCONNECT_REASONS_OF_SERVER
    )
    if properties.session_expiry_interval is not None:
        # [MQTT-3.14.2-2]
        raise ProtocolViolation("a server may not send a session expiry in DISCONNECT")
    return Disconnect(reason, properties)


def decode_auth_from_client(data: bytes, pos: int, end: int, flags: int, version: int) -> Auth:
    return _decode_auth(data, pos, end, version, t.AUTH_REASONS_OF_CLIENT)


def decode_auth_from_server(data: bytes, pos: int, end: int, flags: int, version: int) -> Auth:
    return _decode_auth(data, pos, end, version, t.AUTH_REASONS_OF_SERVER)


def _decode_auth(data: bytes, pos: int, end: int, version: int, reasons: frozenset[int]) -> Auth:
    if pos == end:
        # Only the short form of success; a client has no success to report.
        if ReasonCode.SUCCESS not in reasons:
            raise ProtocolViolation("a client may not send AUTH with Success")
        return Auth()
    # [MQTT-3.15.2-1]
    reason, properties = _decode_reason(data, pos, end, version, t.AUTH, reasons)
    if properties.authentication_method is None:
        raise ProtocolViolation("an AUTH without authentication method")
    return Auth(reason, properties)
