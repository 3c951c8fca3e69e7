"""The error tree.

    FlowguardError
    |-- PeerError(reason_code)      the peer broke MQTT, or another node the rules of links
    |   |-- MalformedPacket         0x81 (and 0x95, 0x99 if these describe the bytes)
    |   `-- ProtocolViolation       0x82 and its special cases
    |-- StoreError                  the store cannot do what it promised
    |   |-- NotNowError             nothing was changed, so a retry is possible
    |   |   |-- NoSpaceError        the disk is full
    |   |   |-- StallError          the engine takes no write now
    |   |   `-- DescriptorsError    the process may open no more files
    |   |-- SyncError               the disk failed to sync: written data may be lost
    |   |-- CorruptionError         stored data are contradictory or unreadable
    |   |-- DataLostError           a server lost data that it had confirmed
    |   |-- RemovedError            the directory was deleted while it was open
    |   |-- FormatError             written by another version, or not by flowguard
    |   `-- LockedError             another process has it
    |       `-- LeasedError         another broker has it on a server
    |-- UnprovedError               the proof of a client's identity is invalid
    `-- ConfigError                 raised before clients are served, never later
        `-- UnreadyError            valid settings, for which this machine lacks something

Overload is not an error: it is a value with a reason (`flowguard.flow`). A bug is an assert.
"""

from flowguard.types import ReasonCode


class FlowguardError(Exception):
    """Root of all errors that flowguard raises on purpose."""


class PeerError(FlowguardError):
    """The peer broke the protocol; `reason_code` is the answer that the standard requires.

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
    """A well-formed packet that is not allowed at this point ([MQTT 5.0, 1.2 Protocol Error])."""

    def __init__(self, why: str, reason_code: ReasonCode = ReasonCode.PROTOCOL_ERROR) -> None:
        super().__init__(reason_code, why)


class StoreError(FlowguardError):
    """The store could not keep a promise; nothing of the batch may be acknowledged."""


class NotNowError(StoreError):
    """A failure that changed nothing, so a retry is possible."""


class NoSpaceError(NotNowError):
    """The disk is full."""


class StallError(NotNowError):
    """The engine can take no write without waiting."""


class DescriptorsError(NotNowError):
    """A file could not be opened, because the process or the machine has too many open files."""


class SyncError(StoreError):
    """A sync failed. Data written since the last one may be lost, so the process must end."""


class CorruptionError(StoreError):
    """Stored bytes that contradict themselves or each other, or cannot be read."""


class DataLostError(StoreError):
    """A server lost data that it had confirmed, and no copy exists."""


class RemovedError(StoreError):
    """The directory was deleted while it was open, so written data are lost."""


class FormatError(StoreError):
    """The directory was written by another version, or is no store."""


class LockedError(StoreError):
    """Another process has the store; `held`: the process and what it has, without advice."""

    def __init__(self, held: str, advice: str = "") -> None:
        super().__init__(held + advice)
        self.held = held


class LeasedError(LockedError):
    """Another broker has the store, which is on a server, or the address of this node. No copies of
    files are made there."""


class UnprovedError(FlowguardError):
    """A client has not proved its identity; the text is the reason, for the operator only."""


class ConfigError(FlowguardError):
    """Settings that cannot be met; the text names the key and what to do."""


class UnreadyError(ConfigError):
    """Settings that may be valid, but this machine lacks an extra or descriptors for them."""
