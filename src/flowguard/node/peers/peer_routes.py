"""PeerRoutes: the peers that get messages of a topic.

Each shared subscription is served by one node: by the publisher's if it has a member, else by one
peer that has. All nodes with sessions that match get the same bytes, which name the serving node.
"""

from typing import final

from flowguard.cluster.members import owner_among
from flowguard.node.peers.messages import NO_SHARES, encode_shares
from flowguard.node.peers.peer import Peer
from flowguard.routing import SharedGroup, SubscriptionTable, parse_shared
from flowguard.session.session import Session
from flowguard.types import SubscriptionOptions

PeerGroup = SharedGroup[Peer, None]


@final
class PeerRoutes:
    """The filters of all peers; empty if there is no peer."""

    def __init__(self) -> None:
        self.name = ""
        """The name of this node."""
        self.table: SubscriptionTable[Peer, None] = SubscriptionTable()
        self.unknown: list[Peer] = []
        """Peers whose filters are not known yet: they get every message."""

    def find(
        self, topic: str, groups: list[SharedGroup[Session, SubscriptionOptions]]
    ) -> tuple[tuple[Peer, ...], bytes]:
        """Return the peers that get messages of a topic, and the nodes of shared subscriptions.

        `groups` are those that match at this node.
        """
        if topic.startswith("$SYS/") or not (self.unknown or len(self.table)):
            return (), NO_SHARES
        routes = self.table.match(topic)
        peers = dict.fromkeys([peer for peer, _ in routes.plain])
        shares = {group.share: self.name for group in groups}
        for group in routes.groups:
            if group.share not in shares:
                peer = _server_of(group)
                shares[group.share] = peer.name
                peers[peer] = None
        peers.update(dict.fromkeys(self.unknown))
        if not peers:
            return (), NO_SHARES
        return tuple(peers), encode_shares(shares)

    def server_of(self, share: str) -> Peer | None:
        """Return the peer that serves a shared subscription, or None if no peer has a member."""
        key = parse_shared(share)
        group = None if key is None else self.table.group(*key)
        return None if group is None else _server_of(group)


def _server_of(group: PeerGroup) -> Peer:
    peers = {peer.name: peer for peer, _ in group.members()}
    return peers[owner_among(peers, group.share)]
