"""Publishers and subscribers, and the books on every message: where it is, or that it is lost.

A message carries its publisher's number, its own (from 0) and the instant it was due. So a
subscriber knows what is missing, and "lost" is a sum of the books, not a guess: what never came,
less what its publisher was never told to be safe.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final, final

from flowguard.codec import (
    Packet,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    encode,
    puback_frame,
    pubcomp_frame,
    publish_frame,
    pubrec_frame,
    pubrel_frame,
)
from flowguard.storm.client import Client, Stage
from flowguard.storm.crowd import Crowd
from flowguard.storm.plan import CrowdPlan, Target, TrafficPlan
from flowguard.storm.tally import Result, TrafficTally
from flowguard.types import (
    NO_PROPERTIES,
    PACKET_ID_MAX,
    Publish,
    ReasonCode,
    SubscriptionOptions,
)

STAMP: Final = Struct(">IId")
"""Number of the publisher, number of the message, instant it was due."""
LATE_S: Final = 5.0
"""After the last PUBLISH: how long what is on its way may take to arrive."""
STALL_S: Final = 2.0
"""QoS 0: a publisher that waits this long for deliveries takes them for lost."""
BURST_MAX: Final = 64
"""Messages of one publisher in a row, so that the others get their turn."""


@final
class Flow:
    """What a subscriber has of one publisher: all below `next_number` but the `holes`."""

    __slots__ = ("holes", "next_number")

    def __init__(self) -> None:
        self.next_number = 0
        self.holes: set[int] = set()

    def arrived(self, number: int) -> bool:
        """Note message `number`; False: a duplicate."""
        if number == self.next_number:
            self.next_number += 1
        elif number > self.next_number:
            self.holes.update(range(self.next_number, number))
            self.next_number = number + 1
        elif number in self.holes:
            self.holes.remove(number)
        else:
            return False
        return True

    def missing(self, sent: int) -> set[int]:
        """Numbers below `sent` that never came."""
        return self.holes | set(range(self.next_number, sent))


@final
class Subscriber:
    """Takes everything of its group's topic and acknowledges it."""

    __slots__ = ("_traffic", "client", "flows", "ready", "topic")

    def __init__(self, traffic: "Traffic", client: Client, topic: str) -> None:
        self._traffic = traffic
        self.client = client
        self.topic = topic
        self.ready = False
        self.flows: dict[int, Flow] = {}

    def connected(self, now_s: float) -> None:
        assert self.client.wire is not None
        options = SubscriptionOptions(self._traffic.plan.qos)
        packet = Subscribe(1, ((self.topic, options),))
        self.client.wire.write(encode(packet, self._traffic.version))

    def receive(self, packet: Packet, now_s: float) -> None:
        wire = self.client.wire
        assert wire is not None
        if packet.__class__ is Publish:
            if packet.qos == 1:
                wire.write(puback_frame(packet.packet_id))
            elif packet.qos == 2:
                wire.write(pubrec_frame(packet.packet_id))
            if len(packet.payload) >= STAMP.size:
                self._take(packet.payload, now_s)
        elif packet.__class__ is Pubrel:
            wire.write(pubcomp_frame(packet.packet_id))
        elif packet.__class__ is Suback:
            self.ready = packet.reason_codes[0] < ReasonCode.UNSPECIFIED_ERROR

    def _take(self, payload: bytes, now_s: float) -> None:
        publisher_number, number, due_s = STAMP.unpack_from(payload)
        tally = self._traffic.tally
        flow = self.flows[publisher_number]
        if not flow.arrived(number):
            tally.duplicates += 1
            return
        tally.received += 1
        tally.delivery.record(now_s - due_s)
        publisher = self._traffic.publishers[publisher_number]
        publisher.undelivered -= 1
        if publisher.waiting:
            publisher.pump(now_s)


@final
class Publisher:
    """Publishes to its group's topic within its bounds."""

    __slots__ = (
        "_frame",
        "_next_id",
        "_scheduled",
        "_stalled_at",
        "_started_s",
        "_traffic",
        "client",
        "number",
        "refused",
        "sent",
        "subscribers",
        "unacknowledged",
        "undelivered",
        "waiting",
    )

    def __init__(self, traffic: "Traffic", client: Client, topic: str, number: int) -> None:
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
        """Has something to say and may not."""

    def connected(self, now_s: float) -> None:
        """Publishing starts when all are in."""

    def start(self, now_s: float) -> None:
        """Publish from now on."""
        self._started_s = now_s
        self.pump(now_s)
        if self._traffic.plan.qos == 0:
            self._traffic.crowd.loop.call_at(now_s + STALL_S, self._watch)

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
            self._send(due_s, now_s)
        self._pump_at(now_s)

    def _pump_at(self, at_s: float) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._traffic.crowd.loop.call_at(at_s, self._on_time)

    def _on_time(self, now_s: float) -> None:
        self._scheduled = False
        self.pump(now_s)

    def _may_send(self) -> bool:
        plan = self._traffic.plan
        if plan.qos:
            allowed = min(plan.outstanding, self.client.properties.receive_maximum or PACKET_ID_MAX)
            if len(self.unacknowledged) >= allowed:
                return False
        return self.undelivered < plan.backlog_share * len(self.subscribers)

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
        """QoS 0: what was dropped on the way will never be counted back."""
        if self.waiting and self._stalled_at == self._traffic.tally.received:
            self.undelivered = 0
            self._traffic.tally.stalls += 1
            self.pump(now_s)
        self._stalled_at = self._traffic.tally.received
        if self._traffic.publishing:
            self._traffic.crowd.loop.call_at(now_s + STALL_S, self._watch)

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
        if reason_code >= ReasonCode.UNSPECIFIED_ERROR:
            tally.refused += 1
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


@final
class Traffic:
    """Run it once; `tally` and `crowd.tally` are live."""

    def __init__(
        self, target: Target, plan: TrafficPlan, crowd_plan: CrowdPlan, clock: Callable[[], float]
    ) -> None:
        assert crowd_plan.clients == plan.clients
        self.plan = plan
        self.crowd = Crowd(target, crowd_plan, clock)
        self.version = target.version
        self.tally = TrafficTally()
        self.publishing = False
        self.publishers: list[Publisher] = []
        self.subscribers: list[Subscriber] = []
        clients = iter(self.crowd.clients)
        for group in range(plan.groups):
            topic = f"{self.crowd.name}/{group}"
            subscribers = [Subscriber(self, next(clients), topic) for _ in range(plan.subscribers)]
            for _ in range(plan.publishers):
                number = len(self.publishers)
                publisher = Publisher(self, next(clients), topic, number)
                publisher.subscribers = subscribers
                publisher.client.part = publisher
                self.publishers.append(publisher)
                for subscriber in subscribers:
                    subscriber.flows[number] = Flow()
            for subscriber in subscribers:
                subscriber.client.part = subscriber
            self.subscribers += subscribers

    def stop(self) -> None:
        """End early, in order; the tally stays good."""
        self.crowd.stop()

    async def run(self) -> None:
        """Connect, subscribe, publish, wait for what is on its way, leave."""
        crowd = self.crowd
        try:
            if await crowd.connect() and await self._subscribed():
                await self._publish()
                self._close_books()
            await crowd.leave()
        finally:
            crowd.loop.close_all()

    async def _subscribed(self) -> bool:
        """All clients are in, and all subscriptions made."""
        if self.crowd.tally.connected < self.plan.clients:
            return False
        until_s = self.crowd.loop.clock() + self.crowd.plan.timeout_s

        def ready(now_s: float) -> bool:
            return now_s >= until_s or all(subscriber.ready for subscriber in self.subscribers)

        await self.crowd.loop.run(ready)
        return all(subscriber.ready for subscriber in self.subscribers)

    async def _publish(self) -> None:
        loop = self.crowd.loop
        started_s = loop.clock()
        self.publishing = True
        for number, publisher in enumerate(self.publishers):
            # Paced publishers start spread over their period: a crowd of pulses is not a load.
            period_s = 1 / self.plan.rate_per_s if self.plan.rate_per_s else 0.0
            loop.call_at(started_s + period_s * number / len(self.publishers), publisher.start)
        until_s = started_s + self.plan.seconds
        await loop.run(lambda now_s: self.crowd.stopped or now_s >= until_s)
        self.publishing = False
        self.tally.seconds = loop.clock() - started_s
        until_s = loop.clock() + LATE_S
        await loop.run(lambda now_s: now_s >= until_s or self._settled())

    def _settled(self) -> bool:
        return all(
            not publisher.unacknowledged and publisher.undelivered <= 0
            for publisher in self.publishers
        )

    def _close_books(self) -> None:
        tally = self.tally
        for publisher in self.publishers:
            tally.expected += publisher.sent * len(publisher.subscribers)
            for subscriber in publisher.subscribers:
                missing = subscriber.flows[publisher.number].missing(publisher.sent)
                tally.missing += len(missing)
                tally.acknowledged_lost += publisher.acknowledged_of(missing)

    def result(self) -> Result:
        """Both tallies as plain values."""
        return {**self.crowd.tally.result(), **self.tally.result()}
