"""The session package without a node: `Alone` is the part that a connection, and the next, needs.

Commits are done by `commit`, routing is a list, time stands still. The client is a decoder: `take`
returns the packets sent to it.
"""

from collections.abc import Callable
from typing import Any

from flowguard.bounds import Bounds
from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.encoder import encode
from flowguard.codec.packets import (
    Auth,
    Connect,
    Packet,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)
from flowguard.config import Settings
from flowguard.errors import PeerError
from flowguard.flow import NodeWindow
from flowguard.records import Append, Delivery, StoreOp
from flowguard.session.connection import ServerConnection
from flowguard.session.handshake import Answer, connack_properties, grant
from flowguard.session.host import IN_PROCESS, GroupCommit, Lifecycle, Routing
from flowguard.session.inbound.packets import Inbound
from flowguard.session.node_state import NodeState
from flowguard.session.owner import admit_message, use_disk
from flowguard.session.session import Session
from flowguard.types import MQTT_5, Properties, Publish, ReasonCode

NOW_S = 1_000.0


class Commits(GroupCommit):
    """Operations to be made durable by `commit`."""

    def __init__(self) -> None:
        self.ops: list[StoreOp] = []
        self.waiting: list[Callable[[float], None]] = []

    def note(self, op: StoreOp) -> None:
        self.ops.append(op)

    def append(
        self, ops: list[StoreOp], done: Callable[[float], None], now_s: float, name: str = ""
    ) -> None:
        self.ops += ops
        self.waiting.append(done)

    append_for_reader = append

    @property
    def is_idle(self) -> bool:
        return not self.waiting

    def commit(self) -> None:
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done(NOW_S)


class Routes(Routing[Inbound]):
    """Receives the packets of the client."""

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self.messages: list[Publish] = []
        self.answers: list[int] = []
        """The next answers of `publish`; without one, success at once."""

    def publish(self, inbound: Inbound, message: Publish, now_s: float) -> int:
        """Everything that an answer of IN_PROCESS is for waits for `commit`."""
        self.messages.append(message)
        code = self.answers.pop(0) if self.answers else ReasonCode.SUCCESS
        if code == IN_PROCESS:
            inbound.window.admit()

            def done(now_s: float) -> None:
                inbound.published(message, ReasonCode.SUCCESS)
                inbound.settle(1, 0)

            self._commits.append([], done, now_s)
        return code

    def subscribe(self, inbound: Inbound, packet: Subscribe, now_s: float) -> bool:
        for filter, options in packet.filters:
            inbound.session.subscriptions.put(filter, options)
        inbound.answered(Suback(packet.packet_id, tuple(o.qos for _, o in packet.filters)))
        return True

    def unsubscribe(self, inbound: Inbound, packet: Unsubscribe, now_s: float) -> bool:
        inbound.answered(Unsuback(packet.packet_id, (0,) * len(packet.filters)))
        return True


class Alone(Lifecycle[ServerConnection]):
    """One session, and its present connection."""

    def __init__(self, expiry_s: int = 0, spills: bool = False, **session: Any) -> None:
        bounds = Bounds.of(Settings.model_validate({"session": session}), 1 << 30)
        self.commits = Commits()
        self.node = NodeState(bounds, NodeWindow(), self.commits)
        if spills:
            use_disk(self.node)
        self.session = Session.create("c", self.node, expiry_s)
        self.expiry_s = expiry_s
        self.routes = Routes(self.commits)
        self.events: list[str] = []

    # --- the client ---

    def open(
        self, version: int = MQTT_5, will: Will | None = None, **properties: Any
    ) -> ServerConnection:
        """A connection after its CONNACK, which is in `take`."""
        self.connection = connection = ServerConnection(self.node, self, None, NOW_S)
        self._decoder = PacketDecoder(1 << 20, version, role="client")
        self._version = version
        if version == MQTT_5:
            properties.setdefault("session_expiry_interval", self.expiry_s)
        self.send(Connect("c", version, False, will=will, properties=Properties(**properties)))
        return connection

    def send(self, *packets: Packet) -> None:
        data = b"".join(encode(packet, self._version) for packet in packets)
        self.connection.receive_data(data, NOW_S)

    def take(self) -> list[Packet]:
        """All that the client was sent since the last time."""
        found: list[Packet] = []
        outbound = self.connection.outbound
        while outbound.outbox.frames or outbound.has_more:
            data = outbound.outbox.take() if outbound.outbox.frames else b""
            self._decoder.feed(data)
            while (packet := self._decoder.next()) is not None:
                found.append(packet)
            if outbound.has_more:
                outbound.pump(NOW_S)
            if not outbound.outbox.frames:
                break
        outbound.outbox.dirty = False
        return found

    def run(self) -> None:
        """Run the next turn of all connections with work left."""
        runnable, self.node.runnable = self.node.runnable, []
        for conversation in runnable:
            assert isinstance(conversation, ServerConnection)
            conversation.queued = False
            conversation.run(NOW_S)

    def run_replays(self) -> None:
        """Run the turn of all connections with more of a backlog."""
        while self.node.replays:
            self.node.replays.popleft().take_turn(NOW_S)

    def offer(self, qos: int, payload: bytes = b"x") -> int:
        """A message for the client, as routing gives it to its session; its position."""
        session = self.session
        delivery = Delivery(Publish("t", payload, qos), qos, False, (), float("inf"))
        if session.durable:
            reason = admit_message(session, delivery.size_bytes, self.node, NOW_S)
            if reason is not None:
                self.node.counters.drop(reason)
                return 0
        pos = session.take_position()
        if session.durable:
            self.commits.note(Append("c", pos, delivery))
        session.offer(pos, delivery, self.node, NOW_S)
        return pos

    # --- Lifecycle ---

    def connect(self, connection: ServerConnection, packet: Connect, now_s: float) -> None:
        """Accept at once; an earlier connection is taken over."""
        session, settings = self.session, self.node.settings.session
        if session.outbound is not None:
            session.outbound.connection.end(ReasonCode.SESSION_TAKEN_OVER, now_s)
        granted = grant(packet, settings, self.node.window.limit)
        properties = connack_properties(packet, granted, settings, None)
        present = session.next_pos > 1
        connection.accept(session, Answer(granted, properties, present), self.routes, now_s)
        if not connection.ended:
            connection.outbound.resume(now_s)

    def authenticating(self, connection: ServerConnection) -> bool:
        return False

    def authenticate(self, connection: ServerConnection, packet: Auth, now_s: float) -> None:
        self.events.append("authenticate")

    def paused(self, connection: ServerConnection, now_s: float) -> None:
        self.events.append("paused")

    def failed(self, connection: ServerConnection, error: Exception, now_s: float) -> None:
        raise error

    def connection_ended(
        self, connection: ServerConnection, *, with_will: bool, now_s: float
    ) -> None:
        self.events.append("ended with will" if with_will else "ended")

    def refused(
        self, connection: ServerConnection, reason: ReasonCode, why: str, now_s: float
    ) -> None:
        self.events.append(f"refused {reason.name}")

    def broken(self, connection: ServerConnection, error: PeerError) -> None:
        self.events.append(f"broken {error.reason_code.name}")

    def handshake_ended(self, connection: ServerConnection, now_s: float) -> None:
        self.events.append("handshake ended")
