"""A message of QoS 1 or 2 on its way to peers, or from one."""

from dataclasses import dataclass
from typing import final

from flowguard.cluster.links import Then
from flowguard.node.peers.peer import Peer
from flowguard.records import StoreOp


@dataclass(slots=True)
class RelayPart:
    peer: Peer
    data: bytes
    position: int
    """The position in what is owed to the peer, or 0."""


@final
class Relay:
    """Before the commit of this node, QoS 1 is forwarded. After it, what is owed is."""

    __slots__ = ("is_owed", "parts")

    def __init__(self, parts: list[RelayPart], *, is_owed: bool) -> None:
        self.parts = parts
        self.is_owed = is_owed

    @property
    def commits_count(self) -> int:
        """Number of commits of peers that the publisher waits for."""
        return 0 if self.is_owed else len(self.parts)

    def forward(self, then: Then) -> None:
        """Forward QoS 1; `then` is called after the commit of each peer."""
        if not self.is_owed:
            for part in self.parts:
                part.peer.outgoing.put(part.data, then)

    def committed(self) -> None:
        """Forward what is owed: the commit of this node has it."""
        if self.is_owed:
            for part in self.parts:
                peer = part.peer
                peer.outgoing.put_owed((peer.epoch, part.position), part.data)


@dataclass(slots=True)
class PeerSource:
    """A message that a peer forwards, besides the message itself."""

    publisher: str
    """Client id of its publisher."""
    ops: list[StoreOp]
    """Operations that are committed with it."""
    relay: Relay | None
    """The way to shared subscriptions that have left this node."""
    queued: Then
    """Called when the message has its place among all others."""
