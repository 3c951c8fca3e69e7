"""A conversation as those see it that must not know how it works: its halves, and the node's lists
of who is to be run, sent to, or has to give way.

Plain classes: compiled, one with a metaclass would cost each connection 16 bytes.
"""

from flowguard.codec.packets import Auth, Disconnect
from flowguard.types import ReasonCode


class Conversation:
    """`ServerConnection`, from below."""

    __slots__ = ()

    def schedule(self) -> None:
        """Be run again in the next turn."""
        raise NotImplementedError

    def give_way(self, now_s: float) -> None:
        """The node has no room for what it sent."""
        raise NotImplementedError

    def limit_window(self, limit_max: int) -> None:
        """Let it have so much in process from now on, cost units; less where the node has less."""
        raise NotImplementedError

    def client_disconnects(self, packet: Disconnect, now_s: float) -> None:
        """DISCONNECT from the client: the orderly end ([MQTT 5.0, 3.14])."""
        raise NotImplementedError

    def authenticates(self, packet: Auth, now_s: float) -> None:
        """AUTH from the client."""
        raise NotImplementedError

    def failed(self, error: Exception, now_s: float) -> None:
        """The peer broke MQTT, or a hook or we ourselves broke: the connection ends."""
        raise NotImplementedError

    def end(self, reason: ReasonCode | None, now_s: float, why: str = "") -> None:
        """Stop the conversation; with a reason a 5.0 client is told. Safe to call twice."""
        raise NotImplementedError


class Sender:
    """`Outbound`, as the node lets it take its turn."""

    __slots__ = ()

    def take_turn(self, now_s: float) -> None:
        """Go on with the backlog, as far as there is room."""
        raise NotImplementedError
