"""The error tree.

    FlowguardError
    |-- PeerError(reason_code)      the other side broke MQTT; carries the code to answer with
    |   |-- MalformedPacket         0x81 (and 0x95, 0x99 where the bytes themselves say so)
    |   `-- ProtocolViolation       0x82 and its special cases
    |-- StoreError                  the store cannot do what it promised
    `-- ConfigError                 raised while settings are built, never later

Overload is not an error: it is a value with a reason (`flowguard.flow`). A bug is an assert.
"""

from flowguard.types import ReasonCode


class FlowguardError(Exception):
    """Root of everything flowguard raises on purpose."""


class PeerError(FlowguardError):
    """The peer broke the protocol; `reason_code` is the answer the standard wants."""

    def __init__(self, reason_code: ReasonCode, why: str) -> None:
        super().__init__(why)
        self.reason_code = reason_code
        self.why = why


class MalformedPacket(PeerError):
    """Bytes that are no control packet ([MQTT 5.0, 1.2 Malformed Packet])."""

    def __init__(self, why: str, reason_code: ReasonCode = ReasonCode.MALFORMED_PACKET) -> None:
        super().__init__(reason_code, why)


class ProtocolViolation(PeerError):
    """A well-formed packet that is not allowed here ([MQTT 5.0, 1.2 Protocol Error])."""

    def __init__(self, why: str, reason_code: ReasonCode = ReasonCode.PROTOCOL_ERROR) -> None:
        super().__init__(reason_code, why)


class StoreError(FlowguardError):
    """The store could not keep a promise; nothing of the batch may be acknowledged."""


class ConfigError(FlowguardError):
    """Settings that cannot be met; the text names the key and what to do."""
