"""Mixed load on a broker: clean, durable and shared readers, publishers, retained messages, wills.

All clients run in this process, on one loop, until they are cancelled. A client that loses its
connection connects again.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import count, cycle

import trio

from flowguard.codec.packets import (
    Connack,
    Disconnect,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Subscribe,
    Will,
)
from flowguard.types import MQTT_5, MQTT_311, Publish, SubscriptionOptions
from tests.support.real import Wire, connect_packet

PUBLISHERS = 12
READERS = 6
"""Number of clients of each kind: clean, members of groups, durable, short-lived."""
RETAINED_TOPICS = 100
PAYLOAD_BYTES = (200, 1_000, 5_000)
STAY_S = 3.0
"""Time that a durable client is connected, then away; a short-lived one stays half of it."""
RETRY_S = 0.5
Client = Callable[[], Awaitable[None]]


class Load:
    """Clients of every kind at one broker, which publish `rate` messages a second together."""

    def __init__(self, address: tuple[str, int], rate: float) -> None:
        self._address = address
        self._pause_s = (PUBLISHERS + 1) / rate
        self.published = 0
        self.delivered = 0
        self.connected = 0
        """CONNECTs that were accepted."""
        self.rejected_s: list[float] = []
        """When a CONNECT was rejected, seconds of `time.monotonic`."""
        self.lost = 0
        """Connections that the broker has ended."""

    async def run(self) -> None:
        """Until cancelled."""
        async with self.client("away", durable=True) as away:
            with trio.move_on_after(RETRY_S):
                await self._take(away, 1, "$share/durable/plain/#")
        clients: list[Client] = [partial(self._retain, "retainer")]
        clients += [partial(self._publish, f"publisher{n}", n) for n in range(PUBLISHERS)]
        for number in range(READERS):
            qos = number % 3
            groups = (f"$share/clean{qos}/plain/#", "$share/durable/plain/#")
            clients += [
                partial(self._read, f"clean{number}", qos, ("plain/#", "will")),
                partial(self._read, f"member{number}", qos, groups),
                partial(self._come_back, f"durable{number}", qos),
                partial(self._come_and_go, f"short{number}"),
            ]
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(self._again_and_again, client)

    async def _again_and_again(self, client: Client) -> None:
        while True:
            try:
                await client()
            except (OSError, trio.BrokenResourceError, EndedError):
                self.lost += 1
            except RejectedError:
                self.rejected_s.append(time.monotonic())
            await trio.sleep(RETRY_S)

    # --- clients -----------------------------------------------------------------------------

    async def _publish(self, client_id: str, number: int) -> None:
        """Messages of all sizes, one in flight."""
        async with self.client(client_id) as wire:
            for size_bytes in cycle(PAYLOAD_BYTES):
                message = Publish(f"plain/{number}", bytes(size_bytes), number % 3, packet_id=1)
                await self._send(wire, message)

    async def _retain(self, client_id: str) -> None:
        """Retained messages, of which each tenth is removed."""
        async with self.client(client_id) as wire:
            for number in count():
                payload = bytes(number % 10 and PAYLOAD_BYTES[number % 3])
                topic = f"kept/{number % RETAINED_TOPICS}"
                await self._send(wire, Publish(topic, payload, number % 3, True, packet_id=1))

    async def _read(self, client_id: str, qos: int, filters: tuple[str, ...]) -> None:
        async with self.client(client_id) as wire:
            await self._take(wire, qos, *filters)

    async def _come_back(self, client_id: str, qos: int) -> None:
        """A durable session whose client is connected half of the time."""
        async with self.client(client_id, durable=True) as wire:
            with trio.move_on_after(STAY_S):
                await self._take(wire, qos, "plain/#")
        await trio.sleep(STAY_S)

    async def _come_and_go(self, client_id: str) -> None:
        """One that leaves a will, one that leaves in good order, one that is taken over."""
        for version, way in ((MQTT_5, "will"), (MQTT_311, "order"), (MQTT_5, "take-over")):
            will = Will("will", bytes(100), 1)
            async with self.client(client_id, version, will=will) as wire:
                with trio.move_on_after(STAY_S / 2):
                    await self._take(wire, 1, "plain/#", "kept/#")
                if way == "order":
                    await wire.send(Disconnect())
                elif way == "take-over":
                    async with self.client(client_id):
                        pass

    # --- packets -----------------------------------------------------------------------------

    @asynccontextmanager
    async def client(
        self,
        client_id: str,
        version: int = MQTT_5,
        *,
        durable: bool = False,
        will: Will | None = None,
    ) -> AsyncIterator[Wire]:
        """A client that was accepted, until the block ends. Raises `RejectedError`."""
        wire = Wire(await trio.open_tcp_stream(*self._address), version)
        try:
            await wire.send(connect_packet(client_id, version, durable=durable, will=will))
            connack = await wire.receive()
            if not isinstance(connack, Connack) or connack.reason_code:
                raise RejectedError(connack)
            self.connected += 1
            yield wire
        finally:
            wire.stream.socket.close()

    async def _send(self, wire: Wire, message: Publish) -> None:
        """A message, until it is acknowledged, and a pause."""
        await wire.send(message)
        for _ in range(message.qos):
            answer = await wire.receive()
            if answer is None:
                raise EndedError
            if isinstance(answer, Pubrec):
                await wire.send(Pubrel(answer.packet_id))
        self.published += 1
        await trio.sleep(self._pause_s)

    async def _take(self, wire: Wire, qos: int, *filters: str) -> None:
        """Subscribe, then read and acknowledge until cancelled. Raises `EndedError`."""
        options = SubscriptionOptions(qos)
        await wire.send(Subscribe(1, tuple((filter, options) for filter in filters)))
        while (packet := await wire.receive()) is not None:
            if isinstance(packet, Publish):
                self.delivered += 1
                if packet.qos == 1:
                    await wire.send(Puback(packet.packet_id))
                elif packet.qos == 2:
                    await wire.send(Pubrec(packet.packet_id))
            elif isinstance(packet, Pubrel):
                await wire.send(Pubcomp(packet.packet_id))
        raise EndedError


class EndedError(Exception):
    """The broker has ended a connection."""


class RejectedError(Exception):
    """The answer to a CONNECT is no CONNACK with success."""
