"""The error tree.

    FlowguardError
    |-- PeerError(reason_code)      the other side broke MQTT, or another node the rules of links
    |   |-- MalformedPacket         0x81 (and 0x95, 0x99 where the bytes themselves say so)
    |   `-- ProtocolViolation       0x82 and its special cases
    |-- StoreError                  the store cannot do what it promised
    |   |-- NotNowError             nothing was changed, the same may be tried again
    |   |   |-- NoSpaceError        the disk is full
    |   |   |-- StallError          the engine takes no write now
    |   |   `-- DescriptorsError    the process may open no more files
    |   |-- SyncError               the disk failed to sync: what was written may be lost
    |   |-- CorruptionError         what is stored contradicts itself, or cannot be read
    |   |-- DataLostError           a server lost what it had confirmed
    |   |-- RemovedError            somebody has deleted it while it was open
    |   |-- FormatError             written by another version, or not by flowguard
    |   `-- LockedError             another process has it
    |       `-- LeasedError         another broker has it on a server
    |-- UnprovedError               what a client shows does not prove who it is
    `-- ConfigError                 raised before anybody is served, never later
        `-- UnreadyError            good settings, of which this machine lacks something

Overload is not an error: it is a value with a reason (`flowguard.flow`). A bug is an assert.
"""

from flowguard.types import ReasonCode


class FlowguardError(Exception):
    """Root of everything flowguard raises on purpose."""


class PeerError(FlowguardError):
    """The peer broke the protocol; `reason_code` is the answer the standard wants.

    Another node that breaks the rules of `flowguard.cluster` gets no answer: its link is closed.
    """

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


class NotNowError(StoreError):
    """A failure that changed nothing: the same may be tried again."""


class NoSpaceError(NotNowError):
    """The disk is full."""


class StallError(NotNowError):
    """The engine takes no write without waiting."""


class DescriptorsError(NotNowError):
    """A file could not be opened: the process, or the machine, has too many of them open."""


class SyncError(StoreError):
    """A sync failed. What was written since the last one may be lost: the process must end."""


class CorruptionError(StoreError):
    """Stored bytes that contradict themselves or each other, or cannot be read."""


class DataLostError(StoreError):
    """A server lost what it had confirmed, and nobody has it any more."""


class RemovedError(StoreError):
    """The directory was deleted while it was open: what is written is written nowhere."""


class FormatError(StoreError):
    """The directory was written by another version, or is no store."""


class LockedError(StoreError):
    """Another process has the store; `held`: who has what, without what to do."""

    def __init__(self, held: str, advice: str = "") -> None:
        super().__init__(held + advice)
        self.held = held


class LeasedError(LockedError):
    """Another broker has the store, which is on a server: no copies of files are made there."""


class UnprovedError(FlowguardError):
    """A client has not proved who it is; the text says why, to the operator alone."""


class ConfigError(FlowguardError):
    """Settings that cannot be met; the text names the key and what to do."""


class UnreadyError(ConfigError):
    """Settings that may be good, but this machine lacks an extra for them, or descriptors."""
