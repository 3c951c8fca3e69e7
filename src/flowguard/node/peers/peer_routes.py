"""PeerRoutes: the peers that get messages of a topic.

Each shared subscription is served by one node: by the publisher's if it has a member, else by one
peer that has. All nodes with sessions that match get the same bytes, which name the serving node.
A node serves no other shared subscription with a message.

While filters of peers are not known, any of them may have members. One of them gets all shared
subscriptions that no known node has: the first one by name. It serves those that it has, and passes
the message on to peers that have others, then to the next peer whose filters it does not know.
Names grow on this way, so it ends.
"""

from typing import final

from flowguard.cluster.members import owner_among
from flowguard.node.peers.messages import NO_SHARES, OTHER_SHARES, encode_shares
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
        """Peers whose filters are not known yet, by name: they get every message."""

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
        if self.unknown:
            shares[OTHER_SHARES] = self.unknown[0].name
        return tuple(peers), encode_shares(shares)

    def passed_on(
        self, topic: str, shares: dict[str, str], own: set[str]
    ) -> list[tuple[Peer, dict[str, str]]]:
        """Return the peers that a message must be passed on to, each with its `shares`.

        They serve the shared subscriptions that the message leaves to this node, besides `own`.
        """
        found: list[tuple[Peer, dict[str, str]]] = []
        for share, name in shares.items():
            if share != OTHER_SHARES and name == self.name and share not in own:
                server = self._server_of(share)
                if server is not None:
                    found.append((server, {share: server.name}))
        if shares.get(OTHER_SHARES) != self.name:
            return found
        others = dict.fromkeys([*shares, *own], self.name)  # Other nodes do not serve these.
        for group in self.table.match(topic).groups:
            if group.share not in others:
                others[group.share] = self.name
                server = _server_of(group)
                found.append((server, {group.share: server.name}))
        following = [peer for peer in self.unknown if peer.name > self.name]
        if following:
            others[OTHER_SHARES] = following[0].name
            found.append((following[0], others))
        return found

    def _server_of(self, share: str) -> Peer | None:
        """Return the peer that serves a shared subscription, or None if no peer has a member."""
        key = parse_shared(share)
        group = None if key is None else self.table.group(*key)
        return None if group is None else _server_of(group)


def _server_of(group: PeerGroup) -> Peer:
    peers = {peer.name: peer for peer, _ in group.members()}
    return peers[owner_among(peers, group.share)]
