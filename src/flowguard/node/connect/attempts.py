"""Attempts: connections that are no clients yet, and how they end.

Without a recorder nothing is remembered.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from flowguard.flow.load.histogram import Histogram

if TYPE_CHECKING:
    from flowguard.session.connection import ServerConnection

CONNECTED: Final = "connected"
REFUSED: Final = "refused"
"""The broker sent CONNACK with an error."""
CLOSED: Final = "closed"
"""Either side closed the connection before CONNACK."""

Tell = Callable[["ServerConnection", float, float, str], None]
"""Takes the connection of an attempt that has ended, its start, end and outcome; the times are in
seconds."""


@final
class Attempts:
    def __init__(self) -> None:
        self.tell: Tell | None = None
        """The recorder, which is called once for each attempt, or None."""
        self.service = Histogram()
        """Times from the claim of a client id to its CONNACK, seconds."""
        self._since_s: dict[ServerConnection, float] = {}

    def began(self, connection: "ServerConnection", since_s: float) -> None:
        """Note an accepted socket; its client has waited since `since_s`."""
        if self.tell is not None:
            self._since_s[connection] = since_s

    def handed_over(self, connection: "ServerConnection") -> None:
        """Another worker continues the attempt, and reports its end."""
        self._since_s.pop(connection, None)

    def ended(self, connection: "ServerConnection", outcome: str, now_s: float) -> None:
        """Report an attempt that became a client or failed.

        Attempts that were reported before, or began without a recorder, are ignored.
        """
        if self._since_s:
            since_s = self._since_s.pop(connection, None)
            if since_s is not None and self.tell is not None:
                self.tell(connection, since_s, now_s, outcome)
