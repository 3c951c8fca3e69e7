"""PeerLinks: the host of a node's links, which routes and commits what arrives on them."""

from typing import Final, final

from flowguard.cluster import (
    Cluster,
    IncomingStream,
    LinkMessage,
    Members,
    Mesh,
    OutgoingStream,
    OwedAddress,
    PressureRecord,
)
from flowguard.cluster.links import Then
from flowguard.config import PACKET_SIZE_MAX
from flowguard.node.journal import Journal
from flowguard.node.peers.inbox import Inbox
from flowguard.node.peers.peer import Peer
from flowguard.node.peers.retained import RetainedSync
from flowguard.node.publish.publishing import Router
from flowguard.records import Settle
from flowguard.routing import parse_shared
from flowguard.session.node_state import NodeState

MESSAGES_MAX: Final = 10_000
"""Maximum number of messages that wait for one peer."""
QUEUE_SHARE: Final = 8
"""All links together may hold this part of the memory for queues."""
FRAME_BYTES_MAX: Final = PACKET_SIZE_MAX + 256 * 1024


@final
class Announcer:
    """Sends the load of this node to all peers, from when the links exist."""

    def __init__(self) -> None:
        self.mesh: Mesh | None = None

    def send(self, record: PressureRecord) -> None:
        if self.mesh is not None:
            self.mesh.send_pressure(record)


def join_cluster(
    node: NodeState,
    journal: Journal,
    router: Router,
    members: Members | None,
    cluster: Cluster | None,
    announcer: Announcer,
) -> None:
    """Make the links of a node, if it belongs to a cluster."""
    if members is not None and cluster is not None:
        assert not router.lane.is_separate, "links and a store of applications"
        announcer.mesh = PeerLinks(node, journal, router, members, cluster).mesh


@final
class PeerLinks:
    def __init__(
        self,
        node: NodeState,
        journal: Journal,
        router: Router,
        members: Members,
        cluster: Cluster,
    ) -> None:
        self._node = node
        self._journal = journal
        self._plans = router.plans
        self._cluster = cluster
        self._peers = router.peers
        peers = router.peers.by_name
        self._retained = RetainedSync(
            node.chores, router.retained, router.retaining.apply, members, peers
        )
        self._inboxes: dict[str, Inbox] = {}
        bytes_max = node.bounds.queue_bytes // QUEUE_SHARE // max(1, len(members.peers))
        for name in members.peers:
            outgoing = OutgoingStream(members.incarnation, MESSAGES_MAX, bytes_max)
            peer = peers[name] = Peer(name, members.incarnation, outgoing, IncomingStream())
            self._inboxes[name] = Inbox(node, journal, router, self._retained, peer)
        self.mesh = Mesh(
            members,
            self,
            {name: peer.outgoing for name, peer in peers.items()},
            {name: peer.incoming for name, peer in peers.items()},
            FRAME_BYTES_MAX,
        )
        self._peers.join(self.mesh, cluster, self._retained)

    def opened(self, peer: str) -> None:
        self._retained.opened(self._peers.by_name[peer])

    def take(
        self,
        peer: str,
        messages: list[LinkMessage],
        mark: OwedAddress,
        then: Then,
        now_s: float,
    ) -> None:
        self._inboxes[peer].take(messages, then, now_s)

    def take_unnumbered(self, peer: str, messages: tuple[bytes, ...], now_s: float) -> None:
        for data in messages:
            self._inboxes[peer].deliver(data, now_s)

    def rejection(self) -> str:
        if self._node.read_only:
            return "the disk is full"
        return "the journal is full" if self._journal.is_full else ""

    def filters_changed(self, peer: str, added: list[str], removed: list[str]) -> None:
        sink, plans = self._peers.by_name[peer], self._plans
        routes = plans.peer_routes
        for filter in added:
            routes.table.subscribe(filter, sink, None)
            plans.changed(_topic_filter(filter))
        for filter in removed:
            routes.table.unsubscribe(filter, sink)
            plans.changed(_topic_filter(filter))
        if not sink.is_known:
            sink.is_known = True
            routes.unknown.remove(sink)
            plans.changed("#")

    def filters_confirmed(self, now_s: float) -> None:
        self._peers.filters_confirmed(now_s)

    def delivered(self, peer: str, address: OwedAddress) -> None:
        self._journal.note(Settle(self._peers.by_name[peer].key, address[1]))

    def pressure_received(self, record: PressureRecord, now_s: float) -> None:
        self._cluster.merge(record, now_s)

    def answered(self, peer: str) -> None:
        self._retained.go_on(self._peers.by_name[peer])
        if self._peers.ordered_answers.blocked:
            self._peers.ordered_answers.go_on()


def _topic_filter(filter: str) -> str:
    shared = parse_shared(filter) if filter.startswith("$share/") else None
    return filter if shared is None else shared[1]
