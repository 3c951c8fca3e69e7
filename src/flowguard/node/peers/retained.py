"""RetainedSync: every node has all retained messages, and all nodes have the same.

Each topic has an owner, by the hash that also gives sessions an owner. The node of the publisher
keeps a retained message at once, and forwards it to the owner. The owner keeps it, and sends it to
all peers: links keep its order, so all nodes end with the owner's last one. A node reads what other
nodes keep one way of a link later.

A peer that is down gets nothing. With its next link, or if the link was full, it gets all retained
messages of the topics that this node owns. It drops those that are missing. A node that has started
sends no retained messages to subscribers before all peers that may be alive have done this.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, final

from flowguard.cluster import Members
from flowguard.cluster.links import nothing_waits
from flowguard.node.peers.messages import (
    APPLY,
    BEGINS,
    ENDS,
    NO_SHARES,
    ORDER,
    encode_forwarded,
    encode_mark,
)
from flowguard.node.peers.peer import Peer
from flowguard.records import NEVER_S
from flowguard.routing import RetainedMessages
from flowguard.session.chores import Chores
from flowguard.types import Publish

TOPICS_PIECE: Final = 500
"""Number of topics that are looked at in one piece: up to three milliseconds."""


@final
class RetainedSync:
    def __init__(
        self,
        chores: Chores,
        retained: RetainedMessages,
        apply: Callable[[Publish, float], bool],
        members: Members,
        peers: dict[str, Peer],
    ) -> None:
        """`apply` keeps a retained message, or drops that of its topic, at this node alone."""
        self._chores = chores
        self._retained = retained
        self._apply = apply
        self._members = members
        self._peers = peers
        self._awaited = set(members.peers)
        """Peers that have not sent all retained messages of their topics since the start."""

    @property
    def is_complete(self) -> bool:
        """True if all peers that may be alive have sent the retained messages of their topics."""
        return not self._awaited or self._awaited.isdisjoint(self._members.living())

    def owner_of(self, topic: str) -> Peer | None:
        """Return the peer that orders the retained messages of a topic, or None for this node."""
        return self._peers.get(self._members.owner_of(topic))

    def changed(self, message: Publish, expires_at_s: float, *, is_kept: bool) -> None:
        """This node has kept a retained message, or dropped that of its topic."""
        owner = self.owner_of(message.topic)
        if owner is None:
            change = message if is_kept else Publish(message.topic, b"", retain=True)
            data = encode_forwarded(change, APPLY, expires_at_s, "", NO_SHARES)
            for peer in self._peers.values():
                self._send(peer, data)
        elif not message.qos:
            if owner.outgoing.has_capacity():
                self._order(owner, message, expires_at_s)
            else:
                owner.unordered[message.topic] = None

    def opened(self, peer: Peer) -> None:
        incarnation = self._members.peers[peer.name].incarnation
        if peer.met_incarnation != incarnation:
            peer.met_incarnation = incarnation
            peer.is_behind = True
            peer.topics = None
        self._send_some(peer)

    def begins(self, peer: Peer) -> None:
        peer.seen = set()
        peer.unseen = None

    def applied(self, peer: Peer, message: Publish, expires_at_s: float) -> None:
        """A peer has sent a retained message of one of its topics."""
        if peer.seen is not None:
            peer.seen.add(message.topic)
        self._apply(message, expires_at_s)

    def ends(self, peer: Peer) -> None:
        if peer.seen is not None:
            peer.unseen = self._retained.topics()
            self._chores.add(partial(self._drop_unseen, peer, peer.unseen))

    def go_on(self, peer: Peer) -> None:
        """Every 100 ms, and when a peer has answered: send it a piece of what is left."""
        if peer.unordered:
            self._order_some(peer)
        self._send_some(peer)

    def _order_some(self, owner: Peer) -> None:
        """Send the owner what it did not get because its link was full."""
        while owner.unordered and owner.outgoing.has_capacity():
            topic, _ = owner.unordered.popitem()
            entry = self._retained.get(topic)
            if entry is None:
                self._order(owner, Publish(topic, b"", retain=True), NEVER_S)
            else:
                self._order(owner, entry.publish, entry.expires_at_s)

    def _order(self, owner: Peer, message: Publish, expires_at_s: float) -> None:
        data = encode_forwarded(message, ORDER, expires_at_s, "", NO_SHARES)
        owner.outgoing.put(data, nothing_waits)

    def _drop_unseen(self, peer: Peer, unseen: list[str], now_s: float) -> bool:
        """Drop a piece of the peer's retained messages that the peer does not have.

        Return True if there is more.
        """
        if peer.unseen is not unseen or peer.seen is None:
            return False  # The peer has begun again.
        for _ in range(min(TOPICS_PIECE, len(unseen))):
            topic = unseen.pop()
            is_of_peer = self._members.owner_of(topic) == peer.name
            if is_of_peer and topic not in peer.seen and not topic.startswith("$SYS/"):
                self._apply(Publish(topic, b"", retain=True), NEVER_S)
        if not unseen:
            peer.seen = peer.unseen = None
            self._awaited.discard(peer.name)
        return len(unseen) > 0

    def _send_some(self, peer: Peer) -> None:
        if not (peer.outgoing.is_open and peer.outgoing.has_capacity()):
            return
        retained = self._retained
        if peer.is_behind:
            peer.is_behind = False
            peer.topics = retained.topics()
            peer.outgoing.put(encode_mark(BEGINS), nothing_waits)
        topics = peer.topics
        if topics is None:
            return
        for _ in range(min(TOPICS_PIECE, len(topics))):
            if not peer.outgoing.has_capacity():
                return
            topic = topics.pop()
            entry = retained.get(topic)
            if entry is not None and self.is_own(topic):
                data = encode_forwarded(entry.publish, APPLY, entry.expires_at_s, "", NO_SHARES)
                peer.outgoing.put(data, nothing_waits)
        if not topics:
            peer.topics = None
            peer.outgoing.put(encode_mark(ENDS), nothing_waits)

    def is_own(self, topic: str) -> bool:
        """True if this node orders the retained messages of a topic."""
        return not topic.startswith("$SYS/") and self.owner_of(topic) is None

    def _send(self, peer: Peer, data: bytes) -> None:
        outgoing = peer.outgoing
        if peer.is_behind:
            return
        if outgoing.is_open and outgoing.has_capacity():
            outgoing.put(data, nothing_waits)
        else:
            peer.is_behind = True
