"""Types that all other modules use: reason codes, protocol levels, QoS, properties.

Values are MQTT's own. MQTT 5.0 is the model and 3.1.1 the subset. `flowguard.codec` translates what
3.1.1 lacks.
"""

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Final

from mypy_extensions import mypyc_attr

MQTT_31: Final = 3
MQTT_311: Final = 4
MQTT_5: Final = 5
PROTOCOLS: Final = {MQTT_31: "3.1", MQTT_311: "3.1.1", MQTT_5: "5.0"}

PACKET_ID_MAX: Final = 65_535
SESSION_NEVER_EXPIRES: Final = 0xFFFF_FFFF
"""Session Expiry Interval that means "keep for ever" ([MQTT 5.0, 3.1.2.11.2])."""

PROPERTIES_BYTES: Final = 350
"""Overhead of a packet's properties besides their texts, bytes; PAIR_BYTES: that of a user
property."""
PAIR_BYTES: Final = 64


class ReasonCode(IntEnum):
    """Reason codes (2.4); 0 reads Success, Normal disconnection or Granted QoS 0."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


@mypyc_attr(acyclic=True)
@dataclass(init=False, slots=True, unsafe_hash=True, repr=False)
class Properties:
    """The properties of one MQTT 5.0 packet; absent ones are None or empty ([MQTT 5.0, 2.2.2.2]).

    Units are the standard's: intervals in seconds, sizes in bytes. Immutable by convention.
    """

    payload_format_indicator: int | None
    message_expiry_interval: int | None
    content_type: str | None
    response_topic: str | None
    correlation_data: bytes | None
    subscription_identifiers: tuple[int, ...]
    session_expiry_interval: int | None
    assigned_client_identifier: str | None
    server_keep_alive: int | None
    authentication_method: str | None
    authentication_data: bytes | None
    request_problem_information: int | None
    will_delay_interval: int | None
    request_response_information: int | None
    response_information: str | None
    server_reference: str | None
    reason_string: str | None
    receive_maximum: int | None
    topic_alias_maximum: int | None
    topic_alias: int | None
    maximum_qos: int | None
    retain_available: int | None
    user_properties: tuple[tuple[str, str], ...]
    maximum_packet_size: int | None
    wildcard_subscription_available: int | None
    subscription_identifier_available: int | None
    shared_subscription_available: int | None

    def __init__(
        self,
        payload_format_indicator: int | None = None,
        message_expiry_interval: int | None = None,
        content_type: str | None = None,
        response_topic: str | None = None,
        correlation_data: bytes | None = None,
        subscription_identifiers: tuple[int, ...] = (),
        session_expiry_interval: int | None = None,
        assigned_client_identifier: str | None = None,
        server_keep_alive: int | None = None,
        authentication_method: str | None = None,
        authentication_data: bytes | None = None,
        request_problem_information: int | None = None,
        will_delay_interval: int | None = None,
        request_response_information: int | None = None,
        response_information: str | None = None,
        server_reference: str | None = None,
        reason_string: str | None = None,
        receive_maximum: int | None = None,
        topic_alias_maximum: int | None = None,
        topic_alias: int | None = None,
        maximum_qos: int | None = None,
        retain_available: int | None = None,
        user_properties: tuple[tuple[str, str], ...] = (),
        maximum_packet_size: int | None = None,
        wildcard_subscription_available: int | None = None,
        subscription_identifier_available: int | None = None,
        shared_subscription_available: int | None = None,
    ) -> None:
        self.payload_format_indicator = payload_format_indicator
        self.message_expiry_interval = message_expiry_interval
        self.content_type = content_type
        self.response_topic = response_topic
        self.correlation_data = correlation_data
        self.subscription_identifiers = subscription_identifiers
        self.session_expiry_interval = session_expiry_interval
        self.assigned_client_identifier = assigned_client_identifier
        self.server_keep_alive = server_keep_alive
        self.authentication_method = authentication_method
        self.authentication_data = authentication_data
        self.request_problem_information = request_problem_information
        self.will_delay_interval = will_delay_interval
        self.request_response_information = request_response_information
        self.response_information = response_information
        self.server_reference = server_reference
        self.reason_string = reason_string
        self.receive_maximum = receive_maximum
        self.topic_alias_maximum = topic_alias_maximum
        self.topic_alias = topic_alias
        self.maximum_qos = maximum_qos
        self.retain_available = retain_available
        self.user_properties = user_properties
        self.maximum_packet_size = maximum_packet_size
        self.wildcard_subscription_available = wildcard_subscription_available
        self.subscription_identifier_available = subscription_identifier_available
        self.shared_subscription_available = shared_subscription_available

    @property
    def size_bytes(self) -> int:
        """Estimated size in memory, an upper bound, bytes; O(number of user properties).

        A user property of five bytes on the wire takes more than a hundred bytes in memory.
        """
        size_bytes = PROPERTIES_BYTES
        for text in (self.content_type, self.response_topic, self.authentication_method):
            if text is not None:
                size_bytes += text.__sizeof__()
        for data in (self.correlation_data, self.authentication_data):
            if data is not None:
                size_bytes += len(data)
        for name, value in self.user_properties:
            size_bytes += PAIR_BYTES + name.__sizeof__() + value.__sizeof__()
        return size_bytes

    def __repr__(self) -> str:
        present = [
            f"{item.name}={value!r}"
            for item in fields(self)
            if (value := getattr(self, item.name)) not in (None, ())
        ]
        return f"Properties({', '.join(present)})"


NO_PROPERTIES: Final = Properties()
"""Shared by all packets without properties, so that `is NO_PROPERTIES` is a cheap test."""


@mypyc_attr(acyclic=True)
@dataclass(slots=True)
class SubscriptionOptions:
    """The options of one filter in a SUBSCRIBE ([MQTT 5.0, 3.8.3.1]); identifier 0 means none."""

    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int = 0


@mypyc_attr(acyclic=True)
@dataclass(init=False, slots=True)
class Publish:
    """A PUBLISH packet, and the application message in it: one record for its whole way.

    `packet_id` is 0 for QoS 0. `topic` may be empty only between decoder and alias resolution.
    Immutable by convention, because queues, retained store and in-flight windows share it.
    """

    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int
    properties: Properties

    def __init__(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        dup: bool = False,
        packet_id: int = 0,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.dup = dup
        self.packet_id = packet_id
        self.properties = properties
