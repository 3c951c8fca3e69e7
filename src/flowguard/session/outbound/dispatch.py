"""Dispatch: encodes messages into one client's outbox; at QoS 1 and 2 they are in flight then.

A message that may not be sent now stays with the caller: `Outbound` has waiting messages.
"""

from typing import Final

from flowguard.codec.burst import Burst
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Packet
from flowguard.codec.primitives import encode_u16
from flowguard.config import PACKET_SIZE_MAX
from flowguard.flow import Reason
from flowguard.records import QOS_1_IDS, Delivery, packet_id_of
from flowguard.session.conversation import Conversation, Sender
from flowguard.session.node_state import NodeState
from flowguard.session.outbound.aliases import TopicAliases
from flowguard.session.outbound.frames import Frame, frame_v4, frame_v5
from flowguard.session.outbound.inflight import (
    INFLIGHT_BYTES,
    NONE_SENT,
    PLAIN_HEAD_MAX,
    SHARED_BYTES,
    plain_bytes,
)
from flowguard.session.outbound.outbox import FRAME_BYTES, OUTBOX_WATERMARK_BYTES, Outbox
from flowguard.session.outbound.receiver import Receiver
from flowguard.session.owner import drop_message
from flowguard.types import MQTT_5, NO_PROPERTIES, Properties

LARGE_INFLIGHT_MAX: Final = 16
"""Unacknowledged messages from which on one of SHARED_BYTES or more waits; limits their bytes."""


class Dispatch(Sender):
    """Sends messages to one client; `Outbound` adds what waits for it."""

    __slots__ = (
        "_aliases",
        "_packet_size_max",
        "explains",
        "has_more",
        "inflight_max",
        "node",
        "outbox",
        "session",
        "version",
    )

    def __init__(self, connection: Conversation, node: NodeState, version: int) -> None:
        self.node = node
        self.version = version
        self.outbox = Outbox(connection, node)
        self.has_more = False
        """True while messages wait for acknowledgements or for the socket: `pump` goes on."""
        self.explains = False
        """True if the client accepts reason strings."""
        self._packet_size_max = PACKET_SIZE_MAX
        self.session: Receiver | None = None
        self.inflight_max = node.settings.session.inflight_max
        self._aliases: TopicAliases | None = None

    @property
    def connection(self) -> Conversation:
        return self.outbox.connection

    @property
    def ended(self) -> bool:
        return self.outbox.is_closed

    def limit_packets(self, properties: Properties) -> None:
        """Send nothing larger than this CONNECT allows, CONNACK included [MQTT-3.1.2-24]."""
        if properties.maximum_packet_size is not None:
            self._packet_size_max = min(PACKET_SIZE_MAX, properties.maximum_packet_size)

    def write_packet(self, packet: Packet) -> bool:
        """Encode and queue a packet; False if the client's Maximum Packet Size forbids it."""
        frame = encode(packet, self.version)
        if len(frame) > self._packet_size_max:
            # [MQTT-3.1.2-25] the packet is never sent.
            return False
        self.outbox.write(frame)
        return True

    def write_publish(self, packet_id: int, frame: Frame, delivery: Delivery) -> None:
        """Queue a PUBLISH that is in flight."""
        head, tail = frame
        self.outbox.put(head + encode_u16(packet_id) + tail)
        self.outbox.sent(len(head) + len(tail) + 2, len(delivery.message.payload))

    def send_qos_0(self, delivery: Delivery, now_s: float) -> None:
        """Send a QoS 0 message, or drop it with a counted reason: it never waits in a queue."""
        if self.version == MQTT_5:
            head, tail = delivery.frame_v5 or frame_v5(delivery, self._aliases, now_s)
        else:
            head, tail = delivery.frame_v4 or frame_v4(delivery)
        payload_bytes = len(delivery.message.payload)
        frame_bytes = len(head) + len(tail)
        if not tail:
            sent = self.send_frame(head, payload_bytes)
        elif len(tail) < SHARED_BYTES:
            sent = self.send_frame(head + tail, payload_bytes)
        elif sent := self._takes(frame_bytes):
            # All clients that get it share the tail, until it is sent.
            self.outbox.put(head)
            self.outbox.put(tail)
            self.outbox.sent(frame_bytes, payload_bytes)
        if not sent:
            self.forget_alias(delivery)

    def send_frame(self, frame: bytes, payload_bytes: int) -> bool:
        """Send an encoded QoS 0 PUBLISH; return False if it was dropped, and counted."""
        frame_bytes = len(frame)
        if not self._takes(frame_bytes):
            return False
        self.outbox.put(frame)
        self.outbox.sent(frame_bytes, payload_bytes)
        return True

    def _takes(self, frame_bytes: int) -> bool:
        """Return True if a QoS 0 frame can be sent now; else count it as dropped."""
        size_bytes = self.outbox.size_bytes + frame_bytes
        most = self.node.outbox_bytes_max
        if self.outbox.blocked or size_bytes > most or frame_bytes > self._packet_size_max:
            reason = self._refusal(frame_bytes)
            if reason is not None:
                self.node.counters.drop(reason)
                return False
        return True

    def _refusal(self, size_bytes: int) -> Reason | None:
        """Return the reason to drop a QoS 0 frame, or None; then a blocked outbox is charged."""
        if size_bytes > self._packet_size_max:
            return Reason.PACKET_TOO_LARGE  # [MQTT-3.1.2-25]
        if self.outbox.frames and self.outbox.size_bytes + size_bytes > self.node.outbox_bytes_max:
            return Reason.OUTBOX_BYTES  # One message is always possible.
        if not self.outbox.blocked:
            return None
        size_bytes += FRAME_BYTES
        if not self.node.outbox_budget.take(size_bytes, self.outbox.blocked_bytes):
            return Reason.NODE_OUTBOX_BYTES
        self.outbox.blocked_bytes += size_bytes
        return None

    def full_by(self) -> list[Reason]:
        """Return the limits that reject QoS 0 messages now."""
        is_full = self.outbox.size_bytes >= self.node.outbox_bytes_max
        found = [Reason.OUTBOX_BYTES] if is_full else []
        if self.outbox.blocked and not self.node.outbox_budget.fits(1, self.outbox.blocked_bytes):
            found.append(Reason.NODE_OUTBOX_BYTES)
        return found

    def forget_alias(self, delivery: Delivery) -> None:
        if self._aliases is not None:
            self._aliases.forget(delivery.message.topic)

    def encode(self, delivery: Delivery, now_s: float) -> Frame | None:
        """Return the PUBLISH, or None if it is too large for the client [MQTT-3.1.2-25]."""
        if self.version == MQTT_5:
            frame = delivery.frame_v5 or frame_v5(delivery, self._aliases, now_s)
        else:
            frame = delivery.frame_v4 or frame_v4(delivery)
        if len(frame[0]) + len(frame[1]) + 2 <= self._packet_size_max:
            return frame
        self.forget_alias(delivery)
        return None

    def takes_size(self, delivery: Delivery, now_s: float) -> bool:
        """Return True if the client accepts a PUBLISH of this size, without an alias."""
        if self._packet_size_max == PACKET_SIZE_MAX:
            return True
        if self.version == MQTT_5:
            head, tail = delivery.frame_v5 or frame_v5(delivery, None, now_s)
        else:
            head, tail = delivery.frame_v4 or frame_v4(delivery)
        id_bytes = 2 if delivery.qos else 0
        return len(head) + len(tail) + id_bytes <= self._packet_size_max

    def send(self, pos: int, delivery: Delivery, now_s: float, charged: bool = False) -> bool:
        """Send a QoS 1 or 2 message for the first time; return False if it cannot be sent now.

        The caller made sure that no message waits before it. If `charged`, the queues' budget holds
        it, and gets it back in the same time slice if it is sent.
        """
        session = self.session
        assert session is not None
        inflight = session.inflight.messages
        qos = delivery.qos
        packet_id = 1 + pos % QOS_1_IDS if qos == 1 else packet_id_of(pos, qos)
        if (
            len(inflight) >= self.inflight_max
            or self.outbox.size_bytes >= OUTBOX_WATERMARK_BYTES
            or (packet_id in inflight and not (packet_id := _another_id(session, qos)))
        ):
            return False
        if self.version == MQTT_5:
            head, tail = delivery.frame_v5 or frame_v5(delivery, self._aliases, now_s)
        else:
            head, tail = delivery.frame_v4 or frame_v4(delivery)
        size_bytes = len(head) + len(tail) + 2
        if size_bytes > self._packet_size_max:
            # [MQTT-3.1.2-25] dropped as if it had been sent and acknowledged.
            drop_message(session, pos, delivery, Reason.PACKET_TOO_LARGE, self.node)
            self.forget_alias(delivery)
            return True
        message, node_inflight = delivery.message, self.node.inflight
        payload_bytes = len(message.payload)
        plain = (
            payload_bytes < node_inflight.plain_bytes_max
            and size_bytes - payload_bytes <= PLAIN_HEAD_MAX
            and message.properties is NO_PROPERTIES
        )
        budget = node_inflight.budget
        used_bytes = budget.used_bytes + INFLIGHT_BYTES + payload_bytes + payload_bytes
        if plain and used_bytes <= budget.common_bytes:
            budget.used_bytes = used_bytes
            if not inflight:
                budget.holders_count += 1
        elif (len(tail) >= SHARED_BYTES and len(inflight) >= LARGE_INFLIGHT_MAX) or (
            not session.inflight.take_place(
                packet_id,
                delivery,
                node_inflight,
                session.queue.charged_bytes,
                plain=plain,
                charged=charged,
                keeps_up=session.keeps_up,
            )
        ):
            self.forget_alias(delivery)
            return False
        if inflight is NONE_SENT:
            inflight = session.inflight.own_messages()
        inflight[packet_id] = delivery
        if len(tail) < SHARED_BYTES:
            self.outbox.put(head + encode_u16(packet_id) + tail)
        else:
            # Shared by all clients that get it, until it is sent.
            self.outbox.put(head + encode_u16(packet_id))
            self.outbox.put(tail)
        positions = session.inflight.positions
        if positions is not None:
            positions[packet_id] = pos
            self.node.sent[session.client_id] = pos
        self.outbox.sent(size_bytes, payload_bytes)
        return True

    # --- bursts ------------------------------------------------------------------------------

    def takes_as_is(self, burst: Burst) -> bool:
        """Return True if its packets can be sent to this client unchanged and now."""
        return (
            burst.is_5 is (self.version == MQTT_5)
            and self._aliases is None
            and not self.outbox.blocked
            and burst.frame_bytes_max <= self._packet_size_max
            and self.outbox.size_bytes + len(burst.frames) <= self.node.outbox_bytes_max
        )

    def send_as_is(self, burst: Burst) -> None:
        """Send a burst that `takes_as_is` at QoS 0; the caller counts it."""
        self.outbox.put_burst(burst.frames)

    def takes_in_flight(self, burst: Burst, session: Receiver, first_pos: int) -> bool:
        """Return True if `send` would send all packets now, at QoS 1, from that position on.

        The node's budget is checked elsewhere, for all sessions together.
        """
        inflight, count = session.inflight.messages, burst.count
        return (
            self.takes_as_is(burst)
            and not self.has_more
            and len(inflight) + count <= self.inflight_max
            and self.outbox.size_bytes + len(burst.frames) <= OUTBOX_WATERMARK_BYTES
            and are_free(inflight, first_pos, count)
        )

    def send_in_flight(self, burst: Burst, session: Receiver) -> None:
        """Send a burst that `takes_in_flight` at QoS 1; the caller counts it.

        The messages themselves are not needed, as a session that ends with its connection sends
        none again.
        """
        inflight, count = session.inflight.messages, burst.count
        first_id = packet_id_of(session.next_pos, 1)
        session.next_pos += count
        budget = self.node.inflight.budget
        budget.used_bytes += plain_bytes(burst.payload_bytes, count)
        if inflight:
            inflight.update(burst.in_flight(first_id))
        else:
            budget.holders_count += 1
            session.inflight.messages = burst.in_flight(first_id).copy()
        self.outbox.put_burst(burst.numbered(first_id))

    def send_stored(
        self, burst: Burst, session: Receiver, first_pos: int, deliveries: list[Delivery]
    ) -> None:
        """Send a burst that `takes_in_flight` at QoS 1 to a session in the store.

        `deliveries` are stored from `first_pos` on. The caller counts them.
        """
        budget = self.node.inflight.budget
        budget.used_bytes += plain_bytes(burst.payload_bytes, burst.count)
        if not session.inflight.messages:
            budget.holders_count += 1
        inflight, pos = session.inflight.own_messages(), first_pos
        positions = session.inflight.positions
        assert positions is not None
        first_id = packet_id = packet_id_of(first_pos, 1)
        for delivery in deliveries:
            inflight[packet_id] = delivery
            positions[packet_id] = pos
            packet_id += 1
            pos += 1
        self.node.sent[session.client_id] = pos - 1
        self.outbox.put_burst(burst.numbered(first_id))


def are_free(inflight: dict[int, Delivery | None], first_pos: int, count: int) -> bool:
    """Return True if positions have consecutive unused packet identifiers at QoS 1."""
    first_id = packet_id_of(first_pos, 1)
    return first_id + count - 1 <= QOS_1_IDS and (
        not inflight or all(each not in inflight for each in range(first_id, first_id + count))
    )


def _another_id(session: Receiver, qos: int) -> int:
    """Return a free packet identifier, or 0 if the position is stored, which determines it."""
    return 0 if session.durable else packet_id_of(session.take_position(), qos)
