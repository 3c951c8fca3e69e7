"""Connection: one attempt of one client, and its end; both ends in one object.

The server's end has a state, as `flowguard.session.connection` has. The client's end is alive or
not. The network lies between them: each end learns of an action of the other after a latency, so it
looks only at its own state.
"""

from array import array
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple, Protocol, final

from flowguard.flow import AdmissionWindow, Guard
from simulations.crowd.topics import Topic
from simulations.engine import Engine
from simulations.process.loop import Loop
from simulations.scenario import PopulationPlan

KNOCKING: Final = 0
"""The kernel has not taken the SYN, which is sent again."""
BACKLOG: Final = 1
"""The connection is in the kernel's listen backlog."""
OPENED: Final = 2
"""The connection is accepted; its CONNECT can be read."""
CONNECTING: Final = 3
"""The CONNECT is at the gate."""
WAITING: Final = 4
"""The CONNECT waits at the gate."""
SERVED: Final = 5
"""The CONNECT was admitted, and is not answered yet."""
CONNECTED: Final = 6
ENDED: Final = 7

Packet = float | None
"""A PUBLISH, as the instant at which its client wanted to send it, or None for a SUBSCRIBE."""


class Outcome(IntEnum):
    """How an attempt ended for its client."""

    CONNECTED = 0
    REFUSED = 1
    """CONNACK 137."""
    CLOSED = 2
    """Closed without a packet."""
    TIMED_OUT = 3
    UNREACHABLE = 4
    """No process listens at the address."""


class Attempt(NamedTuple):
    """An attempt that has ended for its client."""

    population: str
    client: int
    """The client's number in the population."""
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


class ClientEnd(Protocol):
    """The population of a client, as its node calls it; `sent_s` may be ahead of the engine."""

    name: str
    plan: PopulationPlan
    topic: Topic | None
    queued: "array[int]"
    wasted_count: int

    def client_id(self, client: int) -> str: ...

    def accepted(self, connection: "Connection", sent_s: float) -> None:
        """Receive CONNACK 0."""

    def refused(self, connection: "Connection", sent_s: float, hint_s: float) -> None:
        """Receive CONNACK 0x89 (Server busy)."""

    def closed(self, connection: "Connection", sent_s: float) -> None:
        """The connection was closed without a packet."""

    def subscribed(self, connection: "Connection") -> None:
        """Receive a SUBACK."""

    def finished(self, connection: "Connection", due_s: float, cost: int, sent_s: float) -> None:
        """Receive a PUBACK, if the client is still connected."""

    def replayed(self, client: int, count: int, now_s: float) -> None:
        """Count messages that had waited for the client and are acknowledged."""

    def keep(self, client: int, node: int) -> None:
        """Note the node that has the client's session."""

    def left(self, connection: "Connection") -> None:
        """The node has noticed that the client has disconnected."""


class ServerEnd(Protocol):
    """The process of a node, as its clients and the parts of the process call it."""

    node: int
    guard: "Guard[Connection]"
    loop: Loop

    def schedule(self, connection: "Connection") -> None:
        """Run a connection in the next turn."""

    def knock(self, connection: "Connection") -> bool:
        """Receive a SYN. Return False if it is lost, because the listen backlog is full."""

    def receive(self, connection: "Connection", packet: Packet) -> None: ...

    def acknowledge(self, connection: "Connection", count: int) -> None:
        """Receive PUBACKs for queued messages."""

    def ping(self, connection: "Connection") -> None: ...

    def hang_up(self, connection: "Connection") -> None: ...


@final
@dataclass(slots=True, eq=False)
class Connection:
    """Hashable by identity; `flowguard.flow.guard.Guarded`."""

    population: ClientEnd
    broker: ServerEnd
    client: int
    """The client's number in the population."""
    attempt: int
    """The number of attempts that this client has made before."""
    started_s: float
    deadline_s: float
    # The client's end.
    is_alive: bool = True
    """False if the client has closed, timed out, or noticed that the server has closed."""
    outcome: Outcome | None = None
    knocks: int = 0
    # The server's end.
    state: int = KNOCKING
    is_ready: bool = False
    """True if it is in the loop's list of readable sockets."""
    queued: bool = False
    """True if it is to be run again: it has packets, and its window may have capacity."""
    ended_by_peer: bool = False
    """True if the client's end of stream has arrived."""
    inbound: ClientPackets | None = None
    pings: int = 0
    replay: QueuedPage | None = None
    last_received_s: float = 0.0
    waited_s: float = 0.0
    """Time in the listen backlog."""
    watched_slot: int = 0

    @property
    def tenant(self) -> str:
        """The tenant whose share it takes while clients take turns, which is its population."""
        return self.population.name

    @property
    def window(self) -> AdmissionWindow | None:
        """The window that counts its packets, or None if it has sent none yet."""
        return None if self.inbound is None else self.inbound.window

    @property
    def ended(self) -> bool:
        return self.state == ENDED

    def schedule(self) -> None:
        """Schedule it for the next turn."""
        if not self.queued and self.state == CONNECTED:
            self.queued = True
            self.broker.schedule(self)


def send(engine: Engine, connection: Connection, packet: Packet, arrives_s: float) -> None:
    """Let a packet reach its node at `arrives_s`, or now if that has passed."""
    engine.at(max(arrives_s, engine.now_s), _arrive, (connection, packet))


def _arrive(item: tuple[Connection, Packet]) -> None:
    connection, packet = item
    connection.broker.receive(connection, packet)
