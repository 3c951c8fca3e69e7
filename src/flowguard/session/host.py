"""Questions of a conversation to the node it runs on: with `inbound.Routing` the session room's
only doors upwards. State that both read and write is in `node_state`.

Tests implement them in plain Python, beside compiled rooms.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from mypy_extensions import mypyc_attr

from flowguard.codec.packets import Auth, Connect
from flowguard.errors import PeerError
from flowguard.records import StoreOp
from flowguard.types import ReasonCode

C = TypeVar("C")


@mypyc_attr(allow_interpreted_subclasses=True)
class GroupCommit(ABC):
    """Takes what is to be durable, and tells who waits for it when it is."""

    __slots__ = ()

    @abstractmethod
    def note(self, op: StoreOp) -> None:
        """Make `op` durable with the next commit; nobody waits for it."""

    @abstractmethod
    def append(self, ops: list[StoreOp], done: Callable[[float], None], now_s: float) -> None:
        """Make `ops` durable together, with all that came before; then call `done(now_s)`."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Nobody waits: work without operations may be answered at once, in order."""


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
