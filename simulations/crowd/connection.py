"""Connection: one attempt of one client, and its end; both ends in one object.

The server's end has a state, as `flowguard.session.connection` has; the client's end is there or
gone. Between the two lies the network: each end learns of an action of the other a latency
later, so it looks only at its own state.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, final

from flowguard.flow import AdmissionWindow

if TYPE_CHECKING:
    from simulations.crowd.clients import Population
    from simulations.process.broker import Broker

KNOCKING: Final = 0
"""The kernel has not taken its SYN, which is sent again."""
BACKLOG: Final = 1
"""It is in the kernel's listen backlog."""
OPENED: Final = 2
"""It is accepted; its CONNECT is there to be read."""
CONNECTING: Final = 3
"""Its CONNECT is at the gate."""
WAITING: Final = 4
"""Its CONNECT waits at the gate."""
SERVED: Final = 5
"""Its CONNECT was admitted, and is not answered yet."""
CONNECTED: Final = 6
ENDED: Final = 7

Packet = float | None
"""A PUBLISH, as the instant at which its client wanted to send it; None: a SUBSCRIBE."""


class Outcome(IntEnum):
    """How an attempt ended for its client."""

    CONNECTED = 0
    REFUSED = 1
    """CONNACK 137."""
    CLOSED = 2
    """Closed without a packet."""
    TIMED_OUT = 3
    UNREACHABLE = 4
    """No process listens there."""


class Attempt(NamedTuple):
    """An attempt that has ended for its client."""

    population: str
    client: int
    """Its number in the population."""
    number: int
    """The number of attempts that this client has made before."""
    node: int
    started_s: float
    """The instant of the first SYN, virtual time."""
    ended_s: float
    """The instant at which the client knew the result, virtual time."""
    outcome: Outcome


@final
@dataclass(slots=True, eq=False)
class ClientPackets:
    """Packets that a connected client has sent and the node has not finished."""

    window: AdmissionWindow
    waiting: deque[Packet] = field(default_factory=deque)
    """Packets arrived and not begun."""


@final
@dataclass(slots=True, eq=False)
class QueuedPage:
    """The page in memory of the messages queued for a client."""

    unsent: int = 0
    inflight: int = 0
    """Messages sent, of which no acknowledgement has been read."""
    unread: int = 0
    """Acknowledgements that wait in the socket."""
    asked: bool = False


@final
@dataclass(slots=True, eq=False)
class Connection:
    """Hashable by identity; `flowguard.flow.guard.Guarded`."""

    population: "Population"
    broker: "Broker"
    client: int
    """Its number in the population."""
    attempt: int
    """The number of attempts that this client has made before."""
    started_s: float
    deadline_s: float
    # The client's end.
    is_alive: bool = True
    """False: the client has closed, timed out, or heard that the server has."""
    outcome: Outcome | None = None
    knocks: int = 0
    # The server's end.
    state: int = KNOCKING
    is_ready: bool = False
    """Whether it is in the loop's list of sockets with something to read."""
    queued: bool = False
    """Whether it is to be run again: it has packets, and there may be room."""
    ended_by_peer: bool = False
    """Whether the client's end of stream has arrived."""
    inbound: ClientPackets | None = None
    pings: int = 0
    replay: QueuedPage | None = None
    last_received_s: float = 0.0
    waited_s: float = 0.0
    """Time in the listen backlog."""
    watched_slot: int = 0

    @property
    def tenant(self) -> str:
        """The tenant whose share it takes while clients take turns: its population."""
        return self.population.name

    @property
    def window(self) -> AdmissionWindow | None:
        """The window that counts its packets; None: it has sent none yet."""
        return None if self.inbound is None else self.inbound.window

    @property
    def ended(self) -> bool:
        return self.state == ENDED

    def schedule(self) -> None:
        """Run it again in the next turn."""
        if not self.queued and self.state == CONNECTED:
            self.queued = True
            self.broker.ports.schedule(self)
