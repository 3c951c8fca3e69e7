"""States of a pair of connections through a proxy.

    OPENED --CONNECT--> OFFERED --admit--> DIALING --opened--> CONNECTING --CONNACK--> CONNECTED
       \\__________________\\___________________\\_____________________\\__________________/
                rejected (0x89, 0x88), expired, closed by either side ---> ENDED

A client that only stops sending does not change the state of its pair (`pair`).
"""

from enum import Enum
from typing import Final


class PairState(Enum):
    """The state of a pair."""

    OPENED = "opened"
    OFFERED = "offered"
    DIALING = "dialing"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    ENDED = "ended"


# Reading an enum's member costs time, and these are read for every chunk of bytes.
OPENED: Final = PairState.OPENED
OFFERED: Final = PairState.OFFERED
DIALING: Final = PairState.DIALING
CONNECTING: Final = PairState.CONNECTING
CONNECTED: Final = PairState.CONNECTED
ENDED: Final = PairState.ENDED
