"""The rules of CONNECT and CONNACK: what one may say, what the other answers; no state."""

from dataclasses import dataclass

from flowguard.access.rights import NO_QUOTAS, Quotas, least
from flowguard.codec.packets import Connect, Will
from flowguard.config import SessionSettings
from flowguard.records import WillRecord, message_bytes
from flowguard.types import MQTT_5, MQTT_31, NO_PROPERTIES, Properties, Publish, ReasonCode

CLIENT_ID_MAX_V31 = 23
"""Characters of a client id, as MQTT 3.1 has it; `session.long_client_ids_v31` lifts it."""

RECEIVE_MAXIMUM_FLOOR = 10
"""It stays as long as the connection does: a bad second must not throttle a client for weeks."""
RECEIVE_MAXIMUM_MOST = 32
"""What a client has outstanding beyond it waits in its socket, where no law reaches it."""
RECEIVE_MAXIMUM_LEAST = 2
"""For messages of any weight: one is on its way while one is worked on."""

CONNECT_BYTES = 1_000
"""What a waiting CONNECT counts besides what the client put into it, bytes."""


@dataclass(init=False, slots=True)
class ConnectTerms:
    """The terms of a connection; CONNACK announces those that differ from the request."""

    session_expiry_s: int
    keep_alive_s: int
    """0: none asked, none forced."""
    receive_maximum: int
    """QoS 1 and 2 PUBLISH the client may have unacknowledged; 3.1.1 cannot be told."""
    packet_size_max: int
    """The largest packet that the client may send, bytes; 3.1.1 cannot be told."""

    def __init__(
        self, session_expiry_s: int, keep_alive_s: int, receive_maximum: int, packet_size_max: int
    ) -> None:
        self.session_expiry_s = session_expiry_s
        self.keep_alive_s = keep_alive_s
        self.receive_maximum = receive_maximum
        self.packet_size_max = packet_size_max


@dataclass(init=False, slots=True)
class Answer:
    """A CONNACK with 0x00, once the session is durable; `present`: Session Present."""

    granted: ConnectTerms
    properties: Properties
    present: bool

    def __init__(self, granted: ConnectTerms, properties: Properties, present: bool) -> None:
        self.granted = granted
        self.properties = properties
        self.present = present


def refusal(packet: Connect, settings: SessionSettings) -> ReasonCode | None:
    """Why this CONNECT cannot be accepted; None: it can."""
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
    """The PUBLISH of that weight that a client may have unacknowledged, by the node's window."""
    units = max(RECEIVE_MAXIMUM_FLOOR, window)
    return max(RECEIVE_MAXIMUM_LEAST, min(RECEIVE_MAXIMUM_MOST, units // weight))


def grant(
    packet: Connect,
    settings: SessionSettings,
    window: int,
    weight: int = 1,
    quotas: Quotas = NO_QUOTAS,
) -> ConnectTerms:
    """The server's side of the negotiation.

    `window`: what the node allows a client just now; `weight`: of what this one sent last. Both in
    cost units. `quotas`: what its roles allow, besides the settings.
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
    """The session expiry that a CONNECT is granted, seconds."""
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
    """The server's limits, as CONNACK announces them ([MQTT 5.0, 3.2.2.3])."""
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
    """The PUBLISH a will becomes; its delay is the connection's business, not the message's."""
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
    """Bytes that a CONNECT counts while it waits at the gate."""
    return CONNECT_BYTES + connect_content_bytes(packet)


def connect_content_bytes(packet: Connect) -> int:
    """Bytes that the client put into a CONNECT."""
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
