"""ServerConnection: one network connection's life, from the first byte to the last.

    OPENED --CONNECT--> CONNECTING --accepted--> CONNECTED --> ENDED
       \\________________________\\_______________________________/
               malformed, refused, timed out, closed by either side

It has no rule of its own: `handshake`, `input`, `inbound` and `outbound` have them. The driver
calls `receive_data`, `receive_eof` and `run`, watches `wants_read`, takes the outbox of `outbound`,
and closes the socket once it `may_close` and its outbox is empty.
"""

from typing import final

from mypy_extensions import i32

from flowguard.access.rights import Principal
from flowguard.bounds import INPUT_FREE_BYTES
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Auth, Connack, Connect, Disconnect
from flowguard.errors import PeerError, ProtocolViolation
from flowguard.flow import AdmissionWindow, Pause, Reason
from flowguard.session.conversation import Conversation
from flowguard.session.handshake import Answer, connect_content_bytes, refusal
from flowguard.session.host import Lifecycle, Routing
from flowguard.session.inbound.input import Input
from flowguard.session.inbound.packets import Inbound
from flowguard.session.lives import End, reason_of
from flowguard.session.node_state import NodeState
from flowguard.session.outbound.messages import Outbound
from flowguard.session.session import Session
from flowguard.session.states import CONNECTED, CONNECTING, ENDED, OPENED, State
from flowguard.types import MQTT_5, NO_PROPERTIES, Properties, ReasonCode


@final
class ServerConnection(Conversation):
    """The server's end of one network connection; `transport` is its owner's, or None if closed."""

    __slots__ = (
        "_lifecycle",
        "connect_packet",
        "connected_s",
        "drained",
        "inbound",
        "input",
        "is_parting",
        "keep_alive_s",
        "last_received_s",
        "outbound",
        "principal",
        "queued",
        "receive_maximum",
        "received_bytes",
        "session",
        "state",
        "tenant",
        "transport",
        "waited_s",
        "waits",
        "watched_slot",
        "will_discarded",
    )

    def __init__(
        self,
        node: NodeState,
        lifecycle: "Lifecycle[ServerConnection]",
        transport: object,
        now_s: float,
        waited_s: float = 0.0,
    ) -> None:
        # `outbound` comes last: attributes set before `self` is passed on need no check (mypyc).
        self.keep_alive_s = 0.0
        self.connected_s = 0.0  # Time of its CONNACK.
        self.last_received_s = now_s
        self.waited_s = waited_s
        """Time in the kernel before it was accepted, seconds."""
        # Three bits and a small number share eight bytes.
        self.waits = False
        """True while its packets wait for a window: `NodeState.paused_count`."""
        self.will_discarded = False
        self.is_parting = False
        """True while the changes of its client's DISCONNECT are not durable."""
        self.receive_maximum: i32 = 0
        """The value of CONNACK; the setting `session.receive_maximum` is the limit."""
        self.state: State = OPENED
        self.input = Input(node)
        self.connect_packet: Connect | None = None
        self.inbound: Inbound | None = None
        self.drained = False
        """True while no complete packet of a connected client waits: the common case."""
        self.queued = False  # True while the connection is in the node's `runnable`.
        self._lifecycle = lifecycle
        self.transport: object | None = transport
        self.principal: Principal | None = None  # Until its client has proved its identity.
        self.session: Session | None = None
        self.received_bytes = 0  # Bytes from its peer, since it was accepted.
        self.watched_slot = 0
        """The slot in which the node's timer wheel checks this connection."""
        self.tenant = ""  # The user name; its clients share one turn.
        self.outbound = Outbound(self, node, MQTT_5)

    @property
    def window(self) -> AdmissionWindow | None:
        """The window that counts its packets, or None before CONNACK and after the end."""
        return None if self.inbound is None else self.inbound.window

    def limit_window(self, limit_max: int) -> None:
        if self.inbound is not None and self.inbound.window.limit_max != limit_max:
            self.inbound.window.limit_max = limit_max
            self.schedule()

    @property
    def version(self) -> int:
        return self.input.decoder.version

    @property
    def client_id(self) -> str | None:
        """The client id, chosen or assigned, or None before CONNECT and after the end."""
        if self.session is not None:
            return self.session.client_id
        return None if self.connect_packet is None else self.connect_packet.client_id

    @property
    def ended(self) -> bool:
        return self.state is ENDED

    @property
    def _node(self) -> NodeState:
        return self.outbound.node

    # --- back-pressure -----------------------------------------------------------------------

    @property
    def wants_read(self) -> bool:
        """True if more bytes may be read; False is back-pressure."""
        if self.outbound.outbox.owes_too_much:
            return False
        if self.drained:
            return True
        if self.state is ENDED or self.input.has_ended:
            return False
        return not self.held or self.input.stops_ahead(self._node) is None

    def read_bytes_max(self, *, blocked: bool = False) -> int:
        """Return how much to read at once, bytes.

        It is 0 for a peer that reads nothing (`blocked`), if its unread answers exceed the limit.
        """
        if blocked and not (self.state is ENDED or self.outbound.outbox.may_owe_more):
            return 0
        return self.input.read_bytes_max(self._node, is_held=self.held)

    @property
    def held(self) -> bool:
        """True while complete packets may wait in the buffer for a window, a turn or a CONNACK."""
        if self.queued or self.state is CONNECTING:
            return True
        return self.inbound is not None and not self.drained and not self.inbound.room()

    @property
    def blocked(self) -> bool:
        """True while a PUBLISH of the client waits for a slot in a subscriber's queue."""
        return self.inbound is not None and self.inbound.blocked

    def pauses(self) -> list[Pause]:
        """Return the reasons why packets of its client have to wait, or [] if none waits."""
        found = [Pause.SOCKET] if self.outbound.outbox.owes_too_much else []
        inbound = self.inbound
        if self.state is CONNECTING:
            found.append(Pause.CONNACK)
        elif inbound is not None and not self.drained:
            pause = inbound.pause()
            if pause is not None:
                found.append(pause)
        ahead = self.input.stops_ahead(self._node) if found and self.held else None
        return found if ahead is None else [*found, ahead]

    # --- bytes in ----------------------------------------------------------------------------

    def receive_data(self, data: bytes, now_s: float) -> bool:
        """Handle bytes from the peer, and return `wants_read`."""
        size_bytes = len(data)
        self._node.counters.bytes_received += size_bytes
        self.received_bytes += size_bytes
        inbound = self.inbound
        if self.drained and inbound is not None:
            try:
                if inbound.take(data, now_s):
                    self.last_received_s = now_s
                    outbox = self.outbound.outbox
                    return outbox.size_bytes <= outbox.limit_bytes
            except Exception as error:
                self.failed(error, now_s)
                return self.wants_read
        if self.state is ENDED:
            return False
        received = self.input
        received.decoder.feed(data)
        if not self.queued:
            self.run(now_s)
        received.unweighed_bytes += size_bytes
        if received.unweighed_bytes > INPUT_FREE_BYTES:
            if self.drained and not received.charged_bytes and received.decoder.is_empty:
                received.unweighed_bytes = 0  # The common case: whole packets.
            else:
                if received.has_progressed(size_bytes):
                    self.last_received_s = now_s
                self._weigh(now_s)
        return (
            self.drained and self.outbound.outbox.size_bytes <= self.outbound.outbox.limit_bytes
        ) or (self.wants_read)

    def _weigh(self, now_s: float) -> None:
        """Charge buffered input, unless the connection has ended."""
        if self.state is ENDED:
            return
        packets_bytes = 0
        if self.inbound is not None:
            packets_bytes = self.inbound.held_bytes
        elif self.connect_packet is not None:
            packets_bytes = connect_content_bytes(self.connect_packet)
        self.input.weigh(self, packets_bytes, self._node, now_s, is_held=self.held)

    def receive_eof(self, now_s: float) -> None:
        """Handle the end of input; buffered packets are still handled, then the connection ends."""
        self.input.has_ended, self.drained = True, False
        if not self.queued:
            self.run(now_s)

    def run(self, now_s: float) -> None:
        """Handle buffered packets, as far as window and state allow."""
        try:
            if self.state is CONNECTED:
                inbound = self.inbound
                assert inbound is not None
                # Packets that waited count as well: a paused client has not been silent.
                waited, counters = not self.drained, self._node.counters
                count = counters.messages_received
                self.drained = inbound.run(now_s)
                if waited or not self.drained or counters.messages_received != count:
                    self.last_received_s = now_s  # [MQTT-3.1.2-22]
                if not self.drained:
                    self._wait_for_room(inbound, now_s)
                elif self.waits:
                    self._wait_no_more()
            elif self.state is CONNECTING:
                self._run_handshake(now_s)
            elif self.state is OPENED:
                self._await_connect(now_s)
        except Exception as error:
            self.failed(error, now_s)
        if self.input.charged_bytes:
            self._weigh(now_s)
        if self.input.has_ended and not self._may_go_on():
            self._hang_up(now_s)

    def give_way(self, now_s: float) -> None:
        """End the connection to free its input, unless complete packets wait for a window."""
        if self.held:
            self._node.input_holders.hold(self, self.input.charged_bytes, now_s, claim_bytes=None)
            return
        self._node.counters.drop(Reason.NODE_INPUT_BYTES)
        if self.state is CONNECTED:
            self.end(ReasonCode.QUOTA_EXCEEDED, now_s)
        else:
            self.refuse(ReasonCode.QUOTA_EXCEEDED, now_s)

    def _wait_for_room(self, inbound: Inbound, now_s: float) -> None:
        """Handle the packets left in the next turn, or when the window opens."""
        if inbound.room():
            if self.waits:
                self._wait_no_more()
            self.schedule()
        elif self.state is not ENDED:
            if not self.waits:
                self.waits = True
                self._node.paused_count += 1
            if not inbound.blocked:
                self._lifecycle.paused(self, now_s)

    def _wait_no_more(self) -> None:
        self.waits = False
        self._node.paused_count -= 1

    def _may_go_on(self) -> bool:
        """Return True if buffered packets may still be handled after the end of input."""
        if self.state is ENDED or not self.held or self.blocked:
            return False
        inbound = self.inbound
        return (self.input.decoder.buffered_bytes if inbound is None else inbound.waiting_bytes) > 0

    def _hang_up(self, now_s: float) -> None:
        """End the connection of a client that has left; a waiting PUBLISH is discarded."""
        try:
            packet = self.inbound.last_word() if self.inbound and self.blocked else None
            if packet is not None:
                self.client_disconnects(packet, now_s)
            else:
                self.end(None, now_s)
        except Exception as error:
            self.failed(error, now_s)

    def schedule(self) -> None:
        if not self.queued and self.state is not ENDED:
            self.queued = True
            self._node.runnable.append(self)

    # --- handshake ---------------------------------------------------------------------------

    def sent_so_far(self) -> bytes:
        """Return all bytes of a client that waits for CONNACK, for another worker."""
        assert self.connect_packet is not None
        return encode(self.connect_packet, self.version) + self.input.decoder.rest()

    def _await_connect(self, now_s: float) -> None:
        packet = self.input.decoder.next()
        if packet is None:
            return
        assert isinstance(packet, Connect)
        self.outbound.version = packet.version
        self.outbound.limit_packets(packet.properties)
        reason = refusal(packet, self._node.settings.session)
        if reason is not None:
            self.refuse(reason, now_s)
            return
        self.connect_packet = packet
        self.state = CONNECTING
        self._weigh(now_s)
        if self.input.charged_bytes and self._node.input_holders.is_over:
            self._node.counters.drop(Reason.NODE_INPUT_BYTES)
            self.refuse(ReasonCode.QUOTA_EXCEEDED, now_s)
            return
        self._lifecycle.connect(self, packet, now_s)

    def _run_handshake(self, now_s: float) -> None:
        """Handle packets before CONNACK, only for enhanced authentication [MQTT-4.12.0-1]."""
        if not self._lifecycle.authenticating(self):
            return
        packet = self.input.decoder.next()
        match packet:
            case None:
                return
            case Auth():
                self._lifecycle.authenticate(self, packet, now_s)
            case Disconnect():
                self.end(None, now_s)
            case _:
                raise ProtocolViolation(f"{type(packet).__name__} during authentication")

    def accept(
        self, session: Session, answer: Answer, routing: "Routing[Inbound]", now_s: float
    ) -> None:
        """Answer CONNACK 0x00 and serve `session`; `Outbound.resume` is the caller's next call.

        A client that allows no packet as large as its CONNACK is closed instead.
        """
        assert self.connect_packet is not None
        self.session = session
        self.keep_alive_s = answer.granted.keep_alive_s * 1.5  # [MQTT-3.1.2-22]
        self.outbound.attach(session, self.connect_packet.properties)
        session.outbound = self.outbound
        self.inbound = Inbound(self, self.input.decoder, self.outbound, session, routing)
        self.receive_maximum = answer.granted.receive_maximum
        self.input.decoder.packet_size_max = answer.granted.packet_size_max
        self.state, self.last_received_s, self.connected_s = CONNECTED, now_s, now_s
        self.tenant = self.connect_packet.username or ""
        self._node.counters.lives.began(self, answer.present)
        self.connect_packet = None
        connack = Connack(answer.present, ReasonCode.SUCCESS, answer.properties)
        if not self.outbound.write_packet(connack):
            self.will_discarded = True  # It was never accepted.
            self.end(None, now_s)
            return
        if self.input.decoder.buffered_bytes:
            self.schedule()
        if self.input.charged_bytes:
            self._weigh(now_s)

    def refuse(
        self,
        reason: ReasonCode,
        now_s: float,
        properties: Properties = NO_PROPERTIES,
        why: str = "",
    ) -> None:
        """Answer CONNACK with an error and end [MQTT-3.1.4-2] [MQTT-3.2.2-7].

        `why` is for the log; an unknown client gets no more than the reason code.
        """
        self._lifecycle.refused(self, reason, why, now_s)
        # [MQTT-3.2.2-6] [v3 MQTT-3.2.2-4] session present is 0 with an error.
        if not self.outbound.write_packet(Connack(False, reason, properties)):
            self.outbound.write_packet(Connack(False, reason))  # [MQTT-3.2.2-20]
        self.end(None, now_s)

    def failed(self, error: Exception, now_s: float) -> None:
        """End the connection after an error of the peer, a hook or flowguard."""
        if isinstance(error, PeerError):
            self._broken(error, now_s)
        else:
            self._lifecycle.failed(self, error, now_s)

    def _broken(self, error: PeerError, now_s: float) -> None:
        """Answer a peer's error, in this one place [MQTT-4.13.1-1]."""
        self._node.counters.malformed += 1
        if self.state is OPENED:
            if (
                error.reason_code is ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
                or self.version == MQTT_5
            ):
                self.outbound.version = self.version or MQTT_5
                self.refuse(error.reason_code, now_s, why=error.why)
                return
            self._lifecycle.broken(self, error)
            self.end(None, now_s)
        else:
            self._lifecycle.broken(self, error)
            self.end(error.reason_code, now_s, error.why)

    # --- end ---------------------------------------------------------------------------------

    def authenticates(self, packet: Auth, now_s: float) -> None:
        self._lifecycle.authenticate(self, packet, now_s)

    def client_disconnects(self, packet: Disconnect, now_s: float) -> None:
        """Handle DISCONNECT from the client, the orderly end ([MQTT 5.0, 3.14])."""
        session = self.session
        assert session is not None
        before_s = session.expiry_interval_s
        expiry_s = packet.properties.session_expiry_interval
        if expiry_s is not None:
            if expiry_s and not session.expiry_interval_s:
                # [MQTT-3.14.2-2]
                raise ProtocolViolation("session expiry cannot be set at DISCONNECT if it was 0")
            limit_s = self._node.settings.session.session_expiry_max_s
            session.expiry_interval_s = min(expiry_s, limit_s)
        # [MQTT-3.14.4-3] [MQTT-3.1.2-10] only a normal disconnection discards the will.
        self.will_discarded = packet.reason_code == ReasonCode.SUCCESS
        changes_will = self.will_discarded and session.will is not None
        changes_expiry = session.expiry_interval_s != before_s
        self.is_parting = session.durable and (changes_will or changes_expiry)
        self.end(None, now_s, left=ReasonCode(packet.reason_code))

    @property
    def may_close(self) -> bool:
        """True if its socket may be closed, once its outbox is sent."""
        return self.state is ENDED and not self.is_parting

    def part(self) -> None:
        """Let its socket close: the changes of DISCONNECT are durable, or took too long."""
        self.is_parting = False
        self._node.dirty.append(self)

    def end(
        self, reason: ReasonCode | None, now_s: float, why: str = "", left: ReasonCode | None = None
    ) -> None:
        """End it; `left` is the code of the client's own DISCONNECT, `why` with 0x9C a server."""
        state = self.state
        if state is ENDED:
            return
        if reason is not None and self.version == MQTT_5:
            self._say_goodbye(state, reason, why)
        self.state = ENDED
        self.drained = False
        if self.waits:
            self._wait_no_more()
        self.input.forget(self, self._node, now_s)
        node, session = self._node, self.session
        if session is not None and session.outbound is self.outbound:
            session.outbound = None
            session.queue.leave()
            node.progress.pop(session, None)
        self.outbound.detach()
        if self.inbound is not None:
            self.inbound.detach()
            self.inbound = None
        if state is CONNECTED:
            assert session is not None
            name, by = reason_of(reason, left, is_lost=self.input.has_ended)
            peer = getattr(self.transport, "peer", str)
            end = End(now_s, name, by, now_s - self.connected_s, why, peer())
            node.counters.lives.ended(self, session.client_id, end)
            self._lifecycle.connection_ended(self, with_will=not self.will_discarded, now_s=now_s)
        else:
            self._lifecycle.handshake_ended(self, now_s)
        if not self.is_parting:
            node.dirty.append(self)

    def _say_goodbye(self, state: State, reason: ReasonCode, why: str) -> None:
        properties = Properties(reason_string=why) if why else NO_PROPERTIES
        if why and reason is ReasonCode.USE_ANOTHER_SERVER:
            properties = Properties(server_reference=why)
        packet: Disconnect | Connack = Disconnect(reason, properties)
        if state is not CONNECTED:
            if reason is ReasonCode.SERVER_SHUTTING_DOWN:
                reason = ReasonCode.SERVER_UNAVAILABLE  # CONNACK has no 0x8B.
            packet = Connack(False, reason, properties)
        if not self.outbound.write_packet(packet) and why:
            self._say_goodbye(state, reason, "")
