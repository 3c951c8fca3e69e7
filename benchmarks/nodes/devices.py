"""Devices: clients of a cluster with durable sessions, which publish at a steady pace.

Each device publishes at QoS 1 to its own session. While it is not connected, or has as much
unacknowledged as it may have, its newest message waits in it. A lost connection is made again, at
the next node, and without a longer pause after each failure, as simple clients do.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

from benchmarks.brokers import HOST
from flowguard.codec import Packet, Puback, Subscribe, encode, puback_frame
from flowguard.codec.encoder import publish_frame
from flowguard.types import MQTT_5, NO_PROPERTIES, PACKET_ID_MAX, Publish, SubscriptionOptions
from loadgen.storm.client import Client, Stage
from loadgen.storm.crowd import Crowd
from loadgen.storm.plan import CrowdPlan, RetryPolicy, Target
from loadgen.storm.tally import LatencyHistogram

PAYLOAD_BYTES = 128
OUTSTANDING = 10
"""Maximum number of messages of a device without PUBACK."""
IN_TIME_S = 3.0
RETRY = RetryPolicy(first_s=1.0, max_s=1.0)
CONNACK_S = 1.0
CONNECT_S = 120.0
DUP = 8


@dataclass
class Second:
    """Results of all devices in a second."""

    due: int = 0
    in_time: int = 0
    """Messages acknowledged within `IN_TIME_S` of the instant at which they were due."""
    acknowledged: int = 0
    delivered: int = 0
    connected: int = 0
    """Devices that are connected at its end."""
    attempts: int = 0
    rejected: int = 0
    residents: LatencyHistogram = field(default_factory=LatencyHistogram)
    """Time from PUBLISH to PUBACK of devices that have kept their connection."""


@final
class Device:
    __slots__ = (
        "_client",
        "_fleet",
        "_frame",
        "_next_id",
        "_number",
        "_unacknowledged",
        "_waiting_s",
        "connections",
    )

    def __init__(self, fleet: "Fleet", client: Client, number: int) -> None:
        self._fleet = fleet
        self._client = client
        self._number = number
        self._next_id = 0
        self._waiting_s: float | None = None
        """When the message that waits was due, or None."""
        self._unacknowledged: dict[int, tuple[float, float]] = {}
        """When each message was due, and when it was sent."""
        message = Publish(f"{fleet.crowd.name}/{number}", bytes(PAYLOAD_BYTES))
        self._frame = publish_frame(message, MQTT_5, 1, False, NO_PROPERTIES)
        self.connections = 0

    def connected(self, now_s: float) -> None:
        wire = self._client.wire
        assert wire is not None
        self.connections += 1
        if self.connections == 1:
            topic = f"{self._fleet.crowd.name}/{self._number}"
            wire.write(encode(Subscribe(1, ((topic, SubscriptionOptions(1)),)), MQTT_5))
        head, tail = self._frame
        again = bytes((head[0] | DUP,)) + head[1:]
        for packet_id in self._unacknowledged:
            wire.write(again + packet_id.to_bytes(2, "big") + tail)
        self._send(now_s)

    def begin(self, now_s: float) -> None:
        """Publish for the first time within a period, and then in each."""
        period_s = self._fleet.period_s
        first_s = now_s + self._fleet.crowd.rng.uniform(0, period_s)
        self._fleet.crowd.loop.call_at(first_s, self._publish)

    def _publish(self, now_s: float) -> None:
        self._fleet.now(now_s).due += 1
        self._waiting_s = now_s
        self._send(now_s)
        self._fleet.crowd.loop.call_at(now_s + self._fleet.period_s, self._publish)

    def _send(self, now_s: float) -> None:
        client = self._client
        if client.stage is not Stage.IN:
            return
        assert client.wire is not None
        most = min(OUTSTANDING, client.properties.receive_maximum or OUTSTANDING)
        head, tail = self._frame
        if self._waiting_s is not None and len(self._unacknowledged) < most:
            self._next_id = self._next_id % PACKET_ID_MAX + 1
            self._unacknowledged[self._next_id] = (self._waiting_s, now_s)
            self._waiting_s = None
            client.wire.write(head + self._next_id.to_bytes(2, "big") + tail)

    def receive(self, packet: Packet, now_s: float) -> None:
        if isinstance(packet, Publish):
            assert self._client.wire is not None
            self._client.wire.write(puback_frame(packet.packet_id))
            self._fleet.now(now_s).delivered += 1
        elif isinstance(packet, Puback) and packet.packet_id in self._unacknowledged:
            due_s, sent_s = self._unacknowledged.pop(packet.packet_id)
            second = self._fleet.now(now_s)
            second.acknowledged += 1
            second.in_time += now_s - due_s <= IN_TIME_S
            if self.connections == 1:
                second.residents.record(now_s - sent_s)
            self._send(now_s)


@final
class Fleet:
    """All devices. `seconds` has what they saw in each second since `begin`."""

    def __init__(self, count: int, ports: Sequence[int]) -> None:
        plan = CrowdPlan(count, RETRY, CONNACK_S, CONNECT_S, durable=True, returns=True)
        places = [(HOST, port) for port in ports]
        self.crowd = Crowd(Target.resolve(HOST, ports[0]), plan, time.monotonic, places)
        self.devices = [
            Device(self, client, number) for number, client in enumerate(self.crowd.clients)
        ]
        for client, device in zip(self.crowd.clients, self.devices, strict=True):
            client.part = device
        self.period_s = 1.0
        self.began_s = time.monotonic()
        self.seconds: list[Second] = [Second()]

    def now(self, now_s: float) -> Second:
        """The second of this instant."""
        index = int(now_s - self.began_s)
        while len(self.seconds) <= index:
            self._close(self.seconds[-1])
            self.seconds.append(Second())
        return self.seconds[index]

    def _close(self, second: Second) -> None:
        tally = self.crowd.tally
        second.connected = tally.connected
        second.attempts = tally.attempts
        second.rejected = tally.busy + tally.refused.total()

    async def connect(self) -> None:
        """Raises `AssertionError` if some devices are not connected in time."""
        assert await self.crowd.connect()
        assert self.crowd.tally.settled, "not all devices could connect"

    def begin(self, rate_per_s: float) -> None:
        """Let all devices together publish `rate_per_s` messages per second from now on."""
        self.period_s = len(self.devices) / rate_per_s
        self.began_s = time.monotonic()
        self.seconds = [Second()]
        for device in self.devices:
            device.connections = 1
            device.begin(self.began_s)

    async def wait(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        until_s = time.monotonic() + seconds
        await self.crowd.loop.run(lambda now_s: now_s >= until_s or until())
        self.now(time.monotonic())
