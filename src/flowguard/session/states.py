"""States of a conversation."""

from enum import Enum
from typing import Final


class State(Enum):
    """Where a connection stands."""

    OPENED = "opened"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    ENDED = "ended"


# Looking an enum's member up is not free, and this is asked of every chunk of bytes.
OPENED: Final = State.OPENED
CONNECTING: Final = State.CONNECTING
CONNECTED: Final = State.CONNECTED
ENDED: Final = State.ENDED
