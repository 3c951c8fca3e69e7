"""The rules of CONNECT and CONNACK, without state."""

from dataclasses import dataclass

from flowguard.access.rights import NO_QUOTAS, Quotas, least
from flowguard.codec.packets import Connect, Will
from flowguard.config import SessionSettings
from flowguard.records import WillRecord, message_bytes
from flowguard.types import MQTT_5, MQTT_31, NO_PROPERTIES, Properties, Publish, ReasonCode

CLIENT_ID_MAX_V31 = 23
"""Maximum length of a client id in MQTT 3.1; `session.long_client_ids_v31` lifts it."""

RECEIVE_MAXIMUM_FLOOR = 10
"""Minimum window for Receive Maximum, which holds as long as the connection, perhaps weeks."""
RECEIVE_MAXIMUM_MOST = 32
"""Maximum: further PUBLISHes of a client would wait in its socket, beyond any control."""
RECEIVE_MAXIMUM_LEAST = 2
"""Minimum for messages of any weight: one is on its way while one is in process."""

CONNECT_BYTES = 1_000
"""Size of a waiting CONNECT besides its content, bytes."""


@dataclass(init=False, slots=True)
class ConnectTerms:
    """The terms of a connection; CONNACK announces those that differ from the request."""

    session_expiry_s: int
    keep_alive_s: int
    """Keep-alive in seconds, or 0 for none."""
    receive_maximum: int
    """Maximum number of unacknowledged QoS 1 and 2 PUBLISHes; 3.1.1 has no field for it."""
    packet_size_max: int
    """Size of the largest packet that the client may send, bytes; 3.1.1 has no field for it."""

    def __init__(
        self, session_expiry_s: int, keep_alive_s: int, receive_maximum: int, packet_size_max: int
    ) -> None:
        self.session_expiry_s = session_expiry_s
        self.keep_alive_s = keep_alive_s
        self.receive_maximum = receive_maximum
        self.packet_size_max = packet_size_max


@dataclass(init=False, slots=True)
class Answer:
    """A CONNACK with 0x00, once the session is durable; `present` is Session Present."""

    granted: ConnectTerms
    properties: Properties
    present: bool

    def __init__(self, granted: ConnectTerms, properties: Properties, present: bool) -> None:
        self.granted = granted
        self.properties = properties
        self.present = present


def refusal(packet: Connect, settings: SessionSettings) -> ReasonCode | None:
    """Return the reason code if this CONNECT cannot be accepted, else None."""
    will = packet.will
    if will is not None and will.qos > settings.maximum_qos:
        return ReasonCode.QOS_NOT_SUPPORTED  # [MQTT-3.2.2-12]
    if will is not None and will.retain and not settings.retain_available:
        return ReasonCode.RETAIN_NOT_SUPPORTED  # [MQTT-3.2.2-13]
    largest = settings.payload_bytes_max
    if will is not None and largest is not None and len(will.payload) > largest:
        return ReasonCode.QUOTA_EXCEEDED
    if not packet.client_id and packet.version != MQTT_5 and not packet.clean_start:
        return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID  # [v3 MQTT-3.1.3-8]
    if packet.version == MQTT_31:
        return _refusal_v31(packet.client_id, settings)
    return None


def _refusal_v31(client_id: str, settings: SessionSettings) -> ReasonCode | None:
    too_long = len(client_id) > CLIENT_ID_MAX_V31 and not settings.long_client_ids_v31
    return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID if too_long or not client_id else None


def receive_maximum_of(window: int, weight: int) -> int:
    """Return how many PUBLISHes of that weight may be unacknowledged, by the node's window."""
    units = max(RECEIVE_MAXIMUM_FLOOR, window)
    return max(RECEIVE_MAXIMUM_LEAST, min(RECEIVE_MAXIMUM_MOST, units // weight))


def grant(
    packet: Connect,
    settings: SessionSettings,
    window: int,
    weight: int = 1,
    quotas: Quotas = NO_QUOTAS,
) -> ConnectTerms:
    """Return the server's side of the negotiation.

    `window` is the node's present window for a client, `weight` that of the client's last PUBLISH,
    both in cost units. `quotas` are those of its roles, besides the settings.
    """
    keep_alive_s = packet.keep_alive_s
    limit_s = least(settings.keep_alive_max_s, quotas.keep_alive_max_s)
    if limit_s is not None and packet.version == MQTT_5 and not 0 < keep_alive_s <= limit_s:
        keep_alive_s = limit_s
    told = min(settings.receive_maximum, receive_maximum_of(window, weight))
    if quotas.window_max is not None:
        told = min(told, max(RECEIVE_MAXIMUM_LEAST, quotas.window_max))
    size_max = least(settings.packet_size_max, quotas.packet_size_max)
    expiry_s = session_expiry_s(packet, settings)
    return ConnectTerms(expiry_s, keep_alive_s, told, size_max or settings.packet_size_max)


def session_expiry_s(packet: Connect, settings: SessionSettings) -> int:
    """Return the session expiry that a CONNECT is granted, seconds."""
    asked_s = packet.properties.session_expiry_interval or 0
    if packet.version != MQTT_5:
        asked_s = 0 if packet.clean_start else settings.session_expiry_max_s
    return min(asked_s, settings.session_expiry_max_s)


def connack_properties(
    packet: Connect,
    granted: ConnectTerms,
    settings: SessionSettings,
    assigned_client_id: str | None,
) -> Properties:
    """Return the server's limits, as CONNACK announces them ([MQTT 5.0, 3.2.2.3])."""
    if packet.version != MQTT_5:
        return NO_PROPERTIES
    asked_s = packet.properties.session_expiry_interval or 0
    return Properties(
        session_expiry_interval=(
            granted.session_expiry_s if granted.session_expiry_s != asked_s else None
        ),
        receive_maximum=granted.receive_maximum,
        maximum_qos=settings.maximum_qos if settings.maximum_qos < 2 else None,
        retain_available=None if settings.retain_available else 0,
        maximum_packet_size=granted.packet_size_max,
        assigned_client_identifier=assigned_client_id,
        topic_alias_maximum=settings.topic_alias_maximum or None,
        server_keep_alive=(
            granted.keep_alive_s if granted.keep_alive_s != packet.keep_alive_s else None
        ),
    )


def will_message(will: Will) -> Publish:
    """Return the PUBLISH of a will; the delay is not part of it."""
    properties = will.properties
    if properties is not NO_PROPERTIES:
        properties = Properties(
            payload_format_indicator=properties.payload_format_indicator,
            message_expiry_interval=properties.message_expiry_interval,
            content_type=properties.content_type,
            response_topic=properties.response_topic,
            correlation_data=properties.correlation_data,
            user_properties=properties.user_properties,
        )
    return Publish(will.topic, will.payload, will.qos, will.retain, properties=properties)


def will_of(packet: Connect) -> WillRecord | None:
    if packet.will is None:
        return None
    return WillRecord(will_message(packet.will), packet.will.properties.will_delay_interval or 0)


def connect_bytes(packet: Connect) -> int:
    """Return the size of a CONNECT that waits at the gate, bytes."""
    return CONNECT_BYTES + connect_content_bytes(packet)


def connect_content_bytes(packet: Connect) -> int:
    """Return the size of the content of a CONNECT, bytes."""
    size_bytes = packet.client_id.__sizeof__()
    if packet.username is not None:
        size_bytes += packet.username.__sizeof__()
    if packet.password is not None:
        size_bytes += len(packet.password)
    if packet.properties is not NO_PROPERTIES:
        size_bytes += packet.properties.size_bytes
    if packet.will is not None:
        size_bytes += message_bytes(will_message(packet.will))
    return size_bytes
