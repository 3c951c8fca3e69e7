"""States of a connection, and the reasons why a client gets no message.

Both exchanges use plain values (`Session.inflight`, `Session.inbound_ids`). Tests have their states
and transitions as tables, drive the code by them, and fail if it differs
(docs/reference/session-states.md).
"""

from enum import Enum, StrEnum
from typing import Final


class State(Enum):
    """State of a connection."""

    OPENED = "opened"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    ENDED = "ended"


# Looking an enum's member up is not free, and every chunk of bytes needs it.
OPENED: Final = State.OPENED
CONNECTING: Final = State.CONNECTING
CONNECTED: Final = State.CONNECTED
ENDED: Final = State.ENDED


class Undelivered(StrEnum):
    """Reason why a client gets no message now."""

    OFFLINE = "offline"
    """The client is not connected."""
    NOTHING_MATCHES = "nothing_matches"
    """No message waits: the client has no subscription, or all matching messages were sent."""
    SOCKET = "socket"
    """The client's socket accepts no data, or too little."""
    RECEIVE_MAXIMUM = "receive_maximum"
    """The number of unacknowledged messages reaches the client's limit."""
    INFLIGHT_BYTES = "inflight_bytes"
    """Unacknowledged bytes reach the client's or the node's limit, or 16 messages are
    unacknowledged and the next one has 4 KiB or more."""
    IDENTIFIER = "identifier"
    """The packet identifier of the next message is still in use by an older one."""
    DAMAGE = "damage"
    """The store cannot read the client's messages."""
    DISK = "disk"
    """The next message is on disk and is being read."""
    WINDOW = "window"
    """The node's window is full: a backlog is sent no faster than clients may publish."""
    TURN = "turn"
    """The client's backlog waits behind live messages and other backlogs."""
    LOG = "log"
    """Missed messages are being read from the durable log."""
    GROUP = "group"
    """A shared subscription that several brokers serve has a fault."""
