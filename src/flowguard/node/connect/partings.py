"""Partings: sockets of clients that have sent DISCONNECT, open until its effect is durable.

DISCONNECT has no answer; the client knows that it is done when its connection closes. A DISCONNECT
may remove a will from the store, end the session there or change its expiry. A crash before the
commit would undo this, so the socket closes after the commit, like an acknowledgement. It waits no
longer than a CONNECT, so that an unavailable store does not keep sockets open.
"""

from typing import final

from flowguard.config import FlowSettings
from flowguard.session.connection import ServerConnection


@final
class Partings:
    """One per node; every call costs O(1), besides the connections that `tick` ends."""

    __slots__ = ("_patience_s", "_until_s")

    def __init__(self, flow: FlowSettings) -> None:
        self._patience_s = flow.connect_patience_s
        self._until_s: dict[ServerConnection, float] = {}
        """Time until which each connection waits at most, in this order."""

    def __len__(self) -> int:
        return len(self._until_s)

    def begin(self, connection: ServerConnection, now_s: float) -> None:
        """Keep the socket of a client that has sent DISCONNECT until `durable` or a timeout."""
        self._until_s[connection] = now_s + self._patience_s

    def durable(self, connection: ServerConnection, now_s: float) -> None:
        """Close the socket after the commit, unless it is closed already."""
        if self._until_s.pop(connection, None) is not None:
            connection.part()

    def tick(self, now_s: float) -> None:
        """Close the sockets that have waited too long."""
        until_s = self._until_s
        while until_s:
            connection = next(iter(until_s))
            if until_s[connection] > now_s:
                return
            self.durable(connection, now_s)
