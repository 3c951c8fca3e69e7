"""A conversation as those see it that must not know how it works: its halves, and the node's lists
of who is to be run, sent to, or has to give way."""

from abc import ABC, abstractmethod

from flowguard.codec.packets import Auth, Disconnect
from flowguard.types import ReasonCode


class Conversation(ABC):
    """`ServerConnection`, from below."""

    __slots__ = ()

    @abstractmethod
    def schedule(self) -> None:
        """Be run again in the next turn."""

    @abstractmethod
    def give_way(self, now_s: float) -> None:
        """The node has no room for what it sent."""

    @abstractmethod
    def client_disconnects(self, packet: Disconnect, now_s: float) -> None:
        """DISCONNECT from the client: the orderly end ([MQTT 5.0, 3.14])."""

    @abstractmethod
    def authenticates(self, packet: Auth, now_s: float) -> None:
        """AUTH from the client."""

    @abstractmethod
    def failed(self, error: Exception, now_s: float) -> None:
        """The peer broke MQTT, or a hook or we ourselves broke: the connection ends."""

    @abstractmethod
    def end(self, reason: ReasonCode | None, now_s: float, why: str = "") -> None:
        """Stop the conversation; with a reason a 5.0 client is told. Safe to call twice."""


class Sender(ABC):
    """`Outbound`, as the node lets it take its turn."""

    __slots__ = ()

    @abstractmethod
    def take_turn(self, now_s: float) -> None:
        """Go on with the backlog, as far as there is room."""
