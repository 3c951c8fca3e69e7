"""States of a pair of connections through a proxy.

    OPENED --CONNECT--> OFFERED --place--> DIALING --opened--> CONNECTING --CONNACK--> CONNECTED
       \\__________________\\___________________\\_____________________\\__________________/
                refused (137, 136), too late, closed by either side ---> ENDED

A client that only sends no more leaves its pair where it stands (`pair`).
"""

from enum import Enum
from typing import Final


class PairState(Enum):
    """Where a pair stands."""

    OPENED = "opened"
    OFFERED = "offered"
    DIALING = "dialing"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    ENDED = "ended"


# Looking an enum's member up is not free, and this is asked of every chunk of bytes.
OPENED: Final = PairState.OPENED
OFFERED: Final = PairState.OFFERED
DIALING: Final = PairState.DIALING
CONNECTING: Final = PairState.CONNECTING
CONNECTED: Final = PairState.CONNECTED
ENDED: Final = PairState.ENDED
