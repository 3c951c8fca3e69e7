"""Clients of the simulated nodes: they repeat what is not acknowledged after each reconnect."""

from collections import deque
from typing import TYPE_CHECKING

from tests.flowguard.cluster.ledger import Ledger, Publication

if TYPE_CHECKING:
    from tests.flowguard.cluster.node import Node

Packet = tuple[str, int, bytes]
"""Kind, packet id or 0, and data: a message, or a filter."""
OUTSTANDING_MAX = 8


class ClientConnection:
    """One connection of a client; it ends with its node, or because the client drops it."""

    def __init__(self, node: "Node") -> None:
        self.node = node
        self.client = ""
        self.to_node = deque[Packet]()
        self.to_client = deque[Packet]()


class Publisher:
    """A client with a durable session that publishes numbered messages."""

    def __init__(self, name: str, owner: str, ledger: Ledger) -> None:
        self.name = name
        self.owner = owner
        self.connection: ClientConnection | None = None
        self.outstanding: dict[int, Publication] = {}
        """By packet id, oldest first; acknowledged ones wait for their PUBCOMP."""
        self._ledger = ledger
        self._number = 0

    def publish(self, topic: str, qos: int) -> None:
        if len(self.outstanding) == OUTSTANDING_MAX:
            return
        self._number += 1
        packet_id = next(each for each in range(1, 99) if each not in self.outstanding)
        publication = self._ledger.published(self.name, self._number, topic, qos)
        self.outstanding[packet_id] = publication
        if self.connection is not None:
            self._send(self.connection, packet_id, publication)

    def connect(self, connection: ClientConnection) -> None:
        self.connection = connection
        connection.client = self.name
        for packet_id, publication in self.outstanding.items():
            self._send(connection, packet_id, publication)

    def receive(self, packet: Packet) -> None:
        kind, packet_id, _ = packet
        publication = self.outstanding[packet_id]
        if kind == "puback":
            del self.outstanding[packet_id]
            self._ledger.acknowledged(publication)
        elif kind == "pubrec":
            if not publication.is_acknowledged:
                self._ledger.acknowledged(publication)
            assert self.connection is not None
            self._send(self.connection, packet_id, publication)
        else:
            assert kind == "pubcomp"
            del self.outstanding[packet_id]

    def _send(self, connection: ClientConnection, packet_id: int, publication: Publication) -> None:
        kind = "pubrel" if publication.is_acknowledged else f"publish{publication.qos}"
        connection.to_node.append((kind, packet_id, publication.data))


class Subscriber:
    """A client with a durable session that subscribes and unsubscribes."""

    def __init__(self, name: str, owner: str, ledger: Ledger) -> None:
        self.name = name
        self.owner = owner
        self.connection: ClientConnection | None = None
        self.asked: Packet | None = None
        """The SUBSCRIBE or UNSUBSCRIBE that is not acknowledged."""
        self._ledger = ledger
        ledger.subscriptions[name] = set()

    def ask(self, kind: str, filter: str) -> None:
        if self.asked is not None:
            return
        if kind == "unsubscribe":
            self._ledger.unsubscribing(self.name, filter)
        self.asked = (kind, 0, filter.encode())
        if self.connection is not None:
            self.connection.to_node.append(self.asked)

    def connect(self, connection: ClientConnection) -> None:
        self.connection = connection
        connection.client = self.name
        if self.asked is not None:
            connection.to_node.append(self.asked)

    def receive(self, packet: Packet) -> None:
        assert self.asked is not None
        if packet[0] == "suback":
            self._ledger.counts["SUBACKs"] += 1
            self._ledger.subscriptions[self.name].add(packet[2].decode())
        self.asked = None
