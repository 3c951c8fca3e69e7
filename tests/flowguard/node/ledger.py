"""Ledger: every message of a run, with its owed and its received deliveries, and every byte.

`check_budgets` adds up what a node holds, object by object, and compares the sums with its budgets;
`check_store` compares it with the store.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from flowguard.node.node import Node
from flowguard.node.publish.plans import TOPIC_BYTES
from flowguard.session.connection import ServerConnection
from flowguard.stores import Store
from flowguard.types import Publish
from tests.support import budgets
from tests.support.peer import Peer


def matches(filter: str, topic: str) -> bool:
    """The filters of these runs are plain topics, `t/#` or `#`."""
    return filter in ("#", topic) or (filter.endswith("/#") and topic.startswith(filter[:-1]))


@dataclass(eq=False)
class Message:
    """One application message, known by its payload."""

    number: int
    publisher: str
    publish: Publish
    acknowledged: bool = False
    owed: set[str] = field(default_factory=set)
    """Client ids whose session must get it, once it is acknowledged."""
    ordered: set[str] = field(default_factory=set)
    """Those whose subscription stood while the publisher may have been repeating it."""

    @property
    def payload(self) -> bytes:
        return self.publish.payload


class Ledger:
    """Attached to peers by their callbacks."""

    def __init__(self) -> None:
        self.messages: dict[bytes, Message] = {}
        self.peers: list[Peer] = []
        self._got: dict[tuple[str, int], set[bytes]] = defaultdict(set)
        self._exact: set[tuple[str, int, bytes]] = set()
        self._latest: dict[tuple[object, ...], int] = {}

    def watch(self, peer: Peer) -> None:
        self.peers.append(peer)
        peer.on_delivered = self.delivered
        peer.on_acknowledged = self.acknowledged
        peer.on_session_lost = self.session_lost

    def message(self, publisher: Peer, topic: str, qos: int, size_bytes: int = 0) -> Publish:
        """A new message that `publisher` is about to send."""
        number = len(self.messages) + 1
        payload = b"%s %d " % (publisher.client_id.encode(), number)
        publish = Publish(topic, payload.ljust(size_bytes, b"."), qos)
        message = Message(number, publisher.client_id, publish)
        self.messages[publish.payload] = message
        for peer in self.peers:
            granted = [
                granted for filter, granted in peer.subscriptions.items() if matches(filter, topic)
            ]
            if peer.is_sure_of_session and qos and any(granted):
                message.owed.add(peer.client_id)
                message.ordered.add(peer.client_id)
        return publish

    def subscription_changes(self, peer: Peer, filter: str) -> None:
        """A message that is not acknowledged yet may be routed before or after this change."""
        for message in self.messages.values():
            if not message.acknowledged and matches(filter, message.publish.topic):
                message.owed.discard(peer.client_id)
                message.ordered.discard(peer.client_id)

    def session_lost(self, peer: Peer) -> None:
        for message in self.messages.values():
            message.owed.discard(peer.client_id)

    def acknowledged(self, peer: Peer, publish: Publish) -> None:
        self.messages[publish.payload].acknowledged = True

    def delivered(self, peer: Peer, publish: Publish) -> None:
        message = self.messages[publish.payload]
        sent = message.publish
        assert publish.topic == sent.topic
        assert publish.qos <= sent.qos
        session = (peer.client_id, peer.life)
        if sent.qos != 1 and publish.qos == sent.qos:
            key = (*session, sent.payload)
            assert key not in self._exact, f"QoS {sent.qos} message delivered twice"
            self._exact.add(key)
        if sent.payload in self._got[session]:
            return
        self._got[session].add(sent.payload)
        if sent.qos and peer.client_id not in message.ordered:
            return
        order = (*session, message.publisher, sent.topic, sent.qos, publish.qos)
        assert message.number > self._latest.get(order, 0), "delivered out of order"
        self._latest[order] = message.number

    def missing(self) -> list[tuple[str, Message]]:
        """Acknowledged messages that a living session was owed and never got."""
        lives = {peer.client_id: peer.life for peer in self.peers}
        return [
            (client_id, message)
            for message in self.messages.values()
            if message.acknowledged
            for client_id in message.owed
            if message.payload not in self._got[client_id, lives[client_id]]
        ]


# --- bytes -----------------------------------------------------------------------------------


def check_budgets(node: Node, connections: Iterable[ServerConnection]) -> None:
    """Every budget of a node equals the sum of its objects, to the byte; see `budgets`."""
    queues = [owner.queue for owner in node.router.queues._queues.values()]
    budgets.check_budgets(node.state, node.registry.sessions.values(), queues, connections)
    check_plans(node)


def check_plans(node: Node) -> None:
    """The counted bytes of plans equal the sum of the plans, and are within the bound."""
    plans = node.router.plans
    assert plans.by_topic.keys() <= set(plans._order)
    used_bytes = sum(TOPIC_BYTES + topic.__sizeof__() for topic in plans._order)
    used_bytes += sum(plan.size_bytes for plan in plans.by_topic.values())
    used_bytes += plans._changed.size_bytes + plans._ended_bytes + plans._ended_before_bytes
    assert plans.budget.used_bytes == used_bytes <= plans.budget.limit_bytes


def check_store(node: Node, store: Store) -> None:
    """When nothing is on its way: the store holds what the node counts, to the message and byte."""
    assert node.journal.is_empty
    for record in store.sessions():
        session = node.registry.sessions[record.client_id]
        queue = session.queue
        entries = store.fetch(record.client_id, 0, 1_000_000, bytes_max=1 << 40)
        assert len(entries) == queue.count + len(session.inflight.messages)
        sent = {session.inflight.positions[packet_id] for packet_id in session.inflight.messages}
        waiting = [each.delivery for each in entries if each.pos not in sent]
        assert sum(delivery.size_bytes for delivery in waiting if delivery) == queue.size_bytes
        if queue.spills and session.outbound is None:
            assert queue.charged_bytes == 0, "nobody's backlog is in memory while he is away"


def end_all_sessions(node: Node, now_s: float) -> None:
    """End all sessions, even if they are owed messages. Afterwards all budgets are 0."""
    for session in list(node.registry.sessions.values()):
        if session.outbound is not None:
            session.outbound.connection.end(None, now_s)
        if not session.ended:
            node.registry.end(session, now_s)
    assert used_bytes(node) == dict.fromkeys(used_bytes(node), 0)


def used_bytes(node: Node) -> dict[str, int]:
    """Return the used bytes of each budget, by name."""
    return budgets.used_bytes(node.state)
