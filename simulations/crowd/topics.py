"""Topics: the receivers of a population's messages."""

from dataclasses import dataclass
from typing import Final, Protocol, final

from flowguard.flow.load.histogram import LATENCY_BOUNDS_S, Histogram
from flowguard.records import NEVER_S, Append, Delivery, StoreOp
from flowguard.types import Publish
from simulations.scenario import PopulationPlan

Targets = tuple[tuple[int, int], ...]
"""(node, deliveries) for each node."""
NOBODY: Final[Targets] = ()
ALL: Final = -1
"""Stands for every subscriber."""


class Audience(Protocol):
    """The population that receives the messages of a topic."""

    plan: PopulationPlan
    subscribed_counts: list[int]
    """Number of subscribed clients at each node."""
    subscribed_version: int
    """Number that grows with every change of `subscribed_counts`."""

    @property
    def clients(self) -> int: ...

    def place_of(self, client: int) -> int | None:
        """Return the node to which a subscriber is connected, or None."""


@final
@dataclass(slots=True, eq=False)
class Message:
    """One PUBLISH between its decoding and its last delivery."""

    topic: "Topic"
    due_s: float
    node: int
    """The node that has it from its publisher, and acknowledges it."""
    targets: Targets
    ops: list[StoreOp]
    receiver: int
    """The one receiver among the audience, or `ALL`."""

    @property
    def positions(self) -> dict[str, int]:
        """The receivers, as an argument of `Journal.sent`."""
        topic = self.topic
        return topic.positions if self.receiver == ALL else {str(self.receiver): 1}

    @property
    def deliveries(self) -> int:
        return sum(count for _, count in self.targets)


@final
class Topic:
    """The destinations of one population's messages."""

    def __init__(
        self,
        payload_bytes: int,
        audience: Audience | None,
        *,
        to_all: bool,
        latency_s: float,
        stored: bool = True,
    ) -> None:
        self.payload_bytes = payload_bytes
        self.delivered_count = 0
        self.deliveries = Histogram(LATENCY_BOUNDS_S)
        """Times from the instant a PUBLISH was due to its arrival at a subscriber."""
        self.is_stored = audience is not None and audience.plan.durable
        """Whether subscribers get it from queues that outlive their connections."""
        self.positions = (
            {} if audience is None else dict.fromkeys(map(str, range(audience.clients)), 1)
        )
        """A position for each of the audience, as `Journal.sent` has them; only their number
        matters."""
        self._audience = audience
        self._to_all = to_all
        self._latency_s = latency_s
        publish = Publish("topic", bytes(payload_bytes), 1, packet_id=1)
        self._op: StoreOp = Append("", 1, Delivery(publish, 1, False, (), NEVER_S))
        self._one: list[StoreOp] = [self._op] if stored else []
        self._seen = -1
        self._targets: Targets = NOBODY
        self._ops = self._one

    def route(self, client: int, due_s: float, node: int) -> Message:
        """The message of a client, with its receivers; it is stored for every durable
        subscriber."""
        audience = self._audience
        if audience is None:
            return Message(self, due_s, node, NOBODY, self._one, ALL)
        if self._to_all:
            if self._seen != audience.subscribed_version:
                self._look(audience)
            return Message(self, due_s, node, self._targets, self._ops, ALL)
        receiver = client % audience.clients
        place = audience.place_of(receiver)
        targets: Targets = NOBODY if place is None else ((place, 1),)
        return Message(self, due_s, node, targets, self._one, receiver)

    @property
    def deliveries_max(self) -> int:
        if self._audience is None:
            return 0
        return self._audience.clients if self._to_all else 1

    def _look(self, audience: Audience) -> None:
        self._seen = audience.subscribed_version
        counts = audience.subscribed_counts
        self._targets = tuple((node, count) for node, count in enumerate(counts) if count)
        stored = sum(counts) if audience.plan.durable else 1
        self._ops = self._one * max(1, stored)

    def delivered(self, message: Message, deliveries: int, sent_s: float) -> None:
        """That many subscribers have it, a latency after `sent_s`."""
        self.delivered_count += deliveries
        self.deliveries.observe(sent_s + self._latency_s - message.due_s, deliveries)
