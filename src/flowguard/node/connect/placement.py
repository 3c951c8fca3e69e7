"""Placement: the worker that owns the session of a client, if the broker has several."""

from typing import Protocol, final

from flowguard.codec.packets import Connect
from flowguard.session.connection import ServerConnection


class Placement(Protocol):
    def owns(self, client_id: str) -> bool:
        """True if this worker owns the session of the client."""

    def hand_over(self, connection: ServerConnection, packet: Connect, now_s: float) -> None:
        """Pass the connection, which has sent CONNECT, to the worker that owns its session."""


@final
class OneWorker:
    """The placement of a broker with one worker, which owns all sessions."""

    __slots__ = ()

    def owns(self, client_id: str) -> bool:
        return True

    def hand_over(self, connection: ServerConnection, packet: Connect, now_s: float) -> None:
        raise AssertionError("there is no other worker")
