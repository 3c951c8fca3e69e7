"""Incoming: a PUBLISH from decoding to its answer, and what it counts in its client's window."""

from typing import final

from flowguard.session.inbound.packets import Inbound
from flowguard.types import Publish


@final
class Incoming:
    """A message and the connection that it came on, or None if it is the node's own message."""

    __slots__ = ("cost", "inbound", "message", "since_s", "size_bytes")

    def __init__(
        self,
        inbound: Inbound | None,
        message: Publish,
        since_s: float,
        cost: int = 1,
        size_bytes: int | None = None,
    ) -> None:
        """`size_bytes` is the size of the payload if it is None."""
        self.inbound = inbound
        self.message = message
        self.since_s = since_s
        """Time when the message was decoded."""
        self.cost = cost
        """Count in the window of its client, cost units."""
        self.size_bytes = len(message.payload) if size_bytes is None else size_bytes
        """Count in the window of its client, bytes."""

    @property
    def publisher(self) -> str:
        """Client id of the publisher, or "" for the node."""
        return "" if self.inbound is None else self.inbound.session.client_id

    def settle(self) -> None:
        """Remove it from its client's window."""
        if self.inbound is not None:
            self.inbound.settle(self.cost, self.size_bytes)
