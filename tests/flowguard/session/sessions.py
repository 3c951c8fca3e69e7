"""Several sessions without a node, with clients wired straight to their connections.

    sessions = Sessions()
    subscriber = sessions.connect_durable("s")
    subscriber.subscribe("t", qos=1)
    sessions.connect("p").publish("t", b"x", qos=1)
    assert subscriber.publishes()[0].payload == b"x"

Routing is a loop over all sessions. Filters are plain topics, `t/#` or `#`. Each call works until
nothing moves, and commits unless `hold_commits`. Time moves only if a test sets `now_s`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flowguard.bounds import Bounds
from flowguard.codec.packets import (
    Auth,
    Connack,
    Connect,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)
from flowguard.config import Settings
from flowguard.errors import PeerError
from flowguard.flow import NodeWindow
from flowguard.records import (
    NEVER_S,
    Append,
    Delivery,
    DropSession,
    DropSubscription,
    PutInbound,
    PutSession,
    PutSubscription,
    StoreOp,
)
from flowguard.session.connection import ServerConnection
from flowguard.session.handshake import Answer, connack_properties, grant
from flowguard.session.host import IN_PROCESS, Lifecycle, Routing
from flowguard.session.inbound.packets import Inbound
from flowguard.session.node_state import NodeState
from flowguard.session.owner import admit_message, page_fetched, use_disk
from flowguard.session.session import Session
from flowguard.session.state_bytes import subscription_bytes
from flowguard.stores import MemoryStore
from flowguard.types import (
    MQTT_5,
    NO_PROPERTIES,
    Properties,
    Publish,
    ReasonCode,
    SubscriptionOptions,
)
from tests.flowguard.session.alone import Commits
from tests.support.budgets import check_budgets, used_bytes
from tests.support.client import WiredClient
from tests.support.on_disk import StoreOnDisk as StoreOnDisk

PASSES_MAX = 100_000
"""Passes of one `settle`: far more than any test needs."""


def matches(filter: str, topic: str) -> bool:
    is_below = filter.endswith("/#") and f"{topic}/".startswith(filter[:-1])
    return filter in ("#", topic) or is_below


class Sessions:
    """Sessions, their store and their clients."""

    def __init__(
        self,
        settings: dict[str, dict[str, Any]] | None = None,
        *,
        store: MemoryStore | None = None,
        now_s: float = 1_000_000.0,
    ) -> None:
        checked = Settings.model_validate(settings or {})
        self.now_s = now_s
        self.store = store or MemoryStore()
        self.commits = Commits()
        window = NodeWindow(checked.flow.window_max)
        self.node = NodeState(Bounds.of(checked, 1 << 30), window, self.commits)
        if self.store.on_disk:
            use_disk(self.node)
        disk_bytes_max = checked.node.disk_queue_bytes_max
        if disk_bytes_max is not None:
            self.node.disk_queue_budget.limit_bytes = disk_bytes_max
        self.sessions: dict[str, Session] = {}
        self.events: list[str] = []
        """Ends of connections, and errors of clients."""
        self.hold_commits = False
        """True while the store takes nothing."""
        self.hold_fetches = False
        """True while the store is asked for no page."""
        self.lifecycle = Connections(self)
        self.routing = Routes(self)
        self._ids = 0

    # --- clients ---

    def opened(self, client: WiredClient) -> ServerConnection:
        return ServerConnection(self.node, self.lifecycle, client, self.now_s)

    def closed(self) -> None:
        """No socket is counted here."""

    def open(self, version: int = MQTT_5) -> "Client":
        """A connection before its CONNECT; `version` is how the client decodes."""
        return Client(self, version)

    def attempt(self, connect: Connect) -> "Client":
        """A client that has sent this CONNECT, whatever the answer."""
        client = self.open(connect.version)
        client.send(connect)
        return client

    def connect(
        self,
        client_id: str = "",
        *,
        version: int = MQTT_5,
        clean_start: bool = True,
        keep_alive_s: int = 0,
        will: Will | None = None,
        **properties: Any,
    ) -> "Client":
        """A client after its CONNACK, which stays in `client.connack`."""
        values = Properties(**properties) if properties else NO_PROPERTIES
        connect = Connect(
            client_id, version, clean_start, keep_alive_s, will=will, properties=values
        )
        client = self.attempt(connect)
        client.connack = client.expect(Connack)
        assert client.connack.reason_code == 0, client.connack
        return client

    def connect_durable(
        self, client_id: str, *, version: int = MQTT_5, **properties: Any
    ) -> "Client":
        """Return a client with a durable session, which resumes an existing one."""
        if version == MQTT_5:
            properties.setdefault("session_expiry_interval", 3_600)
        return self.connect(client_id, version=version, clean_start=False, **properties)

    def session_of(self, packet: Connect, expiry_s: int) -> tuple[Session, bool]:
        """Return the session that a CONNECT resumes or begins, and True if it existed before."""
        self._ids += 1
        client_id = packet.client_id or f"assigned-{self._ids}"
        session = self.sessions.get(client_id)
        if session is not None and packet.clean_start:
            self.end(session)
            session = None
        if session is not None:
            session.expiry_interval_s = expiry_s
            return session, True
        session = Session.create(client_id, self.node, expiry_s)
        self.sessions[client_id] = session
        if session.durable:
            self.commits.note(PutSession(client_id, expiry_s, None))
        return session, False

    def end(self, session: Session) -> None:
        """End a session as a node does: nothing of it counts any more."""
        session.ended = True
        session.account.close(self.node)
        session.queue.clear()
        while session.inflight.messages:
            packet_id, delivery = session.inflight.messages.popitem()
            session.inflight.free_place(packet_id, delivery, self.node.inflight)
        if session.inflight.positions:
            session.inflight.positions.clear()
        del self.sessions[session.client_id]
        if session.durable:
            self.commits.note(DropSession(session.client_id))

    def end_all(self) -> None:
        """End all sessions: no budget holds anything then."""
        for session in list(self.sessions.values()):
            if session.outbound is not None:
                session.outbound.connection.end(None, self.now_s)
            if not session.ended:
                self.end(session)
        assert self.used_bytes() == dict.fromkeys(self.used_bytes(), 0)

    def used_bytes(self) -> dict[str, int]:
        """Bytes that each budget holds, by its name."""
        return used_bytes(self.node)

    def check(self, connections: Iterable[ServerConnection] = ()) -> None:
        """Check that every budget equals its sum; `connections` includes those without a
        session."""
        check_budgets(self.node, self.sessions.values(), (), connections)

    def check_store(self) -> None:
        """The store holds the messages that the sessions count, and no other."""
        for record in self.store.sessions():
            session = self.sessions[record.client_id]
            queue, inflight = session.queue, session.inflight
            entries = self.store.fetch(record.client_id, 0, 1_000_000, bytes_max=1 << 40)
            assert len(entries) == queue.count + len(inflight.messages)
            sent = {inflight.positions[packet_id] for packet_id in inflight.messages}
            waiting = [each.delivery for each in entries if each.pos not in sent]
            assert sum(each.size_bytes for each in waiting if each) == queue.size_bytes
            if queue.spills and session.outbound is None:
                assert queue.charged_bytes == 0

    # --- work ---

    def advance(self, seconds: float) -> None:
        """Let time pass: conversations that wait for capacity are sent to again."""
        self.now_s += seconds
        self.node.wake_later()
        self.settle()

    def publish(self, message: Publish) -> None:
        """A message of the broker itself, for all sessions that have a filter for it."""
        self.routing.publish_own(message, self.now_s)
        self.settle()

    def settle(self) -> None:
        """Work until nothing moves."""
        for _ in range(PASSES_MAX):
            moved = [self._run(), self._send(), self._replay(), self._commit(), self._fetch()]
            if not any(moved):
                return
        raise AssertionError("the work does not end")

    def _run(self) -> bool:
        runnable, self.node.runnable = self.node.runnable, []
        for conversation in runnable:
            assert isinstance(conversation, ServerConnection)
            conversation.queued = False
            conversation.run(self.now_s)
        return bool(runnable)

    def _send(self) -> bool:
        dirty, self.node.dirty = self.node.dirty, []
        for conversation in dirty:
            assert isinstance(conversation, ServerConnection)
            conversation.outbound.outbox.dirty = False
            assert isinstance(conversation.transport, Client)
            conversation.transport.carry()
        return bool(dirty)

    def _replay(self) -> bool:
        moved = bool(self.node.replays)
        while self.node.replays:
            self.node.replays.popleft().take_turn(self.now_s)
        return moved

    def _commit(self) -> bool:
        commits = self.commits
        if self.hold_commits or not (commits.ops or commits.waiting):
            return False
        self.finish_commit()
        return True

    def finish_commit(self) -> None:
        """The store takes all that was noted until now; its clients are answered."""
        commits = self.commits
        ops, commits.ops = commits.ops, []
        waiting, commits.waiting = commits.waiting, []
        self.store.commit(ops)
        for done in waiting:
            done(self.now_s)

    def _fetch(self) -> bool:
        fetches = self.node.fetches
        if self.hold_fetches or not fetches:
            return False
        fetch = fetches.popleft()
        session = fetch.owner
        assert isinstance(session, Session)
        entries = fetch.entries(self.store)
        if not session.ended:
            page_fetched(session, fetch, entries, self.node, self.now_s)
        return True

    def release_commits(self) -> None:
        self.hold_commits = False
        self.settle()

    def release_fetches(self) -> None:
        self.hold_fetches = False
        self.settle()


@dataclass(eq=False)
class Client(WiredClient):
    """A client of these sessions."""

    stage: Sessions

    @property
    def session(self) -> Session:
        session = self.connection.session
        assert session is not None
        return session


class Routes(Routing[Inbound]):
    """Routing to all sessions that have a filter for a topic."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def publish(self, inbound: Inbound, message: Publish, now_s: float) -> int:
        """Durable work is answered after its commit, and what comes behind it."""
        node, origin = self._sessions.node, inbound.session
        node.counters.publish_received += 1
        targets = self._targets(message, origin, now_s)
        code = ReasonCode.SUCCESS if targets else ReasonCode.NO_MATCHING_SUBSCRIBERS
        lasts = any(session.durable and delivery.qos for session, delivery in targets)
        lasts |= message.qos == 2 and origin.durable
        if not message.qos or not (lasts or inbound.must_wait):
            for session, delivery in targets:
                self._offer(session, session.take_position(), delivery, now_s)
            return code
        ops: list[StoreOp] = []
        if message.qos == 2 and origin.durable:
            ops.append(PutInbound(origin.client_id, message.packet_id))
        placed = self._place(targets, ops, now_s)
        inbound.window.admit()

        def done(now_s: float) -> None:
            for session, pos, delivery in placed:
                self._offer(session, pos, delivery, now_s)
            inbound.published(message, code)
            inbound.settle(1, 0)

        node.journal.append(ops, done, now_s)
        return IN_PROCESS

    def publish_own(self, message: Publish, now_s: float) -> None:
        ops: list[StoreOp] = []
        placed = self._place(self._targets(message, None, now_s), ops, now_s)

        def done(now_s: float) -> None:
            for session, pos, delivery in placed:
                self._offer(session, pos, delivery, now_s)

        self._sessions.node.journal.append(ops, done, now_s)

    def _place(
        self, targets: list[tuple[Session, Delivery]], ops: list[StoreOp], now_s: float
    ) -> list[tuple[Session, int, Delivery]]:
        """Admit a message and take its positions; `ops` gets what is to be stored of it."""
        node = self._sessions.node
        placed: list[tuple[Session, int, Delivery]] = []
        for session, delivery in targets:
            if delivery.qos and session.durable:
                reason = admit_message(session, delivery.size_bytes, node, now_s)
                if reason is not None:
                    node.counters.drop(reason)
                    continue
            pos = session.take_position()
            placed.append((session, pos, delivery))
            if delivery.qos and session.durable:
                ops.append(Append(session.client_id, pos, delivery))
        return placed

    def _targets(
        self, message: Publish, origin: Session | None, now_s: float
    ) -> list[tuple[Session, Delivery]]:
        interval_s = message.properties.message_expiry_interval
        expires_at_s = NEVER_S if interval_s is None else now_s + interval_s
        deliveries = [Delivery(message, qos, False, (), expires_at_s) for qos in range(3)]
        targets = []
        for session in self._sessions.sessions.values():
            found = [
                options
                for filter, options in session.subscriptions.items()
                if matches(filter, message.topic) and not (options.no_local and session is origin)
            ]
            if found:
                qos = min(message.qos, max(options.qos for options in found))
                targets.append((session, deliveries[qos]))
        return targets

    def _offer(self, session: Session, pos: int, delivery: Delivery, now_s: float) -> None:
        if delivery.qos:
            session.offer(pos, delivery, self._sessions.node, now_s)
        elif session.outbound is not None:
            session.outbound.send_qos_0(delivery, now_s)

    def subscribe(self, inbound: Inbound, packet: Subscribe, now_s: float) -> bool:
        codes = tuple(
            self._subscribed(inbound, filter, options) for filter, options in packet.filters
        )
        self._answer(inbound, Suback(packet.packet_id, codes), now_s)
        return True

    def _subscribed(self, inbound: Inbound, filter: str, options: SubscriptionOptions) -> int:
        session, node = inbound.session, self._sessions.node
        if session.subscriptions.get(filter) is None:
            reason = session.account.charge(subscription_bytes(filter), node)
            if reason is not None:
                node.counters.drop(reason)
                return ReasonCode.QUOTA_EXCEEDED
        session.subscriptions.put(filter, options)
        if session.durable:
            node.journal.note(PutSubscription(session.client_id, filter, options))
        return options.qos

    def unsubscribe(self, inbound: Inbound, packet: Unsubscribe, now_s: float) -> bool:
        session, node = inbound.session, self._sessions.node
        for filter in packet.filters:
            if session.subscriptions.get(filter) is not None:
                session.subscriptions.drop(filter)
                session.account.charge(-subscription_bytes(filter), node)
                if session.durable:
                    node.journal.note(DropSubscription(session.client_id, filter))
        self._answer(inbound, Unsuback(packet.packet_id, (0,) * len(packet.filters)), now_s)
        return True

    def _answer(self, inbound: Inbound, answer: Suback | Unsuback, now_s: float) -> None:
        if not (inbound.session.durable or inbound.must_wait):
            inbound.answered(answer)
            return
        inbound.window.admit()

        def done(now_s: float) -> None:
            inbound.answered(answer)
            inbound.settle(1, 0)

        self._sessions.node.journal.append([], done, now_s)


class Connections(Lifecycle[ServerConnection]):
    """Begins and ends of connections; each CONNECT is accepted at once."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def connect(self, connection: ServerConnection, packet: Connect, now_s: float) -> None:
        sessions, settings = self._sessions, self._sessions.node.settings.session
        before = sessions.sessions.get(packet.client_id)
        if before is not None and before.outbound is not None:
            before.outbound.connection.end(ReasonCode.SESSION_TAKEN_OVER, now_s)
        granted = grant(packet, settings, sessions.node.window.limit)
        session, present = sessions.session_of(packet, granted.session_expiry_s)
        properties = connack_properties(packet, granted, settings, None)
        answer = Answer(granted, properties, present)
        connection.accept(session, answer, sessions.routing, now_s)
        if not connection.ended:
            connection.outbound.resume(now_s)

    def authenticating(self, connection: ServerConnection) -> bool:
        return False

    def authenticate(self, connection: ServerConnection, packet: Auth, now_s: float) -> None:
        raise AssertionError("no test authenticates")

    def paused(self, connection: ServerConnection, now_s: float) -> None:
        """The commit of its own packets lets it go on."""

    def failed(self, connection: ServerConnection, error: Exception, now_s: float) -> None:
        raise error

    def connection_ended(
        self, connection: ServerConnection, *, with_will: bool, now_s: float
    ) -> None:
        self._sessions.events.append("ended with will" if with_will else "ended")
        session = connection.session
        assert session is not None
        if connection.is_parting:
            connection.part()
        if not session.expiry_interval_s:
            self._sessions.end(session)

    def refused(
        self, connection: ServerConnection, reason: ReasonCode, why: str, now_s: float
    ) -> None:
        self._sessions.events.append(f"refused {reason.name}")

    def broken(self, connection: ServerConnection, error: PeerError) -> None:
        self._sessions.events.append(f"broken {error.reason_code.name}")

    def handshake_ended(self, connection: ServerConnection, now_s: float) -> None:
        self._sessions.events.append("handshake ended")
