"""What a conversation asks of the node it runs on: the session room's only door upwards."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from flowguard.bounds import Bounds
from flowguard.codec.packets import Auth, Connect, Subscribe, Unsubscribe
from flowguard.config import Settings
from flowguard.errors import PeerError
from flowguard.flow import FairBudget, Holders, NodeWindow
from flowguard.records import Release, Settle, StoreOp
from flowguard.session.chores import Chores
from flowguard.session.counters import Counters
from flowguard.session.inflight import Inflight
from flowguard.types import Publish, ReasonCode

if TYPE_CHECKING:
    from flowguard.session.connection import ServerConnection
    from flowguard.session.fetch import Fetch
    from flowguard.session.inbound import Inbound
    from flowguard.session.outbound import Outbound
    from flowguard.session.session import Session

IN_PROCESS: Final = -1
"""The answer comes later, when the work is durable; until then the packet counts."""
WAITS: Final = -2
"""A subscriber's queue is full: nothing was done, and the packet has to wait."""


class Host(ABC):
    """A node, seen from one conversation."""

    settings: Settings
    bounds: Bounds
    counters: Counters
    window: NodeWindow
    inflight: Inflight
    input_holders: "Holders[ServerConnection]"
    """Who has sent what is not decoded, and CONNECTs that are not answered."""
    outbox_budget: FairBudget
    state_budget: FairBudget
    disk_queue_budget: FairBudget
    """What waits in durable queues, where the store is on disk."""
    spills: bool
    """The store is on disk: what waits there need not be in memory."""
    read_only: bool
    """The disk is full: new durable work is refused where its client can be told."""
    drops_oldest: bool
    """Who makes room in a full queue: its oldest message, or else the new one."""
    blocks: bool
    """Publishers wait for room in a full queue."""
    fetches: deque["Fetch"]
    """Pages that the store is to be asked for; `QueueOwner.fetched` follows."""
    sent: dict[str, int]
    """Highest position sent, by client id of a durable session; for the store, when it is time."""
    paused_count: int
    """Connections of which packets wait for room in a window."""
    chores: Chores
    """What is done piece by piece."""
    runnable: list["ServerConnection"]
    """Connections with decoded work left: to be run again in the next turn."""
    dirty: list["ServerConnection"]
    """Connections with bytes to send."""

    @abstractmethod
    def connect(self, connection: "ServerConnection", packet: Connect, now_s: float) -> None:
        """A valid CONNECT arrived; it is answered now or later."""

    @abstractmethod
    def authenticating(self, connection: "ServerConnection") -> bool:
        """Whether an enhanced authentication is under way before CONNACK."""

    @abstractmethod
    def authenticate(self, connection: "ServerConnection", packet: Auth, now_s: float) -> None:
        """An AUTH packet arrived on a connection that named an authentication method."""

    @abstractmethod
    def publish(self, inbound: "Inbound", message: Publish, now_s: float) -> int:
        """Route a PUBLISH; its reason code, or IN_PROCESS: `Inbound.published` follows.

        Or WAITS: it is not handled yet. Its window has no room until it fits, or `inbound.blocked`
        is set, and `Inbound.go_on` follows.
        """

    @abstractmethod
    def release(self, inbound: "Inbound", packet_id: int, now_s: float, *, known: bool) -> None:
        """PUBREL, perhaps of an unknown identifier; `Inbound.released` follows, maybe at once."""

    @abstractmethod
    def subscribe(self, inbound: "Inbound", packet: Subscribe, now_s: float) -> bool:
        """`Inbound.answered` with the SUBACK follows, maybe at once.

        False: nothing was done; its window has no room until it fits.
        """

    @abstractmethod
    def unsubscribe(self, inbound: "Inbound", packet: Unsubscribe, now_s: float) -> bool:
        """The same with the UNSUBACK."""

    @abstractmethod
    def received(self, session: "Session", release: Release, now_s: float) -> None:
        """PUBREC for a stored message; `Outbound.release` follows."""

    @abstractmethod
    def replays(self, outbound: "Outbound") -> None:
        """It has more of a backlog to send; `Outbound.take_turn` follows."""

    @abstractmethod
    def when_durable(self, done: Callable[[float], None], now_s: float) -> None:
        """Call `done(now_s)` once all that was noted so far is durable."""

    @abstractmethod
    def expired(self, settle: Settle, now_s: float) -> None:
        """A message of a durable session expired before it was sent; it is settled like this."""

    @abstractmethod
    def expire_after(self, session: "Session", expiry_interval_s: int) -> None:
        """DISCONNECT changed how long the session outlives its connection."""

    @abstractmethod
    def paused(self, connection: "ServerConnection", now_s: float) -> None:
        """The window has no room; if it is the whole node that has none, the node remembers."""

    @abstractmethod
    def must_wait(self, inbound: "Inbound") -> bool:
        """Whether work that needs no commit has to keep its place behind work that does: only
        behind its own client's."""

    @abstractmethod
    def note(self, op: StoreOp) -> None:
        """Something durable that nobody waits for."""

    @abstractmethod
    def failed(self, connection: "ServerConnection", error: Exception, now_s: float) -> None:
        """A hook or we ourselves broke while this connection was served: it ends, not the node."""

    @abstractmethod
    def connection_ended(
        self, connection: "ServerConnection", *, with_will: bool, now_s: float
    ) -> None:
        """A connected client is gone; called exactly once per accepted CONNECT."""

    @abstractmethod
    def refused(
        self, connection: "ServerConnection", reason: ReasonCode, why: str, now_s: float
    ) -> None:
        """A CONNECT is answered with an error; `handshake_ended` follows.

        `why`: more than the reason code says, or empty.
        """

    @abstractmethod
    def broken(self, connection: "ServerConnection", error: PeerError) -> None:
        """The peer broke the protocol: its connection ends, and no CONNACK says why."""

    @abstractmethod
    def handshake_ended(self, connection: "ServerConnection", now_s: float) -> None:
        """A connection ended before its CONNACK."""
