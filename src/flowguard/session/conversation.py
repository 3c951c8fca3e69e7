"""The interface of a connection for its halves and for the lists of the node.

These are plain classes: a compiled one with a metaclass would cost each connection 16 bytes.
"""

from flowguard.codec.packets import Auth, Disconnect
from flowguard.types import ReasonCode


class Conversation:
    """Interface of `ServerConnection`."""

    __slots__ = ()

    def schedule(self) -> None:
        """Run it again in the next turn."""
        raise NotImplementedError

    def give_way(self, now_s: float) -> None:
        """Release input, as the node has no memory for it."""
        raise NotImplementedError

    def limit_window(self, limit_max: int) -> None:
        """Limit its work in process to `limit_max` cost units, or to the node's limit if lower."""
        raise NotImplementedError

    def client_disconnects(self, packet: Disconnect, now_s: float) -> None:
        """Handle DISCONNECT from the client, the orderly end ([MQTT 5.0, 3.14])."""
        raise NotImplementedError

    def authenticates(self, packet: Auth, now_s: float) -> None:
        """Handle AUTH from the client."""
        raise NotImplementedError

    def failed(self, error: Exception, now_s: float) -> None:
        """End the connection after an error of the peer, a hook or flowguard."""
        raise NotImplementedError

    def end(self, reason: ReasonCode | None, now_s: float, why: str = "") -> None:
        """End the connection; a 5.0 client gets the reason, if any. Safe to call twice."""
        raise NotImplementedError


class Sender:
    """Interface of `Outbound` for sending backlogs in turn."""

    __slots__ = ()

    def take_turn(self, now_s: float) -> None:
        """Go on with the backlog within the capacity of the client."""
        raise NotImplementedError
