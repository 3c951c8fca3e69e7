"""To the client: waiting and sent messages, resends, retained messages, messages of groups.

A message passes three bounded stages on its way out:

    queue (count, bytes; QoS 1 and 2)  ->  inflight (client's Receive Maximum)  ->  outbox (bytes)

The queue waits while the inflight window is full or the outbox is above its watermark; QoS 0 skips
the first two and is dropped when the outbox is full. Only the matching event (an acknowledgement,
a drained socket) continues it, through one `pump`. `acknowledging` handles acknowledgements,
`dispatch` puts messages into the outbox.
"""

from typing import Final, final

from flowguard.codec.encoder import pubrel_frame
from flowguard.flow import Reason
from flowguard.records import Delivery, packet_id_of
from flowguard.session.conversation import Conversation
from flowguard.session.host import RetainedSearch
from flowguard.session.membership import Membership
from flowguard.session.node_state import NodeState
from flowguard.session.outbound.aliases import TopicAliases
from flowguard.session.outbound.backlog import PAGE_BYTES_MAX, PAGE_MAX, PIECE_MAX
from flowguard.session.outbound.dispatch import Dispatch
from flowguard.session.outbound.receiver import Receiver, end_exchange
from flowguard.session.outbound.resend import Resend, with_dup
from flowguard.session.outbound.retained_sends import RetainedSends
from flowguard.session.owner import (
    admit_message,
    drop_message,
    expire_message,
    fetch_page,
    own_queue,
    trim_queue,
)
from flowguard.session.states import Undelivered
from flowguard.types import MQTT_5, Properties

TELL_MAX: Final = 200
"""Maximum number of groups that are woken in one time slice."""
ASKED: Final = -1


@final
class Outbound(Dispatch):
    """The outgoing half of one connection."""

    __slots__ = ("_resend", "_retained", "_turn_left")

    def __init__(self, connection: Conversation, node: NodeState, version: int) -> None:
        super().__init__(connection, node, version)
        self._turn_left = 0
        """Number of messages of the backlog that may still be sent in this turn."""
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
            self._aliases = TopicAliases(aliases_max, session.account, self.node)

    def has_places(self, session: Receiver, count: int) -> bool:
        """Return True if `count` messages could be sent now, if identifiers are free."""
        return (
            self._resend is None
            and len(session.inflight.messages) + count <= self.inflight_max
            and self.outbox.takes_more
        )

    def undelivered(self, session: Receiver) -> Undelivered | None:
        """Return the reason why the next message is not sent, or None if none waits.

        The order of the checks is that of `_pump_queue` and `send`.
        """
        queue, inflight = session.queue, session.inflight.messages
        if not self.outbox.takes_more or self.outbox.blocked:
            return Undelivered.SOCKET
        if not self.has_more:
            return None
        if len(inflight) >= self.inflight_max:
            return Undelivered.RECEIVE_MAXIMUM
        head = queue.peek()
        if head is None:
            if queue.disk.damage:
                return Undelivered.DAMAGE
            return Undelivered.DISK if queue.is_away else Undelivered.TURN
        pos, delivery, _ = head
        if pos < session.backlog_end and len(inflight) >= self.node.window.limit:
            return Undelivered.WINDOW
        if pos < session.backlog_end and self._turn_left <= 0:
            return Undelivered.TURN
        used = session.durable and packet_id_of(pos, delivery.qos) in inflight
        return Undelivered.IDENTIFIER if used else Undelivered.INFLIGHT_BYTES

    # --- what waits --------------------------------------------------------------------------

    def pump(self, now_s: float) -> None:
        """Begin a new turn, and send waiting messages."""
        if self._retained is not None:
            self._retained.new_turn()
        self.send_waiting(now_s)

    def send_waiting(self, now_s: float) -> None:
        """Send resends, then the queue, retained messages, and messages of its groups."""
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
                    fetch_page(session, self.node)
                return
            pos, delivery, _ = head
            if pos < session.backlog_end and not self._may_send_backlog(session):
                return
            if delivery.expires_at_s <= now_s:
                queue.take()
                expire_message(session, pos, delivery, self.node, now_s)
                expired_count += 1
                if expired_count == PAGE_MAX:
                    self.outbox.pump_again()
                    return
            elif rights is not None and not rights.may_receive(delivery.message.topic):
                queue.take()
                drop_message(session, pos, delivery, Reason.NOT_AUTHORIZED, self.node)
            elif self.send(pos, delivery, now_s, charged=True):
                queue.take()
            else:
                return

    def _pump_resend(self, session: Receiver, resend: Resend, now_s: float) -> None:
        """Send messages of a former connection again, within the in-flight limit of this one."""
        while (
            self.outbox.takes_more
            and len(session.inflight.messages) - len(resend) < self.inflight_max
        ):
            packet_id = resend.next()
            if packet_id is None:
                return
            delivery = session.inflight.messages.get(packet_id)
            if delivery is None:
                continue  # Acknowledged meanwhile.
            is_allowed = session.may_receive(delivery.message.topic)
            frame = self.encode(delivery, now_s) if is_allowed else None
            if frame is None:
                end_exchange(session, packet_id, delivery, self.node)
                self.node.counters.drop(
                    Reason.PACKET_TOO_LARGE if is_allowed else Reason.NOT_AUTHORIZED
                )
            else:
                self.write_publish(packet_id, with_dup(frame), delivery)

    def _pump_retained(self, session: Receiver, sends: RetainedSends, now_s: float) -> None:
        """Send retained messages within the capacity of this turn."""
        if session.durable:
            if self.node.moving.is_full:
                self.node.later[self.connection] = None
            elif not sends.is_storing:
                self._store_retained(session, sends, now_s)
            return
        sends.moved.clear()
        while self.has_places(session, 1):
            delivery = sends.peek()
            if delivery is None:
                break
            sends.take()
            if not self._passes(delivery, now_s):
                continue
            if not self._offer_retained(session, delivery, now_s):
                return
        if sends.is_tired and not sends.is_done:
            self.outbox.pump_again()

    def _offer_retained(self, session: Receiver, delivery: Delivery, now_s: float) -> bool:
        """Send or drop a retained message that needs no store; False if it waits in the queue."""
        reason = admit_message(session, delivery.size_bytes, self.node, now_s)
        if reason is not None:
            self.node.counters.drop(reason)
            return True
        pos = session.take_position()
        if self.send(pos, delivery, now_s, charged=True):
            session.queue.forget(delivery.size_bytes)
            return True
        session.queue.put(pos, delivery, delivery.size_bytes, connected=True)
        if not session.inflight.messages:
            self.outbox.pump_again()  # No acknowledgement will cause it.
        trim_queue(session, self.node, now_s)
        return False

    def _store_retained(self, session: Receiver, sends: RetainedSends, now_s: float) -> None:
        """Store a page of retained messages, which are sent after the commit; QoS 0 at once."""
        page: list[Delivery] = []
        page_bytes, subscriptions = 0, session.subscriptions
        count_max = min(PAGE_MAX, self.node.moving.page_max)
        while (
            len(page) < count_max
            and page_bytes < PAGE_BYTES_MAX
            and self.has_places(session, len(page) + 1)
        ):
            delivery = sends.peek()
            if delivery is None:
                break
            if self._passes(delivery, now_s):
                if self._has_place(session, delivery, now_s):
                    page.append(delivery)
                    page_bytes += delivery.size_bytes
                elif self.node.read_only or session.queue.count:
                    if not page:
                        self.node.later[self.connection] = None
                    break
            if subscriptions.is_owed(sends.filter):
                topic = delivery.message.topic
                subscriptions.owe_retained(sends.filter, topic, session.account, self.node)
            sends.take()
        if page or any(sends.moved.values()) or (sends.moved and not self.node.read_only):
            session.store_retained(page, sends, self.node, now_s)
        if not sends.is_storing and sends.is_tired and not sends.is_done:
            self.outbox.pump_again()

    def _passes(self, delivery: Delivery, now_s: float) -> bool:
        """Return True if a retained message needs a packet identifier; one of QoS 0 is sent."""
        if delivery.expires_at_s <= now_s:
            self.node.counters.drop(Reason.MESSAGE_EXPIRED)  # [MQTT-3.3.2-5]
            return False
        if delivery.qos == 0:
            self.send_qos_0(delivery, now_s)
            return False
        return True

    def _has_place(self, session: Receiver, delivery: Delivery, now_s: float) -> bool:
        """Reserve a slot for a retained message that has to be durable first; True if it has one.

        Without a slot it waits if others wait or the disk is full. Else it is dropped, and counted.
        """
        if self.node.read_only:
            return False
        queue, size_bytes = own_queue(session, self.node), delivery.size_bytes
        if queue.reserve(size_bytes) is None:
            return True
        if queue.count:
            return False
        reason = admit_message(session, size_bytes, self.node, now_s)
        if reason is not None:
            self.node.counters.drop(reason)
        return reason is None

    def has_room(self, session: Receiver, membership: Membership) -> bool:
        """Return True if a message of a group could be sent now, with no own one before it."""
        return not self.has_more and self.has_places(session, 1 + membership.moving_count)

    def tell_groups(self, now_s: float) -> None:
        """Wake waiting groups while the client has capacity, up to `TELL_MAX`."""
        session = self.session
        membership = None if session is None else session.membership
        if session is None or membership is None:
            return
        asked = membership.asked
        told_count = 0
        while asked and self.has_room(session, membership):
            if told_count == TELL_MAX:
                self.outbox.pump_again()
                break
            lender = next(iter(asked))
            del asked[lender]
            lender.wake(session, now_s)
            told_count += 1
        if asked:
            self.has_more = True

    def _may_send_backlog(self, session: Receiver) -> bool:
        """Return True if the node lets the first message of the backlog be sent now.

        Backlogs are sent in turn, and no faster than the node's window lets clients publish.
        """
        if len(session.inflight.messages) >= self.node.window.limit:
            return False
        if self._turn_left > 0:
            self._turn_left -= 1
            return True
        if self._turn_left != ASKED:
            self._turn_left = ASKED
            self.node.replays.append(self)
        return False

    def take_turn(self, now_s: float) -> None:
        """Go on with the backlog within the capacity of the client."""
        self._turn_left = PIECE_MAX
        self.send_waiting(now_s)
        self._turn_left = min(self._turn_left, 0)

    def send_retained(self, wanted: list[tuple[str, RetainedSearch]]) -> None:
        """Send the results of these searches by filter, at the client's pace, after its queue."""
        self.has_more = True
        if self._retained is None:
            self._retained = RetainedSends()
        for filter, search in wanted:
            self._retained.add(filter, search)
        self.outbox.pump_again()

    def sends_retained(self, filter: str) -> bool:
        """Return True if the retained messages of that filter are on their way."""
        return self._retained is not None and filter in self._retained

    def stop_retained(self, filter: str) -> None:
        """Stop the search for a filter that is unsubscribed or subscribed again [MQTT-3.10.4-2]."""
        if self._retained is not None:
            self._retained.remove(filter)

    # --- resume ------------------------------------------------------------------------------

    def resume(self, now_s: float) -> None:
        """Repeat unacknowledged messages in their order [MQTT-4.4.0-1], then go on."""
        session = self.session
        assert session is not None
        for packet_id, delivery in session.inflight.messages.items():
            if delivery is None:
                self.outbox.write(pubrel_frame(packet_id))  # [MQTT-3.3.4-10] waits for no window
        self._resend = Resend(session.inflight.messages)
        session.backlog_end = session.next_pos
        self.send_waiting(now_s)

    # --- end ---------------------------------------------------------------------------------

    def detach(self) -> None:
        """Free the memory of an ended connection; the session keeps its messages."""
        self.outbox.close()
        self.session = self._retained = self._resend = None
        if self._aliases is not None:
            self._aliases.clear()
        self.has_more = False
