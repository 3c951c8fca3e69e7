"""A publisher of a storm: sends what is due, within its bounds."""

from typing import Final, final

from flowguard.codec import Packet, Puback, Pubcomp, Pubrec, publish_frame, pubrel_frame
from flowguard.types import NO_PROPERTIES, PACKET_ID_MAX, Publish, ReasonCode
from loadgen.storm.client import Client, Stage
from loadgen.storm.subscriber import STAMP, Joint, Subscriber

STALL_S: Final = 2.0
"""QoS 0: a publisher that waits this long for deliveries takes them for lost."""
WAITING_BYTES_MAX: Final = 64 * 1024
"""A publisher with this much on its way to the socket asks again after `WAITING_S`."""
WAITING_S: Final = 0.005
BURST_MAX: Final = 64
"""Messages of one publisher in a row, so that the others get their turn."""


@final
class Publisher:
    """Publishes to its group's topic within its bounds."""

    def __init__(self, traffic: Joint, client: Client, topic: str, number: int) -> None:
        plan = traffic.plan
        self._traffic = traffic
        self._next_id = 0
        self._scheduled = False
        self._started_s = 0.0
        self._stalled_at = -1
        filler = bytes(max(0, plan.payload_bytes - STAMP.size))
        message = Publish(topic, bytes(STAMP.size) + filler)
        head, tail = publish_frame(message, traffic.version, plan.qos, False, NO_PROPERTIES)
        self._frame = (head, tail[: len(tail) - len(message.payload)], filler)
        self.client = client
        self.number = number
        self.subscribers: list[Subscriber] = []
        self.sent = 0
        self.undelivered = 0
        """Deliveries on their way."""
        self.unacknowledged: dict[int, tuple[int, float]] = {}
        """Packet identifier to number of the message and instant of its PUBLISH."""
        self.refused: set[int] = set()
        self.waiting = False
        """Whether a message is due and a bound forbids it."""

    def connected(self, now_s: float) -> None:
        """Subscribed and ready: publishing starts when all clients are."""

    def start(self, now_s: float) -> None:
        self._started_s = now_s
        self.pump(now_s)
        if self._traffic.plan.qos == 0:
            self._traffic.loop.call_at(now_s + STALL_S, self._watch)

    def pump(self, now_s: float) -> None:
        """Send what is due, as far as the bounds go."""
        traffic = self._traffic
        self.waiting = False
        if not traffic.publishing or self.client.stage is not Stage.IN:
            return
        rate_per_s = traffic.plan.rate_per_s
        for _ in range(BURST_MAX):
            due_s = now_s if rate_per_s is None else self._started_s + self.sent / rate_per_s
            if due_s > now_s:
                self._pump_at(due_s)
                return
            if not self._may_send():
                self.waiting = True
                return
            assert self.client.wire is not None
            if len(self.client.wire.out) >= WAITING_BYTES_MAX:
                self._pump_at(now_s + WAITING_S)
                return
            self._send(due_s, now_s)
        self._pump_at(now_s)

    def _pump_at(self, at_s: float) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._traffic.loop.call_at(at_s, self._on_time)

    def _on_time(self, now_s: float) -> None:
        self._scheduled = False
        self.pump(now_s)

    def _may_send(self) -> bool:
        plan = self._traffic.plan
        if plan.qos:
            allowed = min(plan.outstanding, self.client.properties.receive_maximum or PACKET_ID_MAX)
            if len(self.unacknowledged) >= allowed:
                return False
        share = plan.backlog_share
        return share is None or self.undelivered < share * len(self.subscribers)

    def _send(self, due_s: float, now_s: float) -> None:
        wire = self.client.wire
        assert wire is not None
        head, middle, filler = self._frame
        tail = middle + STAMP.pack(self.number, self.sent, due_s) + filler
        if self._traffic.plan.qos:
            packet_id = self._take_id()
            self.unacknowledged[packet_id] = (self.sent, now_s)
            wire.write(head + packet_id.to_bytes(2, "big") + tail)
        else:
            wire.write(head + tail)
        self.sent += 1
        self.undelivered += len(self.subscribers)
        self._traffic.tally.sent += 1

    def _take_id(self) -> int:
        while True:
            self._next_id = self._next_id % PACKET_ID_MAX + 1
            if self._next_id not in self.unacknowledged:
                return self._next_id

    def _watch(self, now_s: float) -> None:
        """QoS 0: count deliveries as lost after `STALL_S`, because a dropped message is never
        counted back."""
        if self.waiting and self._stalled_at == self._traffic.tally.received:
            self.undelivered = 0
            self._traffic.tally.stalls += 1
            self.pump(now_s)
        self._stalled_at = self._traffic.tally.received
        if self._traffic.publishing:
            self._traffic.loop.call_at(now_s + STALL_S, self._watch)

    def receive(self, packet: Packet, now_s: float) -> None:
        if packet.__class__ is Puback or packet.__class__ is Pubcomp:
            self._on_end(packet.packet_id, packet.reason_code, now_s)
        elif packet.__class__ is Pubrec:
            if packet.reason_code >= ReasonCode.UNSPECIFIED_ERROR:
                self._on_end(packet.packet_id, packet.reason_code, now_s)
            else:
                assert self.client.wire is not None
                self.client.wire.write(pubrel_frame(packet.packet_id))

    def _on_end(self, packet_id: int, reason_code: int, now_s: float) -> None:
        entry = self.unacknowledged.pop(packet_id, None)
        if entry is None:
            return
        number, sent_s = entry
        tally = self._traffic.tally
        tally.acknowledgement.record(now_s - sent_s)
        tally.heard(now_s)
        if reason_code >= ReasonCode.UNSPECIFIED_ERROR:
            tally.refused += 1
            tally.refusals[reason_code] += 1
            self.refused.add(number)
            self.undelivered -= len(self.subscribers)
        else:
            tally.acknowledged += 1
        if self.waiting:
            self.pump(now_s)

    def acknowledged_of(self, numbers: set[int]) -> int:
        """How many of these messages the broker has said to be safe."""
        if not self._traffic.plan.qos:
            return 0
        open_numbers = {number for number, _ in self.unacknowledged.values()}
        return len(numbers - open_numbers - self.refused)

    @property
    def settled(self) -> bool:
        """Whether every message sent has been answered, or given up."""
        if self.unacknowledged and self.client.stage is Stage.IN:
            return False
        heard = all(subscriber.client.stage is Stage.IN for subscriber in self.subscribers)
        return self.undelivered <= 0 or not heard
