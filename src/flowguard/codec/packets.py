"""One record per control packet; MQTT 5.0 is the model, 3.1.1 the subset (see `types.Publish`)."""

from dataclasses import dataclass, field

from mypy_extensions import mypyc_attr

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


@dataclass(init=False, slots=True)
class Connect:
    """`clean_start` is 3.1.1's Clean Session; `keep_alive_s` 0: no keep-alive."""

    client_id: str
    version: int
    clean_start: bool
    keep_alive_s: int
    username: str | None
    password: bytes | None
    will: Will | None
    properties: Properties

    def __init__(
        self,
        client_id: str = "",
        version: int = MQTT_5,
        clean_start: bool = True,
        keep_alive_s: int = 0,
        username: str | None = None,
        password: bytes | None = None,
        will: Will | None = None,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        self.client_id = client_id
        self.version = version
        self.clean_start = clean_start
        self.keep_alive_s = keep_alive_s
        self.username = username
        self.password = password
        self.will = will
        self.properties = properties


@dataclass(init=False, slots=True)
class Connack:
    """`reason_code` is that of MQTT 5.0; for versions 4 and 3 the encoder writes 3.1.1's return
    code."""

    session_present: bool
    reason_code: int
    properties: Properties

    def __init__(
        self,
        session_present: bool = False,
        reason_code: int = ReasonCode.SUCCESS,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        self.session_present = session_present
        self.reason_code = reason_code
        self.properties = properties


@mypyc_attr(acyclic=True)
@dataclass(init=False, slots=True)
class Acknowledgement:
    """The common fields of PUBACK, PUBREC, PUBREL and PUBCOMP; never sent by itself."""

    packet_id: int
    reason_code: int
    properties: Properties

    def __init__(
        self,
        packet_id: int,
        reason_code: int = ReasonCode.SUCCESS,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        self.packet_id = packet_id
        self.reason_code = reason_code
        self.properties = properties


@mypyc_attr(acyclic=True)
class Puback(Acknowledgement):
    __slots__ = ()


@mypyc_attr(acyclic=True)
class Pubrec(Acknowledgement):
    __slots__ = ()


@mypyc_attr(acyclic=True)
class Pubrel(Acknowledgement):
    __slots__ = ()


@mypyc_attr(acyclic=True)
class Pubcomp(Acknowledgement):
    __slots__ = ()


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
    """`reason_codes` are not sent to 3.1.1."""

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


def publishes_count(packets: list[Packet]) -> int:
    """Return the number of PUBLISHes."""
    return sum(isinstance(packet, Publish) for packet in packets)
