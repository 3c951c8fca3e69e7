"""ProofTimes: a connection ends when the credential of its client expires."""

from functools import partial
from typing import final

from flowguard.node.upkeep.timers import Timer, Timers
from flowguard.session.connection import ServerConnection
from flowguard.types import ReasonCode


@final
class ProofTimes:
    """A timer for each connection that has a credential with an expiry time."""

    __slots__ = ("_running",)

    def __init__(self) -> None:
        self._running: dict[ServerConnection, Timer] = {}

    def watch(self, connection: ServerConnection, timers: Timers) -> None:
        """Start the timer after CONNACK or a re-authentication."""
        self.forget(connection, timers)
        principal = connection.principal
        if principal is not None and principal.expires_at_s is not None:
            expired = partial(self._expired, connection)
            self._running[connection] = timers.at(principal.expires_at_s, expired, "token expiry")

    def forget(self, connection: ServerConnection, timers: Timers) -> None:
        timer = self._running.pop(connection, None)
        if timer is not None:
            timers.cancel(timer)

    def _expired(self, connection: ServerConnection, now_s: float) -> None:
        # [MQTT 5.0, 3.14.2.1] 0xA0: the authorized connect time is exceeded.
        connection.end(ReasonCode.MAXIMUM_CONNECT_TIME, now_s, "the token has expired")
