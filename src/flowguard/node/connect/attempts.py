"""Attempts: connections that are no clients yet, for whoever records how they end.

While nobody does, nothing is remembered.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from flowguard.session.connection import ServerConnection

CONNECTED: Final = "connected"
REFUSED: Final = "refused"
"""CONNACK with an error."""
CLOSED: Final = "closed"
"""Without CONNACK, by either side."""

Tell = Callable[[float, float, str], None]
"""Takes an attempt that has ended: since when, until when, how."""


@final
class Attempts:
    def __init__(self) -> None:
        self.tell: Tell | None = None
        """Who records; is told of each once. None: nobody."""
        self._since_s: dict[ServerConnection, float] = {}

    def began(self, connection: "ServerConnection", since_s: float) -> None:
        """A socket was accepted that was there since then."""
        if self.tell is not None:
            self._since_s[connection] = since_s

    def handed_over(self, connection: "ServerConnection") -> None:
        """Another worker continues the attempt, and reports its end."""
        self._since_s.pop(connection, None)

    def ended(self, connection: "ServerConnection", outcome: str, now_s: float) -> None:
        """It became a client, or never will; what was told of, or began unseen, is not."""
        if self._since_s:
            since_s = self._since_s.pop(connection, None)
            if since_s is not None and self.tell is not None:
                self.tell(since_s, now_s, outcome)
