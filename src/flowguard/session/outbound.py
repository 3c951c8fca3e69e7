"""To the client: encoded bytes, messages waiting and sent, resends, topic aliases.

Three places, each bounded, that a message passes on its way out:

    queue (count, bytes; QoS 1 and 2)  ->  inflight (client's Receive Maximum)  ->  outbox (bytes)

The queue waits while the inflight window is full or the outbox is above its watermark; QoS 0 skips
the first two and is dropped when the outbox is full. Only the matching event (an acknowledgement,
a drained socket) moves things on, through one `pump`; `acknowledging` has what acknowledgements do.
"""

from collections.abc import Iterator
from typing import Final, final

from flowguard.codec.burst import Burst
from flowguard.codec.primitives import encode_u16
from flowguard.flow import Reason
from flowguard.records import QOS_1_IDS, Delivery, packet_id_of
from flowguard.session.aliases import TopicAliases
from flowguard.session.backlog import PAGE_MAX, PIECE_MAX
from flowguard.session.conversation import Conversation
from flowguard.session.frames import Frame, frame_v4, frame_v5
from flowguard.session.inflight import (
    INFLIGHT_BYTES,
    PLAIN_HEAD_MAX,
    SHARED_BYTES,
    plain_bytes,
)
from flowguard.session.membership import Membership
from flowguard.session.node_state import NodeState
from flowguard.session.outbox import FRAME_BYTES, OUTBOX_WATERMARK_BYTES, Outbox
from flowguard.session.receiver import Receiver
from flowguard.session.resend import Resend, with_dup
from flowguard.session.retained_sends import RetainedSends
from flowguard.session.states import Undelivered
from flowguard.types import MQTT_5, NO_PROPERTIES, Properties

TELL_MAX: Final = 200
"""Groups that are told of room in one stretch."""
ASKED: Final = -1
LARGE_INFLIGHT_MAX: Final = 16
"""A message of SHARED_BYTES or more waits while as many are unacknowledged: bounds their bytes."""


@final
class Outbound(Outbox):
    """The outgoing half of one connection."""

    __slots__ = (
        "_aliases",
        "_resend",
        "_retained",
        "_turn_left",
        "inflight_max",
        "session",
    )

    def __init__(self, connection: Conversation, node: NodeState, version: int) -> None:
        super().__init__(connection, node, version)
        self.session: Receiver | None = None
        self._turn_left = 0
        """So many messages of the backlog may go in this turn."""
        self.inflight_max = node.settings.session.inflight_max
        self._aliases: TopicAliases | None = None
        self._resend: Resend | None = None
        self._retained: RetainedSends | None = None

    def attach(self, session: Receiver, properties: Properties) -> None:
        """Serve `session` under the limits of the client's CONNECT."""
        self.session = session
        # [MQTT-3.1.2-29]
        self.explains = self.version == MQTT_5 and properties.request_problem_information != 0
        if properties.receive_maximum is not None:
            self.inflight_max = min(self.inflight_max, properties.receive_maximum)
        limit = self.node.topic_alias_maximum
        if properties.topic_alias_maximum and limit:
            aliases_max = min(limit, properties.topic_alias_maximum)
            self._aliases = TopicAliases(aliases_max, session, self.node)

    # --- messages ----------------------------------------------------------------------------

    def write_publish(self, packet_id: int, frame: Frame, delivery: Delivery) -> None:
        """Queue a PUBLISH that is in flight."""
        head, tail = frame
        self.outbox.append(head + encode_u16(packet_id) + tail)
        self._sent(len(head) + len(tail) + 2, len(delivery.message.payload))

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
            # All who get it share the tail, until it is sent.
            self.outbox += (head, tail)
            self._sent(frame_bytes, payload_bytes)
        if not sent:
            self.forget_alias(delivery)

    def send_frame(self, frame: bytes, payload_bytes: int) -> bool:
        """Send an encoded QoS 0 PUBLISH; False: dropped, and counted."""
        frame_bytes = len(frame)
        if not self._takes(frame_bytes):
            return False
        self.outbox.append(frame)
        self._sent(frame_bytes, payload_bytes)
        return True

    def _takes(self, frame_bytes: int) -> bool:
        """Whether so much of QoS 0 can be sent now; what cannot is counted."""
        size_bytes = self.outbox_bytes + frame_bytes
        most = self.node.outbox_bytes_max
        if self.blocked or size_bytes > most or frame_bytes > self._packet_size_max:
            reason = self._refusal(frame_bytes)
            if reason is not None:
                self.node.counters.drop(reason)
                return False
        return True

    def _refusal(self, size_bytes: int) -> Reason | None:
        """Why a QoS 0 frame cannot be taken now; None: it can, and a blocked outbox is charged."""
        if size_bytes > self._packet_size_max:
            return Reason.PACKET_TOO_LARGE  # [MQTT-3.1.2-25]
        if self.outbox and self.outbox_bytes + size_bytes > self.node.outbox_bytes_max:
            return Reason.OUTBOX_BYTES  # One message is always possible.
        if not self.blocked:
            return None
        size_bytes += FRAME_BYTES
        if not self.node.outbox_budget.take(size_bytes, self.blocked_bytes):
            return Reason.NODE_OUTBOX_BYTES
        self.blocked_bytes += size_bytes
        return None

    def full_by(self) -> list[Reason]:
        """The limits that leave no room for QoS 0."""
        is_full = self.outbox_bytes >= self.node.outbox_bytes_max
        found = [Reason.OUTBOX_BYTES] if is_full else []
        if self.blocked and not self.node.outbox_budget.fits(1, self.blocked_bytes):
            found.append(Reason.NODE_OUTBOX_BYTES)
        return found

    def forget_alias(self, delivery: Delivery) -> None:
        if self._aliases is not None:
            self._aliases.forget(delivery.message.topic)

    def has_places(self, session: Receiver, count: int) -> bool:
        """Whether so many messages could be sent now, but for identifiers that are in use."""
        return (
            self._resend is None
            and len(session.inflight) + count <= self.inflight_max
            and self.takes_more
        )

    def undelivered(self, session: Receiver) -> Undelivered | None:
        """Why the next message for the client is not sent; None: it has none.

        In the order in which `_pump_queue` and `send` ask.
        """
        queue, inflight = session.queue, session.inflight
        if not self.takes_more or self.blocked:
            return Undelivered.SOCKET
        if not self.has_more:
            return None
        if len(inflight) >= self.inflight_max:
            return Undelivered.RECEIVE_MAXIMUM
        head = queue.peek()
        if head is None:
            if queue.damage:
                return Undelivered.DAMAGE
            return Undelivered.DISK if queue.is_away else Undelivered.TURN
        pos, delivery, _ = head
        if pos < session.backlog_end and len(inflight) >= self.node.window.limit:
            return Undelivered.WINDOW
        if pos < session.backlog_end and self._turn_left <= 0:
            return Undelivered.TURN
        used = packet_id_of(pos, delivery.qos) in inflight
        return Undelivered.IDENTIFIER if used else Undelivered.INFLIGHT_BYTES

    def is_open(self, session: Receiver) -> bool:
        """Whether a message that has not been looked at could be sent now."""
        pos, inflight = session.next_pos, session.inflight
        used = packet_id_of(pos, 1) in inflight or packet_id_of(pos, 2) in inflight
        return not used and self.has_places(session, 1)

    def send(self, pos: int, delivery: Delivery, now_s: float, charged: bool = False) -> bool:
        """Send a QoS 1 or 2 message for the first time; False: there is no room for it now.

        The caller made sure that no message waits before it. `charged`: the queues' budget holds
        it, and gets it back in the same stretch if it is sent.
        """
        session = self.session
        assert session is not None
        inflight = session.inflight
        qos = delivery.qos
        packet_id = 1 + pos % QOS_1_IDS if qos == 1 else packet_id_of(pos, qos)
        if (
            len(inflight) >= self.inflight_max
            or self.outbox_bytes >= OUTBOX_WATERMARK_BYTES
            or packet_id in inflight
        ):
            return False
        if self.version == MQTT_5:
            head, tail = delivery.frame_v5 or frame_v5(delivery, self._aliases, now_s)
        else:
            head, tail = delivery.frame_v4 or frame_v4(delivery)
        size_bytes = len(head) + len(tail) + 2
        if size_bytes > self._packet_size_max:
            # [MQTT-3.1.2-25] dropped as if it had been sent and acknowledged.
            session.drop(pos, delivery, Reason.PACKET_TOO_LARGE, self.node)
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
            not session.take_place(packet_id, delivery, self.node, plain=plain, charged=charged)
        ):
            self.forget_alias(delivery)
            return False
        inflight[packet_id] = delivery
        if len(tail) < SHARED_BYTES:
            self.outbox.append(head + encode_u16(packet_id) + tail)
        else:
            # Shared by all who get it, until it is sent.
            self.outbox += (head + encode_u16(packet_id), tail)
        if session.durable:
            assert session.positions is not None
            session.positions[packet_id] = pos
            self.node.sent[session.client_id] = pos
        self._sent(size_bytes, payload_bytes)
        return True

    # --- bursts ------------------------------------------------------------------------------

    def takes_as_is(self, burst: Burst) -> bool:
        """Whether its packets say all that this client is to be told, and can be sent now."""
        return (
            burst.is_5 is (self.version == MQTT_5)
            and self._aliases is None
            and not self.blocked
            and burst.frame_bytes_max <= self._packet_size_max
            and self.outbox_bytes + len(burst.frames) <= self.node.outbox_bytes_max
        )

    def send_as_is(self, burst: Burst) -> None:
        """Send what it takes as it is, at QoS 0."""
        self.outbox.append(burst.frames)
        self._sent_burst(burst)

    def takes_in_flight(self, burst: Burst, session: Receiver) -> bool:
        """Whether `send` would send each of the packets now, at QoS 1.

        But for the node's budget, which counts them for all who get them.
        """
        inflight, count = session.inflight, burst.count
        first_id = packet_id_of(session.next_pos, 1)
        return (
            self.takes_as_is(burst)
            and not self.has_more
            and len(inflight) + count <= self.inflight_max
            and self.outbox_bytes + len(burst.frames) <= OUTBOX_WATERMARK_BYTES
            and first_id + count - 1 <= QOS_1_IDS
            and (not inflight or are_free(inflight, first_id, count))
        )

    def send_in_flight(self, burst: Burst, session: Receiver) -> None:
        """Send what it takes at QoS 1.

        Nobody is going to look at one of the messages: nothing of a session that ends with its
        connection is sent again.
        """
        inflight, count = session.inflight, burst.count
        first_id = packet_id_of(session.next_pos, 1)
        session.next_pos += count
        budget = self.node.inflight.budget
        budget.used_bytes += plain_bytes(burst.payload_bytes, count)
        if inflight:
            inflight.update(burst.in_flight(first_id))
        else:
            budget.holders_count += 1
            session.inflight = burst.in_flight(first_id).copy()
        self.outbox.append(burst.numbered(first_id))
        self._sent_burst(burst)

    # --- what waits --------------------------------------------------------------------------

    def pump(self, now_s: float) -> None:
        """A new turn: send what may be sent."""
        if self._retained is not None:
            self._retained.new_turn()
        self.send_waiting(now_s)

    def send_waiting(self, now_s: float) -> None:
        """First resends, then the queue, retained messages, and what waits for its groups."""
        session = self.session
        if session is None:
            return
        if self._resend is not None:
            self._pump_resend(session, self._resend, now_s)
            if self._resend.is_done:
                self._resend = None
        self._pump_queue(session, now_s)
        if self._retained is not None and not session.queue.waits:
            self._pump_retained(session, self._retained, now_s)
            if self._retained.is_done:
                self._retained = None
        self.has_more = (
            session.queue.waits or self._retained is not None or self._resend is not None
        )
        if session.membership is not None:
            self.tell_groups(now_s)

    def _pump_queue(self, session: Receiver, now_s: float) -> None:
        queue, rights = session.queue, session.rights
        expired_count = 0
        while self.has_places(session, 1):
            head = queue.peek()
            if head is None:
                if queue.is_away:
                    session.fetch(self.node)
                return
            pos, delivery, _ = head
            if pos < session.backlog_end and not self._may_send_backlog(session):
                return
            if delivery.expires_at_s <= now_s:
                queue.take()
                session.expire(pos, delivery, self.node, now_s)
                expired_count += 1
                if expired_count == PAGE_MAX:
                    self.pump_again()
                    return
            elif rights is not None and not rights.may_receive(delivery.message.topic):
                queue.take()
                session.drop(pos, delivery, Reason.NOT_AUTHORIZED, self.node)
            elif self.send(pos, delivery, now_s, charged=True):
                queue.take()
            else:
                return

    def _pump_resend(self, session: Receiver, resend: Resend, now_s: float) -> None:
        """Send again what a former connection sent, as much as may be in flight on this one."""
        while self.takes_more and len(session.inflight) - len(resend) < self.inflight_max:
            packet_id = resend.next()
            if packet_id is None:
                return
            delivery = session.inflight.get(packet_id)
            if delivery is None:
                continue  # Acknowledged meanwhile.
            frame = self.encode(delivery, now_s)
            if frame is None:
                session.end_exchange(packet_id, delivery, self.node)
                self.node.counters.drop(Reason.PACKET_TOO_LARGE)
            else:
                self.write_publish(packet_id, with_dup(frame), delivery)

    def _pump_retained(self, session: Receiver, sends: RetainedSends, now_s: float) -> None:
        """Retained messages, as far as there is room in this turn."""
        if sends.is_tired:
            return
        while self.is_open(session):
            delivery = sends.next()
            if delivery is None:
                break
            if delivery.expires_at_s <= now_s:
                self.node.counters.drop(Reason.MESSAGE_EXPIRED)  # [MQTT-3.3.2-5]
            elif delivery.qos == 0:
                self.send_qos_0(delivery, now_s)
            elif not session.offer_retained(delivery, self.node, now_s):
                return
        if sends.is_tired and not sends.is_done:
            self.pump_again()

    def has_room(self, session: Receiver, membership: Membership) -> bool:
        """Whether a message of a group could go now, with none of the client's own before it."""
        return not self.has_more and self.has_places(session, 1 + membership.moving_count)

    def tell_groups(self, now_s: float) -> None:
        """There may be room: whoever asked is told, until there is none, or enough are told."""
        session = self.session
        membership = None if session is None else session.membership
        if session is None or membership is None:
            return
        asked = membership.asked
        told_count = 0
        while asked and self.has_room(session, membership):
            if told_count == TELL_MAX:
                self.pump_again()
                break
            lender = next(iter(asked))
            del asked[lender]
            lender.wake(session, now_s)
            told_count += 1
        if asked:
            self.has_more = True

    def _may_send_backlog(self, session: Receiver) -> bool:
        """Whether the first of the backlog may go now, as far as the node is concerned.

        By turns, and no faster than its window lets clients publish.
        """
        if len(session.inflight) >= self.node.window.limit:
            return False
        if self._turn_left > 0:
            self._turn_left -= 1
            return True
        if self._turn_left != ASKED:
            self._turn_left = ASKED
            self.node.replays.append(self)
        return False

    def take_turn(self, now_s: float) -> None:
        """Go on with the backlog, as far as there is room."""
        self._turn_left = PIECE_MAX
        self.send_waiting(now_s)
        self._turn_left = min(self._turn_left, 0)

    def send_retained(self, wanted: list[tuple[str, Iterator[Delivery | None]]]) -> None:
        """Send these (retained) messages, by filter, at the client's pace, after its queue."""
        self.has_more = True
        if self._retained is None:
            self._retained = RetainedSends()
        for filter, deliveries in wanted:
            self._retained.add(filter, deliveries)
        self.pump_again()

    def stop_retained(self, filter: str) -> None:
        """[MQTT-3.10.4-2] `filter` is no longer subscribed."""
        if self._retained is not None:
            self._retained.remove(filter)

    # --- resume ------------------------------------------------------------------------------

    def resume(self, now_s: float) -> None:
        """Repeat what was sent and not acknowledged, in its order [MQTT-4.4.0-1], then go on."""
        session = self.session
        assert session is not None
        for packet_id, delivery in session.inflight.items():
            if delivery is None:
                self.release(packet_id)  # [MQTT-3.3.4-10] waits for no window
        self._resend = Resend(session.inflight)
        session.backlog_end = session.next_pos
        self.send_waiting(now_s)

    # --- encoding ----------------------------------------------------------------------------

    def encode(self, delivery: Delivery, now_s: float) -> Frame | None:
        """The PUBLISH; None: the client takes none as large [MQTT-3.1.2-25]."""
        if self.version == MQTT_5:
            frame = delivery.frame_v5 or frame_v5(delivery, self._aliases, now_s)
        else:
            frame = delivery.frame_v4 or frame_v4(delivery)
        if len(frame[0]) + len(frame[1]) + 2 <= self._packet_size_max:
            return frame
        self.forget_alias(delivery)
        return None

    # --- end ---------------------------------------------------------------------------------

    def detach(self) -> None:
        """The connection is over: free what it held; the session keeps its messages."""
        self.ended = True
        del self.connection  # A cycle would wait for the garbage collector, outbox and all.
        self.session = self._retained = self._resend = None
        if self._aliases is not None:
            self._aliases.clear()
        budget = self.node.outbox_budget
        if self.blocked and 2 * budget.used_bytes > budget.limit_bytes:
            self.outbox = []  # It was not read, and nobody has room to keep it for a last word.
            self.outbox_bytes = 0
        budget.give_back(self.blocked_bytes, 0)
        self.blocked_bytes = 0
        self.has_more = False


def are_free(inflight: dict[int, Delivery | None], first_id: int, count: int) -> bool:
    """Whether none of so many identifiers is in use."""
    return all([packet_id not in inflight for packet_id in range(first_id, first_id + count)])
