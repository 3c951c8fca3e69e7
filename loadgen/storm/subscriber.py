"""A subscriber of a storm, and its books: the messages it has of each publisher."""

from collections.abc import Sequence
from struct import Struct
from typing import Final, Protocol, final

from flowguard.codec import (
    Packet,
    Pubrel,
    Suback,
    Subscribe,
    encode,
    puback_frame,
    pubcomp_frame,
    pubrec_frame,
)
from flowguard.types import Publish, ReasonCode, SubscriptionOptions
from loadgen.storm.client import Client, Stage
from loadgen.storm.loop import ClientLoop
from loadgen.storm.plan import TrafficPlan
from loadgen.storm.tally import TrafficTally

STAMP: Final = Struct(">IId")
"""Beginning of a payload: number of the publisher, number of the message, instant it was due."""
SIP_S: Final = 0.1
"""A slow subscriber reads its share this often."""


class Source(Protocol):
    """A publisher, for its subscribers."""

    sent: int
    undelivered: int
    waiting: bool

    def pump(self, now_s: float) -> None:
        """Send messages that are due, within its bounds."""


class Joint(Protocol):
    """Plan, clock and books that all publishers and subscribers of a storm share."""

    plan: TrafficPlan
    version: int
    loop: ClientLoop
    tally: TrafficTally
    publishing: bool

    @property
    def publishers(self) -> Sequence[Source]:
        """All publishers, by their numbers."""


@final
class Flow:
    """Messages received of one publisher: all below `next_number` except the `holes`."""

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

    __slots__ = ("_traffic", "answered", "client", "flows", "ready", "slow", "topic")

    def __init__(self, traffic: Joint, client: Client, topic: str) -> None:
        self._traffic = traffic
        self.client = client
        self.topic = topic
        self.answered = False
        """Whether the broker has said anything to its SUBSCRIBE; `ready`: and granted it."""
        self.ready = False
        self.slow = False
        """Reads slowly while messages are published."""
        self.flows: dict[int, Flow] = {}

    def connected(self, now_s: float) -> None:
        assert self.client.wire is not None
        options = SubscriptionOptions(self._traffic.plan.qos)
        packet = Subscribe(1, ((self.topic, options),))
        self.client.wire.write(encode(packet, self._traffic.version))

    def hold(self, now_s: float) -> None:
        """Read slowly from now on, until `release`."""
        wire = self.client.wire
        if wire is not None and self.client.stage is Stage.IN:
            wire.hold()
            self._sip(now_s)

    def _sip(self, now_s: float) -> None:
        wire = self.client.wire
        share_bytes = int(self._traffic.plan.slow_bytes_per_s * SIP_S)
        if share_bytes and wire is not None and not wire.reads:
            wire.read(share_bytes)
            self._traffic.loop.call_at(now_s + SIP_S, self._sip)

    def release(self) -> None:
        if self.client.wire is not None:
            self.client.wire.release()

    def receive(self, packet: Packet, now_s: float) -> None:
        wire = self.client.wire
        assert wire is not None
        if packet.__class__ is Publish:
            if packet.qos == 1:
                wire.write(puback_frame(packet.packet_id))
            elif packet.qos == 2:
                wire.write(pubrec_frame(packet.packet_id))
            self._take(packet.payload, now_s)
        elif packet.__class__ is Pubrel:
            wire.write(pubcomp_frame(packet.packet_id))
        elif packet.__class__ is Suback:
            self._subscribed(packet.reason_codes[0])

    def _subscribed(self, reason_code: int) -> None:
        self.answered = True
        self.ready = reason_code < ReasonCode.UNSPECIFIED_ERROR
        if not self.ready:
            self._traffic.tally.subscribe_refusals[reason_code] += 1

    def _take(self, payload: bytes, now_s: float) -> None:
        tally = self._traffic.tally
        stamp = STAMP.unpack_from(payload) if len(payload) >= STAMP.size else (-1, 0, 0.0)
        publisher_number, number, due_s = stamp
        flow = self.flows.get(publisher_number)
        if flow is None or number >= self._traffic.publishers[publisher_number].sent:
            tally.strays += 1
            return
        if not flow.arrived(number):
            tally.duplicates += 1
            return
        tally.received += 1
        tally.received_at_s = now_s
        tally.slow_received += self.slow
        tally.delivery.record(now_s - due_s)
        publisher = self._traffic.publishers[publisher_number]
        publisher.undelivered -= 1
        if publisher.waiting:
            publisher.pump(now_s)
