"""Ledger: what was published, who is owed it, and what came of it.

It holds no more than what is still to come: a message says in its payload who it is, and those of
one line (publisher, topic, QoS) are numbered upwards, so that what comes again or too late is known
by its number.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Collection
from dataclasses import dataclass, field

from flowguard.types import NO_PROPERTIES, Publish
from tests.support.peer import Peer
from tests.torture.verdict import Verdict

MessageLine = tuple[str, str, int]
"""Publisher, topic, QoS: what keeps its order."""


@dataclass(slots=True, eq=False)
class Message:
    """One application message."""

    number: int
    line: MessageLine
    size_bytes: int
    acknowledged: bool = False

    @property
    def is_will(self) -> bool:
        return self.line[1].startswith("w/")

    def __str__(self) -> str:
        publisher, topic, qos = self.line
        return f"message {self.number} ({publisher}, {topic}, QoS {qos})"


def payload_of(number: int, publisher: str, size_bytes: int) -> bytes:
    """Says who it is, and is different in every byte from the next one's."""
    head = b"%d %s %d " % (number, publisher.encode(), size_bytes)
    return head.ljust(size_bytes, b"%c" % (97 + number % 26))


def message_of(publish: Publish) -> Message:
    """The message that a delivery brings, whatever QoS it comes with; the line's QoS is 0."""
    number, publisher, size_bytes, _ = publish.payload.split(b" ", 3)
    message = Message(int(number), (publisher.decode(), publish.topic, 0), int(size_bytes))
    expected = payload_of(message.number, publisher.decode(), message.size_bytes)
    assert publish.payload == expected, "a payload that nobody sent"
    return message


def matches(filter: str, topic: str) -> bool:
    """The filters of these runs are plain topics or `t/#`, shared or not."""
    if filter.startswith("$share/"):
        filter = filter.split("/", 2)[2]
    return filter == topic or (filter.endswith("/#") and topic.startswith(filter[:-1]))


@dataclass(eq=False)
class Account:
    """The messages owed to one session, or to the members of one shared group together."""

    name: str
    shared: bool = False
    peers: list[Peer] = field(default_factory=list)
    awaited: dict[int, Message] = field(default_factory=dict)
    overtaken: dict[int, Message] = field(default_factory=dict)
    """Awaited, and a later one of the line has come: lost, or out of order."""
    refused: set[int] = field(default_factory=set)
    """Messages rejected by the broker: each may arrive once, from an earlier attempt, or not."""
    early: set[int] = field(default_factory=set)
    """Messages that arrived before they were owed, such as a will whose client sees its end later;
    or again."""
    after: int | None = None
    """The session began after this number was acknowledged; None before its first subscription."""
    older: frozenset[int] = frozenset()
    """Up to `after`, but not acknowledged then."""
    doubtful: bool = False
    """Something may come that is not awaited, and has not come before."""
    until: int | None = None
    """The subscription ended before any later number was sent."""
    is_application: bool = False
    """A commit to it is written to Kafka first and then to the data directory, and so is the
    commit of what a group hands to a member: a kill may come between the two."""
    keeps_order: bool = True
    """False for a group whose queues of several workers became one."""
    again: Counter[int] = field(default_factory=Counter)
    """An application's: so often a message may come once more, with QoS 2, too."""
    again_count: int = 0
    """Messages of QoS 2 that did."""
    _lines: defaultdict[MessageLine, deque[int]] = field(default_factory=lambda: defaultdict(deque))
    _latest: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def wants(self, topic: str) -> bool:
        """Whether a message that is sent now must come."""
        return any(
            peer.is_sure_of_session and any(matches(filter, topic) for filter in peer.subscriptions)
            for peer in self.peers
        )

    def owe(self, message: Message) -> None:
        if message.number in self.early:
            return
        self.awaited[message.number] = message
        self._lines[message.line].append(message.number)

    def refuse(self, number: int) -> None:
        """The message is not owed any more."""
        was_awaited = self.awaited.pop(number, None) or self.overtaken.pop(number, None)
        if was_awaited is not None:
            self.refused.add(number)

    def doubt(self, *, even_acknowledged: bool = False) -> None:
        """The subscription changes: what is not acknowledged yet may come or not."""
        self.doubtful = True
        for message in list(self.awaited.values()):
            if even_acknowledged or not message.acknowledged:
                del self.awaited[message.number]

    def reset(self) -> None:
        """The session has ended."""
        self.awaited.clear()
        self.overtaken.clear()
        self.refused.clear()
        self.after = self.until = None
        self.again.clear()
        self._lines.clear()
        self._latest.clear()

    def deliver(self, client_id: str, came: Message, *, exact: bool) -> str | None:
        """Book a delivery; what is wrong with it. `exact`: a QoS 2 message, at QoS 2."""
        number = came.number
        publisher, topic, _ = came.line
        if self.after is not None and number <= self.after and number not in self.older:
            return f"{number} is of a former session"
        if self.until is not None and number > self.until:
            return f"{number} came after UNSUBACK"
        late = self.overtaken.pop(number, None)
        if late is not None:
            return f"{late} came out of order"
        message = self.awaited.pop(number, None)
        was_refused = number in self.refused
        self.refused.discard(number)
        if exact:
            latest = self._latest.get((client_id, publisher, topic), 0)
            is_new = message is not None or not self.shared or was_refused
            if (number <= latest and self.keeps_order) or not is_new:
                if not self.again[number]:
                    return f"{number} of {publisher} to {topic} came twice, at QoS 2"
                self.again[number] -= 1
                self.again_count += 1
            self._latest[client_id, publisher, topic] = max(number, latest)
        if message is None:
            self.early.add(number)
            return None
        return None if self.shared else self._advance(message)

    def _advance(self, message: Message) -> str | None:
        """The oldest of its line comes first."""
        line = self._lines[message.line]
        while (number := line.popleft()) != message.number:
            skipped = self.awaited.pop(number, None)
            if skipped is not None:
                self.overtaken[number] = skipped
        return f"{message} came before {len(self.overtaken)} older" if self.overtaken else None


class Ledger:
    """Attached to peers by their callbacks; `findings` is what must not be."""

    def __init__(
        self, *, logs: bool = False, refuses: bool = False, applications: Collection[str] = ()
    ) -> None:
        """`logs`: the broker has a durable log, and what a client has not read there for a filter
        does not come after its UNSUBSCRIBE ([MQTT 5.0, 3.10.4]: it may, or not); `refuses`: at
        times there is no room; `applications`: client ids of those whose queues are in Kafka
        (docs/operate/kafka.md says what a kill may do)."""
        self._logs = logs
        self._refuses = refuses
        self.refused_count = 0
        self._applications = applications
        self.properties = NO_PROPERTIES
        """Properties of all messages of MQTT 5.0 clients."""
        self.findings: list[str] = []
        self.repeated: list[Message] = []
        """Deliveries of what had come before."""
        self.retained: Counter[str] = Counter()
        """Highest acknowledged number by topic, of retained messages."""
        self._accounts: dict[str, Account] = {}
        """By client id; members of a shared group have one together."""
        self._unacknowledged: dict[int, Message] = {}
        self._last = 0
        self._acknowledged_count = 0
        self._delivered_count = 0
        self._when = "before the first kill"

    def watch(self, peer: Peer, account: Account | None = None) -> None:
        """Keep the books of a peer; without an account it is owed nothing."""
        peer.on_acknowledged = self._on_acknowledged
        if self._refuses:
            peer.on_refused = self._on_refused
        if account is not None:
            account.peers.append(peer)
            account.is_application |= peer.client_id in self._applications
            self._accounts[peer.client_id] = account
            peer.on_delivered = self._on_delivered
            if not account.shared:
                peer.on_session_lost = lambda peer: account.reset()

    def ignore_order_of_groups(self) -> None:
        for account in self._accounts.values():
            account.keeps_order = not account.shared

    def accounts(self) -> set[Account]:
        return set(self._accounts.values())

    def forget(self, peer: Peer) -> None:
        """This one is out."""
        account = self._accounts.pop(peer.client_id, None)
        if account is not None:
            account.peers.remove(peer)

    # --- what is sent ------------------------------------------------------------------------

    def message(self, publisher: str, topic: str, qos: int, size_bytes: int) -> Message:
        """Return a message with a number of its own, which is not owed yet."""
        self._last += 1
        return Message(self._last, (publisher, topic, qos), size_bytes)

    def publish(
        self, publisher: str, topic: str, qos: int, size_bytes: int, *, retain: bool = False
    ) -> Publish:
        """Return a message that is sent now, owed to all standing subscriptions."""
        message = self.message(publisher, topic, qos, size_bytes)
        self._unacknowledged[message.number] = message
        self.owe(message)
        payload = payload_of(message.number, publisher, size_bytes)
        return Publish(topic, payload, qos, retain, properties=self.properties)

    def owe(self, message: Message) -> None:
        for account in self.accounts():
            if account.wants(message.line[1]):
                account.owe(message)

    def bequeath(self, will: Message, *, owed: bool) -> None:
        """A client has left its will; not `owed` if its client got no CONNACK for it."""
        if owed:
            will.acknowledged = True
            self.owe(will)

    def killed(self) -> None:
        """The broker is dead, and all that it had said has been heard: what was on its way to
        applications may be in Kafka, and comes from its publisher again."""
        for account in self.accounts():
            if account.is_application:
                account.again.update(self._unacknowledged.keys())
                if account.shared:
                    account.again.update(account.awaited.keys())

    # --- subscriptions that come and go ------------------------------------------------------

    def subscribes(self, peer: Peer) -> None:
        """A SUBSCRIBE is about to be sent."""
        account = self._accounts[peer.client_id]
        account.doubt()
        account.until = None
        if account.after is None:
            account.after = self._last
            account.older = frozenset(self._unacknowledged)

    def unsubscribes(self, peer: Peer) -> None:
        """An UNSUBSCRIBE is about to be sent."""
        self._accounts[peer.client_id].doubt(even_acknowledged=self._logs)

    def unsubscribed(self, peer: Peer) -> None:
        """An UNSUBACK has come, and no SUBSCRIBE was sent since."""
        self._accounts[peer.client_id].until = self._last

    # --- what comes --------------------------------------------------------------------------

    def _on_acknowledged(self, peer: Peer, publish: Publish) -> None:
        number = message_of(publish).number
        self._unacknowledged.pop(number).acknowledged = True
        self._acknowledged_count += 1
        if publish.retain:
            self.retained[publish.topic] = max(self.retained[publish.topic], number)

    def _on_refused(self, peer: Peer, publish: Publish) -> None:
        number = message_of(publish).number
        del self._unacknowledged[number]
        self.refused_count += 1
        for account in self.accounts():
            account.refuse(number)

    def _on_delivered(self, peer: Peer, publish: Publish) -> None:
        came = message_of(publish)
        account = self._accounts[peer.client_id]
        self._delivered_count += 1
        if not account.doubtful and came.number not in account.awaited:
            self.repeated.append(came)
        exact = publish.qos == 2  # It is never delivered above the QoS that it was sent with.
        wrong = account.deliver(peer.client_id, came, exact=exact)
        if wrong is not None:
            self.find(f"{peer.client_id}: {wrong}")

    @property
    def progress(self) -> int:
        """Grows with everything that comes."""
        return self._acknowledged_count + self._delivered_count

    @property
    def is_settled(self) -> bool:
        """True if all sessions have received the messages owed to them."""
        return not any(account.awaited for account in self._accounts.values())

    # --- what must not be --------------------------------------------------------------------

    def note(self, when: str) -> None:
        """Findings from now on are dated `when`."""
        self._when = when

    def find(self, finding: str) -> None:
        self.findings.append(f"{self._when}: {finding}")

    def close(self) -> None:
        """Nothing comes any more: what was acknowledged, is owed and not there, is lost."""
        for account in self.accounts():
            for message in [*account.overtaken.values(), *account.awaited.values()]:
                if message.acknowledged:
                    self.find(f"{account.name}: {message} was acknowledged and is lost")

    def report(self, verdict: Verdict) -> None:
        verdict.findings = self.findings
        verdict.published = self._last
        verdict.acknowledged = self._acknowledged_count
        verdict.delivered = self._delivered_count
        verdict.repeated = len(self.repeated)
        verdict.torn = sum(account.again_count for account in self.accounts())
