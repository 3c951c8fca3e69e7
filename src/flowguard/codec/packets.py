"""One record per control packet; MQTT 5.0 is the model, 3.1.1 the subset (see `types.Publish`)."""

from dataclasses import dataclass, field

from flowguard.types import (
    MQTT_5,
    NO_PROPERTIES,
    Properties,
    Publish,
    ReasonCode,
    SubscriptionOptions,
)


@dataclass(slots=True)
class Will:
    """The message a server publishes when a connection ends without DISCONNECT 0x00."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default=NO_PROPERTIES)


@dataclass(slots=True)
class Connect:
    """`clean_start` is 3.1.1's Clean Session; `keep_alive_s` 0: no keep-alive."""

    client_id: str = ""
    version: int = MQTT_5
    clean_start: bool = True
    keep_alive_s: int = 0
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties = field(default=NO_PROPERTIES)


@dataclass(slots=True)
class Connack:
    """`reason_code` is MQTT 5.0's; the encoder writes 3.1.1's return code for version 4 and 3."""

    session_present: bool = False
    reason_code: int = ReasonCode.SUCCESS
    properties: Properties = field(default=NO_PROPERTIES)


@dataclass(slots=True)
class Puback:
    packet_id: int
    reason_code: int = ReasonCode.SUCCESS
    properties: Properties = field(default=NO_PROPERTIES)


@dataclass(slots=True)
class Pubrec:
    packet_id: int
    reason_code: int = ReasonCode.SUCCESS
    properties: Properties = field(default=NO_PROPERTIES)


@dataclass(slots=True)
class Pubrel:
    packet_id: int
    reason_code: int = ReasonCode.SUCCESS
    properties: Properties = field(default=NO_PROPERTIES)


@dataclass(slots=True)
class Pubcomp:
    packet_id: int
    reason_code: int = ReasonCode.SUCCESS
    properties: Properties = field(default=NO_PROPERTIES)


@dataclass(slots=True)
class Subscribe:
    """`filters` in the order of the packet; never empty."""

    packet_id: int
    filters: tuple[tuple[str, SubscriptionOptions], ...]
    properties: Properties = field(default=NO_PROPERTIES)


@dataclass(slots=True)
class Suback:
    """One reason code per filter of the SUBSCRIBE, in its order."""

    packet_id: int
    reason_codes: tuple[int, ...]
    properties: Properties = field(default=NO_PROPERTIES)


@dataclass(slots=True)
class Unsubscribe:
    packet_id: int
    filters: tuple[str, ...]
    properties: Properties = field(default=NO_PROPERTIES)


@dataclass(slots=True)
class Unsuback:
    """`reason_codes` stay off the wire for 3.1.1."""

    packet_id: int
    reason_codes: tuple[int, ...] = ()
    properties: Properties = field(default=NO_PROPERTIES)


@dataclass(slots=True)
class Pingreq:
    pass


@dataclass(slots=True)
class Pingresp:
    pass


@dataclass(slots=True)
class Disconnect:
    reason_code: int = ReasonCode.SUCCESS
    properties: Properties = field(default=NO_PROPERTIES)


@dataclass(slots=True)
class Auth:
    reason_code: int = ReasonCode.SUCCESS
    properties: Properties = field(default=NO_PROPERTIES)


Packet = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
