"""Partings: clients that have said DISCONNECT, and whose sockets stay open until it is durable.

DISCONNECT has no answer; what tells a client that it is done is that its connection closes. Where
one takes a will out of the store, ends the session there or changes when it ends, a crash before
the commit would undo it: so the socket is closed after that, like an acknowledgement. It waits for
no longer than a CONNECT would: a store that takes nothing keeps no sockets.
"""

from typing import final

from flowguard.config import FlowSettings
from flowguard.session.connection import ServerConnection


@final
class Partings:
    """One per node; every call costs O(1), but for who has waited too long."""

    __slots__ = ("_patience_s", "_until_s")

    def __init__(self, flow: FlowSettings) -> None:
        self._patience_s = flow.connect_patience_s
        self._until_s: dict[ServerConnection, float] = {}
        """Until when each waits at most, in this order."""

    def __len__(self) -> int:
        return len(self._until_s)

    def begin(self, connection: ServerConnection, now_s: float) -> None:
        """Its client has said DISCONNECT; `durable` follows, unless that takes too long."""
        self._until_s[connection] = now_s + self._patience_s

    def durable(self, connection: ServerConnection, now_s: float) -> None:
        """The store has it: the socket may be closed, if it is not already."""
        if self._until_s.pop(connection, None) is not None:
            connection.part()

    def tick(self, now_s: float) -> None:
        """Let go who has waited too long."""
        until_s = self._until_s
        while until_s:
            connection = next(iter(until_s))
            if until_s[connection] > now_s:
                return
            self.durable(connection, now_s)
