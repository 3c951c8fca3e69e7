"""Peer: a client on the stage that keeps every rule of the standard, and checks the server's.

Unlike `stage.Client`, which is a mere wire, a peer has a session of its own. It repeats
unacknowledged packets after a reconnect, distinguishes repeated QoS 2 messages from new ones, and
answers only when the test calls for it. An action that a legal server never does raises
AssertionError:

- a packet identifier that is in use for another message, or sent twice on one connection
- more messages in flight than the peer's Receive Maximum
- DUP or Session Present where they must not be, or missing where they must be
- an acknowledgement of something that is not owed one, an error, or the end of the connection

Faults are switched on from outside: `close` (all bytes not yet received are lost), `cut_uplink`
(bytes that the peer sends from now on are lost), `wire.reads`.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol

from flowguard.codec.encoder import encode
from flowguard.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)
from flowguard.records import QOS_1_IDS
from flowguard.types import (
    MQTT_5,
    NO_PROPERTIES,
    Properties,
    Publish,
    ReasonCode,
    SubscriptionOptions,
)

BUSY = (ReasonCode.SERVER_BUSY, ReasonCode.SERVER_UNAVAILABLE)


class Wire(Protocol):
    """One connection, as a peer uses it: `stage.Client`, or a socket."""

    inbox: list[Packet]

    @property
    def is_closed(self) -> bool: ...

    def send_bytes(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class Opens(Protocol):
    """Where connections come from."""

    def open(self, version: int) -> Wire: ...


class Presence(Enum):
    """The peer's knowledge of its session on the server while it is offline."""

    ABSENT = "absent"
    PRESENT = "present"
    UNKNOWN = "unknown"


@dataclass
class Outgoing:
    """A message of ours between PUBLISH and the end of its exchange."""

    publish: Publish
    released: bool = False
    """True from PUBREC on: PUBREL is owed, or PUBCOMP awaited."""


@dataclass(eq=False)
class Peer:
    """One client id; see the module."""

    stage: Opens
    client_id: str
    version: int = MQTT_5
    expiry_s: int = 0xFFFF_FFFF
    receive_maximum: int = 65_535
    packet_id_max: int = 65_535
    """If it is small, an identifier is used again soon after its exchange has ended."""
    will: Will | None = None
    """The will of the next CONNECT."""
    on_delivered: Callable[["Peer", Publish], None] = lambda peer, publish: None
    on_acknowledged: Callable[["Peer", Publish], None] = lambda peer, publish: None
    on_refused: Callable[["Peer", Publish], None] | None = None
    """Called when the server rejects a message for lack of capacity, or None if it never may."""
    on_session_lost: Callable[["Peer"], None] = lambda peer: None
    """Called when the server's session has ended, or may have."""

    wire: Wire | None = None
    online: bool = False
    must_start_clean: bool = False
    """True while our half of the session has ended and the server's may still exist."""
    presence: Presence = Presence.ABSENT
    life: int = 0
    """Counts the sessions on our side."""
    uplink: bool = True
    server_receive_maximum: int = 65_535

    unacked: dict[int, Outgoing] = field(default_factory=dict)
    subscriptions: dict[str, int] = field(default_factory=dict)
    """Filters whose SUBACK has come, and nothing was asked since."""
    asked: dict[int, tuple[str, int | None]] = field(default_factory=dict)
    """SUBSCRIBE (filter, QoS) and UNSUBSCRIBE (filter, None) without an answer yet."""

    in_use: dict[int, bytes] = field(default_factory=dict)
    """Packet identifiers of the server, and the payload each stands for."""
    unmarked: set[int] = field(default_factory=set)
    """Those that a killed server may repeat without DUP: it does not wait for that mark."""
    in_flight: set[int] = field(default_factory=set)
    """Those that count against our Receive Maximum on this connection."""
    received: set[int] = field(default_factory=set)
    """QoS 2 identifiers between PUBLISH and PUBREL."""
    pubacks: deque[int] = field(default_factory=deque)
    pubrecs: deque[int] = field(default_factory=deque)
    pubcomps: list[int] = field(default_factory=list)

    _packet_id: int = 0
    _clean: bool = False
    _expected: Presence = Presence.UNKNOWN

    # --- connection --------------------------------------------------------------------------

    def connect(self, *, clean: bool = False) -> None:
        """Open a connection, whether or not there is one; CONNACK comes with `receive`."""
        self._leave()
        clean = clean or self.must_start_clean
        if self.version != MQTT_5 and not self.expiry_s:
            clean = True
        if clean:
            self.must_start_clean = True
            self._forget()
        self._clean = clean
        self._expected = Presence.ABSENT if clean or not self.expiry_s else self.presence
        if self.presence is Presence.ABSENT or clean:
            self.presence = Presence.UNKNOWN
        self.wire = self.stage.open(self.version)
        self.uplink = True
        properties = NO_PROPERTIES
        if self.version == MQTT_5:
            properties = Properties(
                session_expiry_interval=self.expiry_s, receive_maximum=self.receive_maximum
            )
        self._send(
            Connect(self.client_id, self.version, clean, will=self.will, properties=properties)
        )

    def close(self, last_bytes: bytes = b"") -> None:
        """The connection breaks; what was not received is lost."""
        wire = self.wire
        self._leave()
        if wire is not None:
            if last_bytes:
                wire.send_bytes(last_bytes)
            wire.close()

    def give_up(self) -> None:
        """The connection breaks and our half of the session ends: the next one starts clean."""
        self.close()
        self.must_start_clean = True
        self._forget()

    def lost(self) -> None:
        """The server is killed, and may have forgotten what it had just sent."""
        self._leave()
        self.unmarked = set(self.in_use)

    def disconnect(self, expiry_s: int | None = None) -> None:
        """The orderly end; with `expiry_s` the session's time to live changes."""
        properties = NO_PROPERTIES
        if expiry_s is not None:
            properties = Properties(session_expiry_interval=expiry_s)
            if not expiry_s:
                self.must_start_clean = True
                self._forget()
        self._send(Disconnect(0, properties))
        self.close()

    def cut_uplink(self) -> None:
        """All our bytes are lost from now on, until the next connection."""
        self.uplink = False

    def _leave(self) -> None:
        if self.wire is not None and not self.online and self._expected is Presence.UNKNOWN:
            # The answer that would have told whether there is a session is lost.
            self.must_start_clean = True
            self._forget()
        self.wire = None
        self.online = False
        self.in_flight.clear()
        self.pubacks.clear()
        self.pubrecs.clear()
        self.pubcomps.clear()
        self.asked.clear()
        if not self.is_durable:
            self.presence = Presence.ABSENT
            self._forget()

    @property
    def is_durable(self) -> bool:
        return self.expiry_s > 0 and (self.version == MQTT_5 or not self._clean)

    def _forget(self) -> None:
        """Our half of the session ends."""
        self.life += 1
        self.unacked.clear()
        self.subscriptions.clear()
        self.in_use.clear()
        self.received.clear()
        self.on_session_lost(self)

    def time_passed(self) -> None:
        """A session with an expiry interval may have ended while the peer was offline."""
        if not self.online and 0 < self.expiry_s < 0xFFFF_FFFF and self.version == MQTT_5:
            self.presence = Presence.UNKNOWN
            if self._expected is Presence.PRESENT:
                self._expected = Presence.UNKNOWN  # Our CONNECT waits at the gate meanwhile.
            self.on_session_lost(self)

    @property
    def is_sure_of_session(self) -> bool:
        """True if messages published now will reach this session."""
        return self.online or (self.presence is Presence.PRESENT and not self.must_start_clean)

    def _send(self, *packets: Packet) -> None:
        assert self.wire is not None
        if self.uplink:
            self.wire.send_bytes(b"".join(encode(packet, self.version) for packet in packets))

    # --- requests ----------------------------------------------------------------------------

    def next_packet_id(self) -> int:
        while True:
            self._packet_id = self._packet_id % self.packet_id_max + 1
            if self._packet_id not in self.unacked and self._packet_id not in self.asked:
                return self._packet_id

    @property
    def may_publish(self) -> int:
        """How many QoS 1 and 2 messages the server takes now; 3.1.1 knows no such limit."""
        return self.server_receive_maximum - len(self.unacked)

    def publish(self, *messages: Publish) -> None:
        """Send messages in one chunk; their packet identifiers are chosen here."""
        packets: list[Packet] = []
        for message in messages:
            packet_id = self.next_packet_id() if message.qos else 0
            packet = Publish(
                message.topic,
                message.payload,
                message.qos,
                message.retain,
                packet_id=packet_id,
                properties=message.properties if self.version == MQTT_5 else NO_PROPERTIES,
            )
            if packet_id:
                self.unacked[packet_id] = Outgoing(packet)
            packets.append(packet)
        self._send(*packets)

    def subscribe(self, filter: str, qos: int) -> None:
        self.subscriptions.pop(filter, None)
        packet_id = self.next_packet_id()
        self.asked[packet_id] = (filter, qos)
        self._send(Subscribe(packet_id, ((filter, SubscriptionOptions(qos)),)))

    def unsubscribe(self, filter: str) -> None:
        self.subscriptions.pop(filter, None)
        packet_id = self.next_packet_id()
        self.asked[packet_id] = (filter, None)
        self._send(Unsubscribe(packet_id, (filter,)))

    # --- acknowledgements: in the order of what they acknowledge, kind by kind ---------------

    def send_puback(self) -> None:
        """[MQTT-4.6.0-2]"""
        packet_id = self.pubacks.popleft()
        self.in_flight.discard(packet_id)
        del self.in_use[packet_id]
        self._send(Puback(packet_id))

    def send_pubrec(self) -> None:
        """[MQTT-4.6.0-3]"""
        self._send(Pubrec(self.pubrecs.popleft()))

    def send_pubcomp(self, index: int = 0) -> None:
        """The standard asks for no order here."""
        packet_id = self.pubcomps.pop(index % len(self.pubcomps))
        self.in_flight.discard(packet_id)
        self.in_use.pop(packet_id, None)
        self._send(Pubcomp(packet_id))

    def acknowledge(self, *, everything: bool = False, choice: int = 0) -> bool:
        """Send one acknowledgement that is owed, or all; False: there was none."""
        sent = False
        while True:
            owed: list[Callable[[], Any]] = []
            if self.pubacks:
                owed.append(self.send_puback)
            if self.pubrecs:
                owed.append(self.send_pubrec)
            if self.pubcomps:
                owed.append(lambda: self.send_pubcomp(choice))
            if not owed:
                return sent
            owed[choice % len(owed)]()
            sent = True
            if not everything:
                return True

    # --- receiving ---------------------------------------------------------------------------

    def receive(self, count: int = 1) -> int:
        """Look at the next `count` packets that have arrived; how many there were."""
        for done in range(count):
            wire = self.wire
            if wire is None or not wire.inbox:
                return done
            self._on_packet(wire.inbox.pop(0))
        return count

    def _on_packet(self, packet: Packet) -> None:
        assert self.online or isinstance(packet, Connack), f"{packet} before CONNACK"
        match packet:
            case Connack():
                self._on_connack(packet)
            case Publish():
                self._on_publish(packet)
            case Puback(packet_id, reason_code):
                self._on_puback(packet_id, reason_code)
            case Pubrec(packet_id, reason_code):
                self._on_pubrec(packet_id, reason_code)
            case Pubrel(packet_id):
                # A PUBREL that is repeated after our PUBCOMP was lost is answered all the same.
                self.received.discard(packet_id)
                self.pubcomps.append(packet_id)
            case Pubcomp(packet_id):
                outgoing = self.unacked.pop(packet_id)
                assert outgoing.released, "PUBCOMP before PUBREL"
            case Suback(packet_id, (code,)):
                self._on_suback(packet_id, code)
            case Unsuback(packet_id):
                _, qos = self.asked.pop(packet_id)
                assert qos is None
            case _:
                raise AssertionError(f"unexpected {packet}")

    def _is_refused(self, packet_id: int, reason_code: int) -> bool:
        """Return True if the server rejects our message for lack of capacity."""
        if not self._may_refuse(reason_code):
            assert reason_code < ReasonCode.UNSPECIFIED_ERROR
            return False
        outgoing = self.unacked.pop(packet_id)
        assert not outgoing.released, "refused after PUBREC"
        assert self.on_refused is not None
        self.on_refused(self, outgoing.publish)
        return True

    def _on_puback(self, packet_id: int, reason_code: int) -> None:
        if self._is_refused(packet_id, reason_code):
            return
        outgoing = self.unacked.pop(packet_id)
        assert outgoing.publish.qos == 1
        self.on_acknowledged(self, outgoing.publish)

    def _on_suback(self, packet_id: int, code: int) -> None:
        filter, qos = self.asked.pop(packet_id)
        if not self._may_refuse(code):
            assert qos is not None
            assert code == qos
            self._settled(filter, qos)

    def _may_refuse(self, code: int) -> bool:
        """3.1.1 has one code for all refusals, of SUBACK."""
        is_5 = self.version == MQTT_5
        refusal = ReasonCode.QUOTA_EXCEEDED if is_5 else ReasonCode.UNSPECIFIED_ERROR
        return code == refusal and self.on_refused is not None

    def _settled(self, filter: str, qos: int) -> None:
        """Subscribed for certain, unless the filter was asked about again meanwhile."""
        if all(other != filter for other, _ in self.asked.values()):
            self.subscriptions[filter] = qos

    def _on_connack(self, packet: Connack) -> None:
        assert not self.online
        if packet.reason_code != ReasonCode.SUCCESS:
            is_expected = packet.reason_code in BUSY or self._may_refuse(packet.reason_code)
            assert is_expected, packet
            assert not packet.session_present
            self._leave()
            return
        present = packet.session_present
        assert not (self._clean and present), "Session Present after Clean Start"
        assert self._expected is not Presence.PRESENT or present, "a session was lost"
        assert self._expected is not Presence.ABSENT or not present, "a session out of nowhere"
        if not present:
            self._forget()
        self.must_start_clean = False
        self.online = True
        self.presence = Presence.PRESENT if self.is_durable else Presence.ABSENT
        self.server_receive_maximum = packet.properties.receive_maximum or 65_535
        self._repeat()

    def _repeat(self) -> None:
        """[MQTT-4.4.0-1]: what was sent and not acknowledged, in its order."""
        again: list[Packet] = []
        for packet_id, outgoing in self.unacked.items():
            publish = outgoing.publish
            if outgoing.released:
                again.append(Pubrel(packet_id))
            else:
                again.append(replace(publish, dup=True))
        if again:
            self._send(*again)

    def _on_pubrec(self, packet_id: int, reason_code: int) -> None:
        if self._is_refused(packet_id, reason_code):
            return
        outgoing = self.unacked[packet_id]
        assert outgoing.publish.qos == 2
        if not outgoing.released:
            outgoing.released = True
            self.on_acknowledged(self, outgoing.publish)
        self._send(Pubrel(packet_id))

    def _on_publish(self, packet: Publish) -> None:
        packet_id = packet.packet_id
        if packet.qos == 0:
            assert not packet.dup  # [MQTT-3.3.1-2]
            self.on_delivered(self, packet)
            return
        assert packet_id not in self.in_flight, "sent twice on one connection"
        known = self.in_use.get(packet_id)
        assert known is None or known == packet.payload, "a packet identifier doubly in use"
        assert known is None or packet.dup or packet_id in self.unmarked, "repeated without DUP"
        self.unmarked.discard(packet_id)
        self.in_use[packet_id] = packet.payload
        self.in_flight.add(packet_id)
        if packet.qos == 1:
            self.pubacks.append(packet_id)
            self.on_delivered(self, packet)
        else:
            self.pubrecs.append(packet_id)
            if packet_id not in self.received:
                self.received.add(packet_id)
                self.on_delivered(self, packet)

    # --- invariants --------------------------------------------------------------------------

    def check(self, inflight_max: int) -> None:
        """Check the invariants of a quiet state; `inflight_max` is that of the server's
        settings."""
        if self.wire is None:
            return
        coming = sum(isinstance(packet, Publish) and packet.qos > 0 for packet in self.wire.inbox)
        limit = inflight_max
        if self.version == MQTT_5:
            limit = min(limit, self.receive_maximum)
        assert len(self.in_flight) + coming <= limit
        refused = any(
            isinstance(packet, Connack) and packet.reason_code for packet in self.wire.inbox
        )
        assert refused or not self.wire.is_closed, "the server ended a connection without reason"


class Member(Peer):
    """A client that has shared subscriptions only.

    Messages that are unacknowledged at QoS 1 when its connection ends may go to another member
    (4.8.2): the exchange has ended, and its identifier is free. A receiver keeps no state of QoS 1
    (4.1).
    """

    def _leave(self) -> None:
        super()._leave()
        self.in_use = {each: payload for each, payload in self.in_use.items() if each > QOS_1_IDS}
