"""A simulated node: sessions, routes and a journal around the objects of `flowguard.cluster`."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from flowguard.cluster import (
    NOT_OWED,
    Cluster,
    IncomingStream,
    LinkMessage,
    Members,
    Mesh,
    OutgoingStream,
    OwedAddress,
    PressureRecord,
)
from flowguard.config import FlowSettings
from flowguard.routing import TopicIndex
from tests.flowguard.cluster.clients import ClientConnection, Packet
from tests.flowguard.cluster.ledger import Ledger

Op = Callable[[], object]
Then = Callable[[float], None]
FRAME_BYTES_MAX = 100_000
BYTES_MAX = 120


@dataclass
class Store:
    """Committed data of one node; it survives crashes."""

    positions: dict[str, int] = field(default_factory=dict)
    """Last position of the queue of each session."""
    subscriptions: dict[str, set[str]] = field(default_factory=dict)
    inbound: dict[str, set[int]] = field(default_factory=dict)
    """Packet ids of QoS 2 messages by publisher."""
    owed: dict[str, dict[OwedAddress, bytes]] = field(default_factory=dict)
    marks: dict[str, OwedAddress] = field(default_factory=dict)


@dataclass
class Parts:
    """The classes that a world is made of; a mutant replaces some."""

    node: "type[Node]"
    mesh: type[Mesh] = Mesh
    outgoing: type[OutgoingStream] = OutgoingStream
    incoming: type[IncomingStream] = IncomingStream


class Answer:
    """Calls `then` after `parts` commits: the own one, and one of each peer."""

    def __init__(self, parts: int, then: Callable[[], None]) -> None:
        self._left = parts
        self._then = then

    def done(self, now_s: float) -> None:
        self._left -= 1
        if not self._left:
            self._then()


class Node:
    """One incarnation of a node."""

    def __init__(
        self,
        name: str,
        incarnation: int,
        store: Store,
        names: list[str],
        ledger: Ledger,
        messages_max: int,
        parts: Parts,
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self.has_crashed = self.is_paused = self.is_full = False
        self.rejections_left = 0
        """Number of rejections before messages of peers are taken again."""
        self._messages_max = messages_max
        self.store = store
        self.ledger = ledger
        members = Members(name, incarnation, names)
        peers = list(members.peers)
        self.mesh = parts.mesh(
            members,
            self,
            {peer: parts.outgoing(incarnation, messages_max, BYTES_MAX) for peer in peers},
            {peer: parts.incoming(store.marks.get(peer, NOT_OWED)) for peer in peers},
            FRAME_BYTES_MAX,
        )
        self.cluster = Cluster(name, incarnation, FlowSettings())
        self._journal = deque[tuple[list[Op], Then | None]]()
        self._sessions: TopicIndex[str, None] = TopicIndex()
        self._peers: TopicIndex[str, None] = TopicIndex()
        self._positions = dict(store.positions)
        self._subscriptions = {key: set(found) for key, found in store.subscriptions.items()}
        self._inbound: dict[str, dict[int, bool]] = {
            client: dict.fromkeys(ids, True) for client, ids in store.inbound.items()
        }
        """Packet ids of QoS 2 messages by publisher; True if committed."""
        self._waiting: dict[tuple[str, int], ClientConnection] = {}
        """Newest connection on which a QoS 2 message came whose commit is under way."""
        self._subacks: list[tuple[int, ClientConnection, Packet]] = []
        for session, filters in self._subscriptions.items():
            for filter in filters:
                self._sessions.subscribe(filter, session, None)
                self.mesh.subscribe(filter)
        for peer, owed in store.owed.items():
            self.mesh.outgoing[peer].recover(sorted(owed.items()))

    @property
    def runs(self) -> bool:
        return not (self.has_crashed or self.is_paused)

    def tick(self, now_s: float) -> None:
        self.mesh.reopen()
        record = self.cluster.announce(50.0, 0.5, None, 16, now_s)
        if record is not None:
            self.mesh.send_pressure(record)

    # --- store -----------------------------------------------------------------------------------

    def write(self, ops: list[Op], then: Then | None = None) -> None:
        self._journal.append((ops, then))

    def commit(self, now_s: float) -> bool:
        """Commit the oldest batch."""
        if not self._journal or not self.runs or self.is_full:
            return False
        ops, then = self._journal.popleft()
        self.ledger.counts["commits"] += 1
        for op in ops:
            op()
        if then is not None:
            then(now_s)
        return True

    def appends(self, data: bytes) -> list[Op]:
        """Give a message to the sessions of this node."""
        topic = data.split()[2].decode()
        ops: list[Op] = []
        for session in sorted({session for session, _ in self._sessions.match(topic)}):
            position = self._positions.get(session, 0) + 1
            self._positions[session] = position
            ops.append(partial(self._append, session, position, data))
        return ops

    def _append(self, session: str, position: int, data: bytes) -> None:
        self.ledger.queued(session, position, data)
        self.store.positions[session] = position

    def _check_bounds(self) -> None:
        for stream in self.mesh.outgoing.values():
            if stream.messages_count > self._messages_max:
                self.ledger.fail(f"{stream.messages_count} messages wait in a stream")

    def check_drained(self) -> None:
        for peer, stream in self.mesh.outgoing.items():
            if stream.messages_count or stream.bytes_count or self.store.owed.get(peer):
                self.ledger.fail(f"{self.name} has messages for {peer}")
        heard = {record.node for record in self.cluster.peers(0.0)}
        if heard != set(self.mesh.outgoing):
            self.ledger.fail(f"{self.name} knows the load of {heard}")

    # --- host of the links -----------------------------------------------------------------------

    def opened(self, peer: str) -> None: ...

    def answered(self, peer: str) -> None: ...

    def take(
        self,
        peer: str,
        messages: list[LinkMessage],
        mark: OwedAddress,
        then: Then,
        now_s: float,
    ) -> None:
        ops = [op for message in messages for op in self.appends(message.data)]
        ops.append(partial(self.store.marks.__setitem__, peer, mark))
        self.ledger.counts["messages taken from peers"] += len(messages)
        self.write(ops, then)

    def take_unnumbered(self, peer: str, messages: tuple[bytes, ...], now_s: float) -> None: ...

    def rejection(self) -> str:
        if self.is_full or self.rejections_left:
            self.rejections_left = max(0, self.rejections_left - 1)
            self.ledger.counts["streams rejected"] += 1
            return "the disk is full"
        return ""

    def filters_changed(self, peer: str, added: list[str], removed: list[str]) -> None:
        for filter in added:
            self._peers.subscribe(filter, peer, None)
        for filter in removed:
            self._peers.unsubscribe(filter, peer)

    def filters_confirmed(self, now_s: float) -> None:
        waiting, self._subacks = self._subacks, []
        for number, connection, packet in waiting:
            if self.mesh.is_confirmed(number):
                connection.to_client.append(packet)
            else:
                self._subacks.append((number, connection, packet))

    def delivered(self, peer: str, address: OwedAddress) -> None:
        self.write([partial(self.store.owed[peer].pop, address, None)])

    def pressure_received(self, record: PressureRecord, now_s: float) -> None:
        self.cluster.merge(record, 0.0)

    # --- clients ---------------------------------------------------------------------------------

    def serve(self, connection: ClientConnection) -> bool:
        """Handle the next packet of a client; False if it has to wait."""
        kind, packet_id, data = connection.to_node[0]
        if kind.startswith("publish") and not self.publish(connection, packet_id, data):
            return False
        connection.to_node.popleft()
        if kind == "pubrel":
            self._release(connection, packet_id)
        elif kind == "subscribe":
            self._subscribe(connection, data.decode())
        elif kind == "unsubscribe":
            self._unsubscribe(connection, data.decode())
        return True

    def publish(self, connection: ClientConnection, packet_id: int, data: bytes) -> bool:
        _, _, topic, qos = data.decode().split()
        known = self._inbound.setdefault(connection.client, {})
        if qos == "2" and packet_id in known:
            if known[packet_id]:
                connection.to_client.append(("pubrec", packet_id, b""))
            else:
                self._waiting[connection.client, packet_id] = connection
            return True
        targets = self.mesh.targets(peer for peer, _ in self._peers.match(topic))
        outgoing = self.mesh.outgoing
        if not all(outgoing[peer].has_capacity() for peer in targets):
            self.ledger.counts["publishers that wait for capacity"] += 1
            return False
        self.ledger.counts["messages forwarded to peers"] += len(targets)
        self._check_bounds()
        ops = self.appends(data)
        if qos == "1":
            reply = partial(connection.to_client.append, ("puback", packet_id, b""))
            answer = Answer(self.commits_awaited(bool(ops), len(targets)), reply)
            for peer in sorted(targets):
                outgoing[peer].put(data, answer.done)
            if ops or not targets:
                self.write(ops, answer.done)
            return True
        self._waiting[connection.client, packet_id] = connection
        self.publish_owed(connection.client, packet_id, data, ops, sorted(targets))
        return True

    def commits_awaited(self, has_ops: bool, targets_count: int) -> int:
        """Commits that a PUBACK waits for; at least one, which may be empty."""
        return has_ops + targets_count or 1

    def publish_owed(
        self, client: str, packet_id: int, data: bytes, ops: list[Op], targets: list[str]
    ) -> None:
        """A QoS 2 message: commit it with what is owed, then forward and acknowledge it."""
        self._inbound[client][packet_id] = False
        owed: list[tuple[str, OwedAddress]] = []
        for peer in targets:
            address = self.mesh.outgoing[peer].owe(data)
            owed.append((peer, address))
            ops.append(partial(self.store.owed.setdefault(peer, {}).__setitem__, address, data))
        ops.append(partial(self.store.inbound.setdefault(client, set()).add, packet_id))
        self.write(ops, partial(self.forward_owed, client, packet_id, data, owed))

    def forward_owed(
        self,
        client: str,
        packet_id: int,
        data: bytes,
        owed: list[tuple[str, OwedAddress]],
        now_s: float,
    ) -> None:
        self._inbound[client][packet_id] = True
        for peer, address in owed:
            self.mesh.outgoing[peer].put_owed(address, data)
        self._waiting.pop((client, packet_id)).to_client.append(("pubrec", packet_id, b""))

    def _release(self, connection: ClientConnection, packet_id: int) -> None:
        client = connection.client
        self._inbound.get(client, {}).pop(packet_id, None)
        reply = partial(connection.to_client.append, ("pubcomp", packet_id, b""))
        drop = partial(self.store.inbound.setdefault(client, set()).discard, packet_id)
        self.write([drop], Answer(1, reply).done)

    def _subscribe(self, connection: ClientConnection, filter: str) -> None:
        session = connection.client
        filters = self._subscriptions.setdefault(session, set())
        if filter not in filters:
            filters.add(filter)
            self._sessions.subscribe(filter, session, None)
            self.mesh.subscribe(filter)
        number = self.mesh.own_filters.number
        kept = self.store.subscriptions.setdefault(session, set())
        suback = (number, connection, ("suback", 0, filter.encode()))
        self.write([partial(kept.add, filter)], partial(self.subscribed, suback))

    def subscribed(self, suback: tuple[int, ClientConnection, Packet], now_s: float) -> None:
        """The subscription is committed: SUBACK waits for the peers."""
        self._subacks.append(suback)
        self.filters_confirmed(now_s)

    def _unsubscribe(self, connection: ClientConnection, filter: str) -> None:
        session = connection.client
        filters = self._subscriptions.setdefault(session, set())
        ops: list[Op] = []
        if filter in filters:
            filters.discard(filter)
            self._sessions.unsubscribe(filter, session)
            self.mesh.unsubscribe(filter)
            ops.append(partial(self.store.subscriptions[session].discard, filter))
        reply = partial(connection.to_client.append, ("unsuback", 0, filter.encode()))
        self.write(ops, Answer(1, reply).done)
