"""Ledger: every message of a run, who is owed it, and who got it how often."""

from collections import defaultdict
from dataclasses import dataclass, field

from flowguard.types import Publish
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
        """What is not yet acknowledged may be routed before or after this change."""
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
