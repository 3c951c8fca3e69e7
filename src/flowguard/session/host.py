"""Interfaces of the node for its connections, the only calls of this package to it. State that
both read and write is in `node_state`.

Tests implement them in plain Python, beside compiled packages.
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
"""The answer comes later, when the work is durable; until then the packet is in process."""
WAITS: Final = -2
"""A subscriber's queue is full: nothing was done, and the packet has to wait."""


@mypyc_attr(allow_interpreted_subclasses=True)
class GroupCommit(ABC):
    """Makes operations durable, and calls continuations then."""

    __slots__ = ()

    @abstractmethod
    def note(self, op: StoreOp) -> None:
        """Make `op` durable with the next commit; no continuation waits for it."""

    def note_all(self, ops: list[StoreOp]) -> None:
        """`note` each of them; none has a message."""
        for op in ops:
            self.note(op)

    @abstractmethod
    def append(
        self, ops: list[StoreOp], done: Callable[[float], None], now_s: float, name: str = ""
    ) -> None:
        """Make `ops` durable together, with all earlier ones; then call `done(now_s)`.

        `name` is that of the earlier operations if `ops` is empty.
        """

    @abstractmethod
    def append_for_reader(
        self, ops: list[StoreOp], done: Callable[[float], None], now_s: float
    ) -> None:
        """Append operations that deliver or acknowledge missed messages, which is no live work."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """True if no work waits, so that work without operations may be answered at once."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Routing(ABC, Generic[In]):
    """Handles the packets of a client; `In` is `Inbound`."""

    __slots__ = ()

    @abstractmethod
    def publish(self, inbound: In, message: Publish, now_s: float) -> int:
        """Route a PUBLISH, and return its reason code, IN_PROCESS or WAITS.

        After IN_PROCESS `Inbound.published` follows. With WAITS it is not handled yet: its window
        is closed until it fits, or `inbound.blocked` is set and `Inbound.go_on` follows.
        """

    def publish_burst(self, inbound: In, burst: Burst, now_s: float) -> Burst | None:
        """Route a burst, or its first packets, as `publish` would do with success for each.

        Return the routed packets, or None if nothing was done, as they must go one by one.
        """
        return None

    @abstractmethod
    def subscribe(self, inbound: In, packet: Subscribe, now_s: float) -> bool:
        """Subscribe; `Inbound.answered` with the SUBACK follows, maybe at once.

        Return False if nothing was done; the window is closed until the packet fits.
        """

    @abstractmethod
    def unsubscribe(self, inbound: In, packet: Unsubscribe, now_s: float) -> bool:
        """Unsubscribe and answer with the UNSUBACK; False as for `subscribe`."""


@mypyc_attr(allow_interpreted_subclasses=True)
class RetainedSearch(ABC):
    """A search for the retained messages that match one filter of a client, a slice at a time."""

    __slots__ = ()

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """True if no message is left."""

    @abstractmethod
    def peek(self) -> Delivery | None:
        """Return the next message, as its topic has it now, or None if not found yet.

        The next call searches another slice, unless `is_done`.
        """

    @abstractmethod
    def take(self) -> None:
        """Go on to the message after the one that `peek` returned."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Lifecycle(ABC, Generic[C]):
    """Handles begin and end of connections; `C` is `ServerConnection`."""

    __slots__ = ()

    @abstractmethod
    def connect(self, connection: C, packet: Connect, now_s: float) -> None:
        """Answer a valid CONNECT now or later."""

    @abstractmethod
    def authenticating(self, connection: C) -> bool:
        """Return True if an enhanced authentication is under way before CONNACK."""

    @abstractmethod
    def authenticate(self, connection: C, packet: Auth, now_s: float) -> None:
        """Handle AUTH on a connection that named an authentication method."""

    @abstractmethod
    def paused(self, connection: C, now_s: float) -> None:
        """Note a closed window; if the window of the node is full, the connection waits for it."""

    @abstractmethod
    def failed(self, connection: C, error: Exception, now_s: float) -> None:
        """End a connection after an exception of a hook or of flowguard; the node goes on."""

    @abstractmethod
    def connection_ended(self, connection: C, *, with_will: bool, now_s: float) -> None:
        """Handle the end of a client's connection; called exactly once per accepted CONNECT."""

    @abstractmethod
    def refused(self, connection: C, reason: ReasonCode, why: str, now_s: float) -> None:
        """Note a CONNECT that is answered with an error; `handshake_ended` follows.

        `why` explains the reason code, or is "".
        """

    @abstractmethod
    def broken(self, connection: C, error: PeerError) -> None:
        """Note a protocol error of the peer: its connection ends without a CONNACK."""

    @abstractmethod
    def handshake_ended(self, connection: C, now_s: float) -> None:
        """Handle the end of a connection before its CONNACK."""
