"""Peers: the other nodes of a cluster, as routing, subscribing and the loop of a node know them.

A node without a cluster has this object as well. It has no peer then, and does nothing.
"""

from collections import deque
from typing import final

from flowguard.cluster import Cluster, Mesh
from flowguard.flow import Reason
from flowguard.flow.windows.window import UNBOUNDED
from flowguard.node.applications.log_readers import expiry_of
from flowguard.node.journal import Continuation, Journal
from flowguard.node.peers.messages import (
    DELIVER,
    ORDER,
    SHARED_ONLY,
    ForwardedMessage,
    encode_forwarded,
    encode_shares,
)
from flowguard.node.peers.ordered_answers import OrderedAnswers, Pending
from flowguard.node.peers.peer import Peer
from flowguard.node.peers.peer_routes import PeerRoutes
from flowguard.node.peers.relay import Relay, RelayPart
from flowguard.node.peers.retained import RetainedSync
from flowguard.node.publish.plans import Plan
from flowguard.records import SessionRecord, SinkKind, StoreOp, sink_of
from flowguard.session.inbound.packets import Inbound
from flowguard.session.node_state import NodeState
from flowguard.stores import Store
from flowguard.types import Publish


@final
class Peers:
    def __init__(self, node: NodeState, journal: Journal, routes: PeerRoutes) -> None:
        self._node = node
        self._journal = journal
        self._routes = routes
        self.by_name: dict[str, Peer] = {}
        self.ordered_answers = OrderedAnswers(journal)
        self.mesh: Mesh | None = None
        self._cluster: Cluster | None = None
        self._retained: RetainedSync | None = None
        self._records: dict[str, SessionRecord] = {}
        """Rows of peers, between `stored` and `recovered`."""
        self._subacks: deque[tuple[int, Continuation]] = deque()
        """Answers that wait until peers have confirmed a change of filters."""
        self._dropped_count = 0

    def join(self, mesh: Mesh, cluster: Cluster, retained: RetainedSync) -> None:
        """Belong to a cluster, from the start on. `by_name` has all peers."""
        self.mesh = mesh
        self._cluster = cluster
        self._retained = retained
        self._routes.name = mesh.members.name
        self._routes.unknown = [self.by_name[name] for name in sorted(self.by_name)]

    @property
    def name(self) -> str:
        return "" if self.mesh is None else self.mesh.members.name

    @property
    def held_bytes(self) -> int:
        """Memory of the messages that wait for peers."""
        return sum(
            peer.outgoing.bytes_count + peer.outgoing.unnumbered_bytes
            for peer in self.by_name.values()
        )

    def waiting(self) -> dict[str, int]:
        """Return the number of messages for each peer that are not confirmed."""
        return {name: peer.outgoing.messages_count for name, peer in self.by_name.items()}

    def down(self) -> dict[str, int]:
        """Return 1 for each peer to which there is no link, and 0 for the others."""
        linked = set() if self.mesh is None else self.mesh.linked()
        return {name: int(name not in linked) for name in self.by_name}

    # --- start -----------------------------------------------------------------------------------

    def stored(self, record: SessionRecord) -> bool:
        kind, name = sink_of(record.client_id)
        if kind is SinkKind.PEER:
            self._records[name] = record
        return kind is SinkKind.PEER

    def recovered(self, store: Store) -> None:
        """All records are read: send again what is owed."""
        for name, peer in self.by_name.items():
            record = self._records.get(name)
            if record is None:
                self._journal.note(peer.put(peer.incoming.mark))
            else:
                peer.restore(record)
                peer.recover(store)
        self._records.clear()

    # --- publishing ------------------------------------------------------------------------------

    def has_capacity(self, plan: Plan, inbound: Inbound, message: Publish) -> bool:
        """Return False if a client must wait with its next message until a link has capacity."""
        if not message.qos:
            return True
        for peer in plan.peers:
            if not peer.outgoing.has_capacity():
                self.ordered_answers.block(inbound)
                return False
        return True

    def window(self, plan: Plan) -> int:
        """Return the cost units that a client may have in process with a message of a plan.

        `UNBOUNDED` if no peer of the plan has a smaller window than this node.
        """
        return min([peer.window for peer in plan.peers], default=UNBOUNDED)

    def relay(
        self, plan: Plan, message: Publish, publisher: str, ops: list[StoreOp], now_s: float
    ) -> Relay | None:
        """Return the way of a client's message of QoS 1 or 2 to peers, or None if there is none.

        If it is owed, `ops` get what must be committed first.
        """
        is_owed = message.qos == 2
        return self._relay(plan.peers, plan.shares, message, publisher, ops, now_s, is_owed=is_owed)

    def _relay(
        self,
        peers: tuple[Peer, ...],
        shares: bytes,
        message: Publish,
        publisher: str,
        ops: list[StoreOp],
        now_s: float,
        *,
        is_owed: bool,
    ) -> Relay | None:
        owner = self._owner_of(message)
        if not peers and owner is None:
            return None
        expires_at_s = expiry_of(message, now_s)
        parts: list[RelayPart] = []
        data = encode_forwarded(message, DELIVER, expires_at_s, publisher, shares)
        for peer in peers:
            if peer is not owner:
                parts.append(RelayPart(peer, data, 0))
        if owner is not None:
            flags = ORDER | DELIVER if owner in peers else ORDER
            order = encode_forwarded(message, flags, expires_at_s, publisher, shares)
            parts.append(RelayPart(owner, order, 0))
        for part in parts:
            if is_owed:
                append = part.peer.owe(part.data)
                part.position = append.pos
                ops.append(append)
        return Relay(parts, is_owed=is_owed)

    def relay_own(
        self, plan: Plan, message: Publish, ops: list[StoreOp], now_s: float
    ) -> Relay | None:
        """As `relay`, for a message of the node itself, with which no client can wait.

        It is owed at QoS 1 as well, because the reason for it ends with the commit. A peer whose
        link is full does not get it.
        """
        if not message.qos:
            self.send_qos_0(plan, message, "", now_s)
            return None
        peers = tuple([peer for peer in plan.peers if peer.outgoing.has_capacity()])
        self._node.counters.drop(Reason.LINK_FULL, len(plan.peers) - len(peers))
        return self._relay(peers, plan.shares, message, "", ops, now_s, is_owed=True)

    def pass_on(self, forwarded: ForwardedMessage, plan: Plan, ops: list[StoreOp]) -> Relay | None:
        """Return the way of a message to shared subscriptions that are left to this node.

        This node has no member of them: the last one has left meanwhile, or the publisher's node
        did not know the nodes of the members.
        """
        parts: list[RelayPart] = []
        topic, own = forwarded.message.topic, {group.share for group in plan.shared}
        for server, shares in self._routes.passed_on(topic, forwarded.shares, own):
            data = encode_forwarded(
                forwarded.message,
                DELIVER | SHARED_ONLY,
                forwarded.expires_at_s,
                forwarded.publisher,
                encode_shares(shares),
            )
            if not forwarded.message.qos:
                server.outgoing.put_unnumbered(data)
                continue
            append = server.owe(data)
            ops.append(append)
            parts.append(RelayPart(server, data, append.pos))
        return Relay(parts, is_owed=True) if parts else None

    def begin(self, inbound: Inbound | None, pending: Pending, relay: Relay | None) -> None:
        """A message is on its way: forward QoS 1, and keep its place if `inbound` is its client."""
        if inbound is not None:
            waits = relay is not None and not relay.is_owed
            self.ordered_answers.begin(inbound, pending, waits=waits)
        if relay is not None:
            relay.forward(pending.part_done)
            self.wake()

    def send_qos_0(self, plan: Plan, message: Publish, publisher: str, now_s: float) -> None:
        """Forward a QoS 0 message to the peers of a plan whose links are open."""
        if not plan.peers:
            return
        expires_at_s = expiry_of(message, now_s)
        data = encode_forwarded(message, DELIVER, expires_at_s, publisher, plan.shares)
        for peer in plan.peers:
            if peer.is_known or peer.outgoing.is_open:
                peer.outgoing.put_unnumbered(data)
        self.wake()

    def wake(self) -> None:
        if self.mesh is not None:
            self.mesh.wake()

    def _owner_of(self, message: Publish) -> Peer | None:
        if self._retained is None or not message.retain:
            return None
        return self._retained.owner_of(message.topic)

    def retained_changed(self, message: Publish, expires_at_s: float, *, is_kept: bool) -> None:
        """This node has kept a retained message, or dropped that of its topic."""
        if self._retained is not None:
            self._retained.changed(message, expires_at_s, is_kept=is_kept)
            self.wake()

    def orders_retained(self, topic: str) -> bool:
        """Return True if this node orders the retained messages of a topic."""
        return self._retained is None or self._retained.is_own(topic)

    @property
    def knows_retained(self) -> bool:
        """False while a node that has started lacks retained messages of peers."""
        return self._retained is None or self._retained.is_complete

    # --- subscriptions ---------------------------------------------------------------------------

    def subscribed(self, filter: str, *, is_new: bool) -> None:
        """A session of this node has subscribed; `is_new` is False if only options changed."""
        if is_new and self.mesh is not None:
            self.mesh.subscribe(filter)

    def unsubscribed(self, filter: str) -> None:
        if self.mesh is not None:
            self.mesh.unsubscribe(filter)

    @property
    def is_confirmed(self) -> bool:
        """True if all peers that may be alive forward by the filters of now."""
        mesh = self.mesh
        return mesh is None or mesh.is_confirmed(mesh.own_filters.number)

    def when_confirmed(self, done: Continuation, now_s: float) -> None:
        """Call `done` when `is_confirmed` holds for the filters of now."""
        if self.mesh is None:
            done(now_s)
        else:
            self._subacks.append((self.mesh.own_filters.number, done))
            self.filters_confirmed(now_s)

    # --- time ------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Every 100 ms."""
        self.ordered_answers.tick()
        if self.mesh is None or self._retained is None or self._cluster is None:
            return
        self.mesh.reopen()
        dropped_count = 0
        window = self._cluster.window_for(frozenset(), now_s)
        for peer in self.by_name.values():
            self._retained.go_on(peer)
            dropped_count += peer.outgoing.dropped_count
            path = frozenset((peer.name,))
            peers_window = self._cluster.window_for(path, now_s)
            peer.window = max(1, int(peers_window)) if peers_window < window else UNBOUNDED
        self._node.counters.drop(Reason.LINK_FULL, dropped_count - self._dropped_count)
        self._dropped_count = dropped_count
        self.wake()

    def filters_confirmed(self, now_s: float) -> None:
        """Let the SUBACKs leave whose filters are confirmed."""
        waiting, mesh = self._subacks, self.mesh
        assert mesh is not None
        while waiting and mesh.is_confirmed(waiting[0][0]):
            waiting.popleft()[1](now_s)
