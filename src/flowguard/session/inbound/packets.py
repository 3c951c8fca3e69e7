"""From the client: rules of the standard and the admission window, packet by packet.

`run` decodes and handles buffered packets until the window is full. A full window pauses the
connection: waiting packets stay undecoded in the buffer, in order. Only the control lane goes on
(PINGREQ and acknowledgements), so that a paused client stays alive and can finish its exchanges. If
packets cost more than one unit, those of the same batch that no longer fit are held, decoded, until
the window opens. One run handles at most `RUN_MAX` packets, which limits the time slice of one
client. Bursts (`codec.burst`) are handled as one if no packet needs a check of its own. A run may
have more packets in bursts, as their messages are sent together.

A PUBLISH for a full queue of a subscriber pauses the connection in the same way (`blocked`).
"""

from collections.abc import Iterator
from typing import Final, final

from mypy_extensions import i32

from flowguard.codec.bodies import count_pubacks
from flowguard.codec.burst import BURST_MIN
from flowguard.codec.decoder import BATCH_MAX, PacketDecoder
from flowguard.codec.encoder import puback_frame
from flowguard.codec.packets import (
    Auth,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    publishes_count,
)
from flowguard.errors import ProtocolViolation
from flowguard.flow import AdmissionWindow, Pause
from flowguard.session.conversation import Conversation
from flowguard.session.host import IN_PROCESS, WAITS, Routing
from flowguard.session.inbound.acknowledging import on_puback, on_pubacks, on_pubcomp, on_pubrec
from flowguard.session.inbound.exchanges import InboundExchanges
from flowguard.session.outbound.aliases import ClientAliases
from flowguard.session.outbound.messages import Outbound
from flowguard.session.session import Session
from flowguard.session.state_bytes import INBOUND_ID_BYTES, packet_bytes
from flowguard.types import MQTT_5, NO_PROPERTIES, Publish, ReasonCode

CONTROL: Final = frozenset((Pingreq, Pubrec, Pubrel, Pubcomp))
"""Packets that, like PUBACK, never wait for a window."""
RUN_MAX: Final = 16
"""Maximum number of packets of a run; with a full window, other clients would wait for 100."""
BURST_SHARE: Final = 4
"""Packets in bursts that a run may have for each single packet, as they are less work."""
LONG_WAY_RUNS: Final = 8
"""Runs without a search for bursts after a rejected one, as the next would mostly be, too."""
LAST_PACKETS_MAX: Final = 100
"""Packets that are searched at once for DISCONNECT."""
RUN_WORK: Final = 4
"""Work of reading a client once and of sending its answers, packets: one packet alone costs as much
as five among many."""


@final
class Inbound(InboundExchanges):
    """The incoming half of one accepted connection."""

    __slots__ = (
        "_aliases",
        "_connection",
        "_decoder",
        "_held",
        "_long_way",
        "_routing",
        "blocked",
        "extra",
        "window",
    )

    def __init__(
        self,
        connection: Conversation,
        decoder: PacketDecoder,
        outbound: Outbound,
        session: Session,
        routing: "Routing[Inbound]",
    ) -> None:
        super().__init__(outbound, session)
        self._connection = connection
        self._decoder = decoder
        self._routing = routing
        self.window = AdmissionWindow(outbound.node.window, session.window_max)
        self._held: list[Packet] | None = None
        self._long_way: i32 = 0
        """Number of further runs that go packet by packet."""
        self.blocked = False
        """True while the next packet, a PUBLISH, waits for capacity in a queue."""
        self.extra = 0
        """Cost above one unit of the last packet that was handled at once."""
        self._aliases: ClientAliases | None = None

    def take(self, data: bytes, now_s: float) -> bool:
        """Handle a chunk that is one PUBLISH, or PUBACKs; False if it is not, or has to wait."""
        packet = self._decoder.at_sight(data)
        if packet is None:
            return self._take_pubacks(data, now_s)
        counters = self._outbound.node.counters
        sent = counters.publish_sent
        if not (self.window.room() and self._publish(packet, now_s)):
            return False
        self.extra = 0
        self.window.worked(RUN_WORK + 1 + counters.publish_sent - sent)
        if self._outbound.node.window.credits is not None:
            self.window.spend(1)
        counters.messages_received += 1
        return True

    def _take_pubacks(self, data: bytes, now_s: float) -> bool:
        outbound = self._outbound
        count = count_pubacks(data) if self._decoder.is_empty else 0
        if not count:
            return False
        on_pubacks(outbound, data, now_s)
        outbound.node.counters.messages_received += count
        return True

    def room(self) -> int:
        """Return the number of packets that may be handled now."""
        return 0 if self.blocked else self.window.room()

    def pause(self) -> Pause | None:
        """Return the reason why no packet may be handled, or None if one may."""
        return Pause.QUEUE if self.blocked else self.window.pause()

    def go_on(self) -> None:
        """Route the PUBLISH again in the next turn, as the queue may have capacity."""
        self.blocked = False
        self._connection.schedule()

    def run(self, now_s: float) -> bool:
        """Handle buffered packets; True if no complete one is left, False if the window is full."""
        counters = self._outbound.node.counters
        received, sent = counters.publish_received, counters.publish_sent
        is_drained = self._run(now_s)
        received = counters.publish_received - received
        if received:
            work = RUN_WORK + received + counters.publish_sent - sent
            self.window.worked(work, received)
        return is_drained

    def _run(self, now_s: float) -> bool:
        """See `run`.

        There is no loop: it handles the held packets and one batch from the decoder. The batch
        leaves capacity only if no valid packet is left, or if it has the maximum length.
        """
        decoder = self._decoder
        most = self.room()
        room = min(most, RUN_MAX)
        held = self._held
        if held is not None and room > 0:
            self._held = None
            room = self._serve(held, room, now_s)
            most = self.room()
        if room >= BURST_MIN:
            room = self._take_bursts(room, min(most, BURST_SHARE * room), now_s)
        if room > 0:
            packets = decoder.next_batch(room)
            self._outbound.node.counters.messages_received += len(packets)
            if self._serve(packets, room, now_s) > 0 and len(packets) < BATCH_MAX:
                if decoder.has_failed:
                    decoder.fail()
                self.window.rest(waits=False)
                return True
        if self._outbound.ended:
            return True
        if self.room():
            waits = self.waiting_bytes > 0
        else:
            more = self._control_lane(now_s)
            waits = more or self._held is not None or decoder.has_deferred
        self.window.rest(waits)
        return not waits

    def _take_bursts(self, room: int, left: int, now_s: float) -> int:
        """Handle bursts of `left` packets at most, each as one; return the capacity for others."""
        decoder, routing, outbound = self._decoder, self._routing, self._outbound
        window = self.window
        if self._long_way:
            self._long_way -= 1
            return room
        while left >= BURST_MIN and (burst := decoder.burst(min(left, RUN_MAX))) is not None:
            routed = routing.publish_burst(self, burst, now_s)
            if routed is None:
                if room > 0:  # Else earlier packets may be the reason: they leave first.
                    self._long_way = LONG_WAY_RUNS
                break
            decoder.take(routed)
            count = routed.count
            outbound.node.counters.messages_received += count
            window.spend(count)
            room -= count + self.extra
            left -= count + BURST_SHARE * self.extra
            self.extra = 0
            if window.in_process:  # A burst through the store is no less work.
                left = room = min(room, window.room())
        return room

    def _serve(self, packets: list[Packet], room: int, now_s: float) -> int:
        """`_handle`, counted if a policy limits a rate."""
        room = self._handle(packets, room, now_s)
        if self._outbound.node.window.credits is not None:
            self.window.spend(publishes_count(packets) - publishes_count(self._held or []))
        return room

    def _handle(self, packets: list[Packet], room: int, now_s: float) -> int:
        """Handle a batch, within the capacity given; return the capacity that is left."""
        window = self.window
        routing = self._routing
        for packet in (waiting := iter(packets)):
            if isinstance(packet, Publish):
                room -= 1
                if not packet.qos and packet.properties is NO_PROPERTIES:
                    waits = routing.publish(self, packet, now_s) == WAITS
                else:
                    waits = not self._publish(packet, now_s)
            elif isinstance(packet, Puback):
                on_puback(self._outbound, packet.packet_id, now_s)
                continue
            else:
                taken = self._other(packet, now_s)
                if self._outbound.ended:
                    return 0
                waits = taken == WAITS
                room -= taken
            if waits:
                self._hold([packet], waiting, now_s)
                room = 0
                break
            if window.in_process or self.extra:
                # Capacity that was freed meanwhile is for another batch: this one has its own.
                room = min(room - self.extra, window.room())
                self.extra = 0
                if room <= 0:
                    self._hold([], waiting, now_s)
        return room

    @property
    def waiting_bytes(self) -> int:
        """Number of bytes read and not handled; a held packet counts as one."""
        return self._decoder.buffered_bytes + len(self._held or ())

    @property
    def held_bytes(self) -> int:
        """Memory of the held packets, bytes."""
        return sum(map(packet_bytes, self._held)) if self._held else 0

    def _hold(self, held: list[Packet], waiting: Iterator[Packet], now_s: float) -> None:
        """Hold the rest of a batch, except packets of the control lane."""
        for packet in waiting:
            if isinstance(packet, Puback):
                on_puback(self._outbound, packet.packet_id, now_s)
            elif packet.__class__ in CONTROL:
                self._other(packet, now_s)
            else:
                held.append(packet)
        self._held = held or None

    def _control_lane(self, now_s: float) -> bool:
        """Handle packets that never wait, ahead of the others.

        Return True if one run cannot handle all of them, and another one follows.
        """
        packet_ids = self._decoder.take_pubacks()
        self._outbound.node.counters.messages_received += len(packet_ids)
        for packet_id in packet_ids:
            on_puback(self._outbound, packet_id, now_s)
        if not self._decoder.buffered_bytes:
            return False
        for _ in range(BATCH_MAX):
            packet = self._decoder.next_control()
            if packet is None:
                return False
            self._outbound.node.counters.messages_received += 1
            if isinstance(packet, Puback):
                on_puback(self._outbound, packet.packet_id, now_s)
            else:
                self._other(packet, now_s)
        self._connection.schedule()
        return True

    def _other(self, packet: Packet, now_s: float) -> int:
        """Handle all packets but PUBLISH and PUBACK; return 1 if it counts in the window, else 0.

        Return WAITS if it has to wait for the window, and was not handled.
        """
        match packet:
            case Pubrec():
                on_pubrec(self._outbound, packet.packet_id, packet.reason_code, now_s)
            case Pubrel():
                self._pubrel(packet.packet_id, now_s)
            case Pubcomp():
                on_pubcomp(self._outbound, packet.packet_id, now_s)
            case Pingreq():
                self._outbound.write_packet(Pingresp())  # [MQTT-3.12.4-1]
            case Subscribe():
                return 1 if self._routing.subscribe(self, packet, now_s) else WAITS
            case Unsubscribe():
                return 1 if self._routing.unsubscribe(self, packet, now_s) else WAITS
            case Disconnect():
                self._connection.client_disconnects(packet, now_s)
            case Auth():
                self._connection.authenticates(packet, now_s)
            case _:
                # [MQTT-3.1.0-2] a second CONNECT, or a packet only servers send.
                raise ProtocolViolation(f"{type(packet).__name__} is not allowed here")
        return 0

    # --- PUBLISH -----------------------------------------------------------------------------

    def _publish(self, packet: Publish, now_s: float) -> bool:
        """Handle a PUBLISH; return False if it has to wait for the window or a queue."""
        if packet.properties is not NO_PROPERTIES and packet.properties.topic_alias is not None:
            packet = self._resolve_alias(packet)
        qos = packet.qos
        if qos == 0:
            return self._routing.publish(self, packet, now_s) != WAITS
        limits = self._outbound.node
        if qos > limits.maximum_qos:
            # [MQTT-3.2.2-11]
            raise ProtocolViolation("QoS above the maximum", ReasonCode.QOS_NOT_SUPPORTED)
        if qos == 2 and self._is_repeated(packet.packet_id):
            return True
        # CONNACK may have had less, but a reconnecting client repeats all unacknowledged ones.
        if self.unacknowledged >= limits.receive_maximum and self._outbound.version == MQTT_5:
            # [MQTT-3.3.4-7]
            raise ProtocolViolation(
                f"more than {limits.receive_maximum} unacknowledged PUBLISH",
                ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
            )
        if qos == 1:
            reason_code = self._routing.publish(self, packet, now_s)
        else:
            reason_code = self._publish_once(packet, now_s)
        if qos == 1 and not reason_code:
            self._outbound.outbox.write(puback_frame(packet.packet_id))
        elif reason_code == IN_PROCESS:
            self._count(packet)
        elif reason_code == WAITS:
            return False
        else:
            self._acknowledge(packet, reason_code)
        return True

    def _resolve_alias(self, packet: Publish) -> Publish:
        if self._aliases is None:
            self._aliases = ClientAliases(self.session.account, self._outbound.node)
        return self._aliases.resolve(packet)

    def _publish_once(self, packet: Publish, now_s: float) -> int:
        """Route a QoS 2 PUBLISH, or reject it if no memory is left for its identifier."""
        session = self.session
        reason = session.account.charge(INBOUND_ID_BYTES, self._outbound.node)
        if reason is not None:
            self._outbound.node.counters.drop(reason)
            if self._outbound.version != MQTT_5:
                raise ProtocolViolation(
                    "packet identifier exceeds the memory limit of the session",
                    ReasonCode.QUOTA_EXCEEDED,
                )
            return ReasonCode.QUOTA_EXCEEDED
        reason_code: int = ReasonCode.UNSPECIFIED_ERROR
        try:
            reason_code = self._routing.publish(self, packet, now_s)
        finally:
            if reason_code >= ReasonCode.UNSPECIFIED_ERROR or reason_code == WAITS:
                session.account.charge(-INBOUND_ID_BYTES, self._outbound.node)
        return reason_code

    def last_word(self) -> Disconnect | None:
        """Return the DISCONNECT behind a waiting PUBLISH of a client that has left, or None."""
        packets = self._held or self._decoder.next_batch(LAST_PACKETS_MAX)
        while packets:
            for packet in packets:
                if isinstance(packet, Disconnect):
                    return packet
            packets = self._decoder.next_batch(LAST_PACKETS_MAX)
        return None

    def detach(self) -> None:
        """End the turn, the aliases and waiting packets of the connection.

        Work in process keeps this half of the connection until its commit.
        """
        self.session.weight = self.window.weight
        self.window.rest(waits=False)
        self._held = None
        self._decoder.clear()
        if self._aliases is not None:
            self._aliases.clear()
            self._aliases = None

    # --- SUBSCRIBE, UNSUBSCRIBE --------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """True if the connection has ended."""
        return self._outbound.ended

    def failed(self, error: Exception, now_s: float) -> None:
        """End the connection after an exception of a background task for one of its packets."""
        self._connection.failed(error, now_s)

    def answered(self, answer: Suback | Unsuback) -> None:
        """Send the answer to SUBSCRIBE or UNSUBSCRIBE [MQTT-3.8.4-1] [MQTT-3.10.4-4]."""
        if not self._outbound.ended and not self._outbound.write_packet(answer):
            answer.properties = NO_PROPERTIES  # [MQTT-3.9.2-1] without a reason it may fit.
            self._outbound.write_packet(answer)

    @property
    def must_wait(self) -> bool:
        """True if work without a commit must wait for commits of earlier work of its client."""
        return self.window.in_process > 0 and not self._outbound.node.journal.is_idle

    def settle(self, cost: int, size_bytes: int) -> None:
        """Remove a packet from the window; a paused connection goes on in the next turn."""
        self.window.settle(cost, size_bytes)
        if self.waiting_bytes and not self.blocked:
            self._connection.schedule()
