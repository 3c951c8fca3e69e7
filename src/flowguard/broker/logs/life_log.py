"""The begin and end of clients' connections, and granted filters: events of level debug."""

from typing import Final, final

from flowguard.broker.logs.error_log import BoundedLog, address_of, printable
from flowguard.broker.sockets.link import Link
from flowguard.node.node import Node
from flowguard.session.connection import ServerConnection
from flowguard.session.conversation import Conversation
from flowguard.session.lives import End
from flowguard.types import PROTOCOLS

SHOWN_MAX: Final = 100
"""Lines of each event, or of each reason of an end, that are shown per interval."""


@final
class LifeLog:
    """Logs what a node reports of its clients; `logs` are to be run."""

    def __init__(self, node: Node) -> None:
        self._subscribed = BoundedLog("subscribed", "debug", "subscriptions", SHOWN_MAX)
        self._connected = BoundedLog("connected", "debug", "clients", SHOWN_MAX)
        self._disconnected = BoundedLog("disconnected", "debug", "clients", SHOWN_MAX)
        self.logs: Final = (self._subscribed, self._connected, self._disconnected)
        node.state.rejections.on_subscribed = self.subscribed
        node.counters.lives.on_connected = self.connected
        node.counters.lives.on_ended = self.ended

    def subscribed(self, client_id: str, user: str, filter: str, qos: int) -> None:
        if self._subscribed.may_show("filters"):
            named = {"user_name": printable(user)} if user else {}
            self._subscribed.show(
                client_id=printable(client_id), **named, topic=printable(filter), qos=qos
            )

    def connected(self, connection: Conversation, present: bool) -> None:
        assert isinstance(connection, ServerConnection)
        if not self._connected.may_show("clients"):
            return
        link, packet = connection.transport, connection.connect_packet
        assert packet is not None
        user = packet.username if connection.principal is None else connection.principal.user
        doorway = link.doorway if isinstance(link, Link) else None
        self._connected.show(
            client_id=printable(connection.client_id or ""),
            **({"user_name": printable(user)} if user else {}),
            address=address_of(connection),
            listener="" if doorway is None else str(doorway.address),
            version=PROTOCOLS[packet.version],
            clean=packet.clean_start,
            keep_alive_s=round(connection.keep_alive_s / 1.5),
            session_present=present,
        )

    def ended(self, connection: Conversation, client_id: str, end: End) -> None:
        assert isinstance(connection, ServerConnection)
        if self._disconnected.may_show(end.reason):
            self._disconnected.show(
                client_id=printable(client_id),
                address=address_of(connection),
                reason=end.reason,
                by=end.by,
                connected_s=round(end.lasted_s, 3),
                **({"why": end.why} if end.why else {}),
            )
