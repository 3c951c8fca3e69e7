"""The tables of the standards: packet types, their fixed flags, and the packets of each side.

These are only lookups for decoder and encoder.
"""

from typing import Final

from flowguard.types import ReasonCode

# Control packet types, high nibble of the first byte (MQTT 5.0, table 2-1). 0 is forbidden.
CONNECT: Final = 1
CONNACK: Final = 2
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14
AUTH: Final = 15

FIXED_FLAGS: Final = (0, 0, 0, 0, 0, 0, 2, 0, 2, 0, 2, 0, 0, 0, 0, 0)
"""Low nibble of the first byte by packet type (table 2-2); only PUBLISH has variable flags."""

PUBLISH_FLAGS: Final = tuple(
    None if qos == 3 or (dup and not qos) else (qos, retain, dup)
    for dup in (False, True)
    for qos in range(4)
    for retain in (False, True)
)
"""(QoS, RETAIN, DUP) by the low nibble of a PUBLISH, or None for invalid flags."""

_R = ReasonCode
PUBACK_REASONS: Final = frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99))
PUBREC_REASONS: Final = PUBACK_REASONS
PUBREL_REASONS: Final = frozenset((_R.SUCCESS, _R.PACKET_IDENTIFIER_NOT_FOUND))
PUBCOMP_REASONS: Final = PUBREL_REASONS
CONNACK_REASONS: Final = frozenset(
    (0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F)
)
SUBACK_REASONS: Final = frozenset(
    (0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2)
)
SUBACK_REASONS_311: Final = frozenset((0x00, 0x01, 0x02, 0x80))
UNSUBACK_REASONS: Final = frozenset((0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91))
DISCONNECT_REASONS_OF_CLIENT: Final = frozenset(
    (0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, *range(0x93, 0x9A))
)
DISCONNECT_REASONS_OF_SERVER: Final = frozenset(
    (0x00, *range(0x80, 0x84), 0x87, 0x89, 0x8B, 0x8C, *range(0x8D, 0x91), *range(0x93, 0xA3))
)
AUTH_REASONS_OF_CLIENT: Final = frozenset((_R.CONTINUE_AUTHENTICATION, _R.RE_AUTHENTICATE))
AUTH_REASONS_OF_SERVER: Final = frozenset((_R.SUCCESS, _R.CONTINUE_AUTHENTICATION))

CONNACK_FROM_311: Final = (
    _R.SUCCESS,
    _R.UNSUPPORTED_PROTOCOL_VERSION,
    _R.CLIENT_IDENTIFIER_NOT_VALID,
    _R.SERVER_UNAVAILABLE,
    _R.BAD_USER_NAME_OR_PASSWORD,
    _R.NOT_AUTHORIZED,
)
"""Reason codes of MQTT 5.0 for MQTT 3.1.1's return codes 0 to 5 (table 3.1)."""

_PERMANENT: Final = (
    _R.MALFORMED_PACKET,
    _R.PROTOCOL_ERROR,
    _R.NOT_AUTHORIZED,
    _R.BANNED,
    _R.BAD_AUTHENTICATION_METHOD,
    _R.TOPIC_NAME_INVALID,
    _R.PACKET_TOO_LARGE,
    _R.PAYLOAD_FORMAT_INVALID,
    _R.RETAIN_NOT_SUPPORTED,
    _R.QOS_NOT_SUPPORTED,
)
CONNACK_TO_311: Final[dict[int, int]] = {
    _R.SUCCESS: 0,
    _R.UNSUPPORTED_PROTOCOL_VERSION: 1,
    _R.CLIENT_IDENTIFIER_NOT_VALID: 2,
    _R.BAD_USER_NAME_OR_PASSWORD: 4,
    **dict.fromkeys(_PERMANENT, 5),
}
"""Return codes of MQTT 3.1.1. Other reasons become 3, server unavailable (it may work later); 5 is
for permanent rejections."""
