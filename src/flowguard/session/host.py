"""Questions of a conversation to the node it runs on: the session room's only doors upwards. State
that both read and write is in `node_state`.

Tests implement them in plain Python, beside compiled rooms.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from mypy_extensions import mypyc_attr

from flowguard.codec.burst import Burst
from flowguard.codec.packets import Auth, Connect, Subscribe, Unsubscribe
from flowguard.errors import PeerError
from flowguard.records import Delivery, StoreOp
from flowguard.types import Publish, ReasonCode

C = TypeVar("C")
In = TypeVar("In")

IN_PROCESS: Final = -1
"""The answer comes later, when the work is durable; until then the packet counts."""
WAITS: Final = -2
"""A subscriber's queue is full: nothing was done, and the packet has to wait."""


@mypyc_attr(allow_interpreted_subclasses=True)
class GroupCommit(ABC):
    """Takes what is to be durable, and tells who waits for it when it is."""

    __slots__ = ()

    @abstractmethod
    def note(self, op: StoreOp) -> None:
        """Make `op` durable with the next commit; nobody waits for it."""

    def note_all(self, ops: list[StoreOp]) -> None:
        """`note` each of them; none brings a message."""
        for op in ops:
            self.note(op)

    @abstractmethod
    def append(
        self, ops: list[StoreOp], done: Callable[[float], None], now_s: float, name: str = ""
    ) -> None:
        """Make `ops` durable together, with all that came before; then call `done(now_s)`.

        `name`: under which what came before was noted, where there is no operation.
        """

    @abstractmethod
    def append_for_reader(
        self, ops: list[StoreOp], done: Callable[[float], None], now_s: float
    ) -> None:
        """Append what brings a client what it has missed, or says that it has it: no live work."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Nobody waits: work without operations may be answered at once, in order."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Routing(ABC, Generic[In]):
    """Where the packets of a client go; `In` is `Inbound`."""

    __slots__ = ()

    @abstractmethod
    def publish(self, inbound: In, message: Publish, now_s: float) -> int:
        """Route a PUBLISH; its reason code, or IN_PROCESS: `Inbound.published` follows.

        Or WAITS: it is not handled yet. Its window has no room until it fits, or `inbound.blocked`
        is set, and `Inbound.go_on` follows.
        """

    def publish_burst(self, inbound: In, burst: Burst, now_s: float) -> Burst | None:
        """Route it, or its first packets, as `publish` would packet by packet, each with success.

        Returns what was routed; None: it cannot be as one, and nothing was done.
        """
        return None

    @abstractmethod
    def subscribe(self, inbound: In, packet: Subscribe, now_s: float) -> bool:
        """`Inbound.answered` with the SUBACK follows, maybe at once.

        False: nothing was done; its window has no room until it fits.
        """

    @abstractmethod
    def unsubscribe(self, inbound: In, packet: Unsubscribe, now_s: float) -> bool:
        """Unsubscribe and answer with the UNSUBACK; False: as for `subscribe`."""


@mypyc_attr(allow_interpreted_subclasses=True)
class RetainedSearch(ABC):
    """A search for the retained messages that match one filter of a client, a slice at a time."""

    __slots__ = ()

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Nothing is left to be found."""

    @abstractmethod
    def peek(self) -> Delivery | None:
        """The next message, as its topic has it now; None: not found yet, search another slice
        with the next call, unless `is_done`."""

    @abstractmethod
    def take(self) -> None:
        """On with the message after the one that `peek` gave."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Lifecycle(ABC, Generic[C]):
    """Hears of the begin and the end of conversations; `C` is `ServerConnection`."""

    __slots__ = ()

    @abstractmethod
    def connect(self, connection: C, packet: Connect, now_s: float) -> None:
        """A valid CONNECT arrived; it is answered now or later."""

    @abstractmethod
    def authenticating(self, connection: C) -> bool:
        """Whether an enhanced authentication is under way before CONNACK."""

    @abstractmethod
    def authenticate(self, connection: C, packet: Auth, now_s: float) -> None:
        """An AUTH packet arrived on a connection that named an authentication method."""

    @abstractmethod
    def paused(self, connection: C, now_s: float) -> None:
        """The window has no room; if it is the whole node that has none, the node remembers."""

    @abstractmethod
    def failed(self, connection: C, error: Exception, now_s: float) -> None:
        """A hook or we ourselves broke while this connection was served: it ends, not the node."""

    @abstractmethod
    def connection_ended(self, connection: C, *, with_will: bool, now_s: float) -> None:
        """A connected client is gone; called exactly once per accepted CONNECT."""

    @abstractmethod
    def refused(self, connection: C, reason: ReasonCode, why: str, now_s: float) -> None:
        """A CONNECT is answered with an error; `handshake_ended` follows.

        `why`: more than the reason code says, or empty.
        """

    @abstractmethod
    def broken(self, connection: C, error: PeerError) -> None:
        """The peer broke the protocol: its connection ends, and no CONNACK says why."""

    @abstractmethod
    def handshake_ended(self, connection: C, now_s: float) -> None:
        """A connection ended before its CONNACK."""
