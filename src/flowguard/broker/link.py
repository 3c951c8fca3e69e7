"""A socket and the conversation it carries."""

from socket import socket
from typing import final

from flowguard.session.connection import ServerConnection


@final
class Link:
    """What the reactor knows of one connection."""

    __slots__ = ("connection", "fd", "interest", "lingers", "peer_closed", "sock")

    def __init__(self, sock: socket, interest: int) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.interest = interest
        self.lingers = False
        """True once the conversation is over and only a last word may still be on its way."""
        self.peer_closed = False
        self.connection: ServerConnection
