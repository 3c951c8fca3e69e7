"""From the client: rules of the standard and the admission window, packet by packet.

`run` decodes and handles what is buffered until the window has no room. A window without room
pauses the conversation: packets that wait stay undecoded in the buffer, in order, and only the
control lane goes on (PINGREQ and acknowledgements), so that a paused client is neither cut off for
silence nor kept from finishing what it received. Where packets turn out to weigh more than one,
those of the same batch that no longer fit are held, decoded, for the next room. One run handles at
most `RUN_MAX` packets, which bounds the slice of the reactor that one client gets. Bursts
(`codec.burst`) are handled as one, where nothing about them needs a look at each packet, and more
of them in a run: what they bring leaves together.

A PUBLISH for which a subscriber has no room pauses the conversation in the same way (`blocked`).
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
"""With PUBACK, what never waits for a window."""
RUN_MAX: Final = 16
"""Packets of a run: with a full window of them everybody else would wait for 100."""
BURST_SHARE: Final = 4
"""So many packets of a run may come in bursts for each that may come by itself: less work."""
LONG_WAY_RUNS: Final = 8
"""Runs without a look for bursts, once one was refused: most times the next would be, too."""
LAST_PACKETS_MAX: Final = 100
"""Looked through at once."""
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
        """So many runs more go packet by packet."""
        self.blocked = False
        """True while a PUBLISH of it, the next packet to handle, waits for room in a queue."""
        self.extra = 0
        """What the packet that was handled at once last weighed above one."""
        self._aliases: ClientAliases | None = None

    def take(self, data: bytes, now_s: float) -> bool:
        """Handle a chunk that is one PUBLISH, or PUBACKs; False: it is not, or it has to wait."""
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
        """How many packets may be handled now."""
        return 0 if self.blocked else self.window.room()

    def pause(self) -> Pause | None:
        """Why there is no `room`; None: there is some."""
        return Pause.QUEUE if self.blocked else self.window.pause()

    def go_on(self) -> None:
        """There may be room in the queue: the PUBLISH is routed anew, in the next turn."""
        self.blocked = False
        self._connection.schedule()

    def run(self, now_s: float) -> bool:
        """Handle buffered packets; True: nothing complete is left, False: the window is spent."""
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

        No loop, so there is nothing to spin: what waits decoded, and a batch from the decoder. That
        one leaves room over only where no good packet is left, or where it is as long as can be.
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
        """Handle bursts, of `left` packets at most, each as one; the room left for what is none."""
        decoder, routing, outbound = self._decoder, self._routing, self._outbound
        window = self.window
        if self._long_way:
            self._long_way -= 1
            return room
        while left >= BURST_MIN and (burst := decoder.burst(min(left, RUN_MAX))) is not None:
            routed = routing.publish_burst(self, burst, now_s)
            if routed is None:
                if room > 0:  # Else what came before may be in the way: it leaves first.
                    self._long_way = LONG_WAY_RUNS
                break
            decoder.take(routed)
            count = routed.count
            outbound.node.counters.messages_received += count
            window.spend(count)
            room -= count + self.extra
            left -= count + BURST_SHARE * self.extra
            self.extra = 0
            if window.in_process:  # What goes through the store is no less work.
                left = room = min(room, window.room())
        return room

    def _serve(self, packets: list[Packet], room: int, now_s: float) -> int:
        """`_handle`, counted where a policy limits a rate."""
        room = self._handle(packets, room, now_s)
        if self._outbound.node.window.credits is not None:
            self.window.spend(publishes_count(packets) - publishes_count(self._held or []))
        return room

    def _handle(self, packets: list[Packet], room: int, now_s: float) -> int:
        """Handle a batch that found so much room; the room that is left for another one."""
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
                # Room that appeared meanwhile is for another batch: this one was cut to its own.
                room = min(room - self.extra, window.room())
                self.extra = 0
                if room <= 0:
                    self._hold([], waiting, now_s)
        return room

    @property
    def waiting_bytes(self) -> int:
        """Bytes read and not handled; a packet that is held counts as one."""
        return self._decoder.buffered_bytes + len(self._held or ())

    @property
    def held_bytes(self) -> int:
        """Memory of the packets held, bytes."""
        return sum(map(packet_bytes, self._held)) if self._held else 0

    def _hold(self, held: list[Packet], waiting: Iterator[Packet], now_s: float) -> None:
        """The batch stops here: what is left of it waits, but for the control lane's."""
        for packet in waiting:
            if isinstance(packet, Puback):
                on_puback(self._outbound, packet.packet_id, now_s)
            elif packet.__class__ in CONTROL:
                self._other(packet, now_s)
            else:
                held.append(packet)
        self._held = held or None

    def _control_lane(self, now_s: float) -> bool:
        """Serve what never waits, ahead of the packets that do.

        True: there was more of it than one run takes, and another one follows.
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
        """Everything but PUBLISH and PUBACK; 1 when the packet counts against the window.

        WAITS: it has to wait for room there, and was not handled.
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
        """False: it has to wait for room in the window or in a queue, and was not handled."""
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
        # CONNACK may have told less, but who comes back repeats all that it was allowed before.
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
        """QoS 2: the identifier is kept until PUBREL; a PUBLISH without room for it is refused."""
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
        """DISCONNECT behind a PUBLISH that is not handled any more: its client has left."""
        packets = self._held or self._decoder.next_batch(LAST_PACKETS_MAX)
        while packets:
            for packet in packets:
                if isinstance(packet, Disconnect):
                    return packet
            packets = self._decoder.next_batch(LAST_PACKETS_MAX)
        return None

    def detach(self) -> None:
        """The connection is over, its turn, its aliases and what was not handled; work in process
        keeps this half of it until its commit."""
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
        """The connection is over."""
        return self._outbound.ended

    def failed(self, error: Exception, now_s: float) -> None:
        """Work on one of its packets, in a chore, has met its end."""
        self._connection.failed(error, now_s)

    def answered(self, answer: Suback | Unsuback) -> None:
        """The work for a SUBSCRIBE or UNSUBSCRIBE is done [MQTT-3.8.4-1] [MQTT-3.10.4-4]."""
        if not self._outbound.ended and not self._outbound.write_packet(answer):
            answer.properties = NO_PROPERTIES  # [MQTT-3.9.2-1] without words it may fit.
            self._outbound.write_packet(answer)

    @property
    def must_wait(self) -> bool:
        """Whether work that needs no commit has to keep its place behind work that does: only
        behind its own client's, the order of others is nobody's."""
        return self.window.in_process > 0 and not self._outbound.node.journal.is_idle

    def settle(self, cost: int, size_bytes: int) -> None:
        """One packet is done; a paused conversation goes on in the next turn."""
        self.window.settle(cost, size_bytes)
        if self.waiting_bytes and not self.blocked:
            self._connection.schedule()
