"""The real broker on a real socket of 127.0.0.1, in this process, and clients that speak to it.

    async with broker({"flow": {"window_max": 10}}) as running:
        client = await connect(running, "a")
        await client.send(Pingreq())
        await client.expect(Pingresp)

Nothing here judges time: TEST_S only ends a test that hangs. A client that meets a reset sees it as
`trio.BrokenResourceError`; the orderly end of a connection is `None`.
"""

import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import trio

from flowguard.broker.identity.identity_checks import IdentityChecks
from flowguard.broker.memory import bounds_of
from flowguard.broker.server import Running, listen, serve
from flowguard.broker.sockets.listening import Doorway
from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.encoder import encode
from flowguard.codec.packets import (
    Connack,
    Connect,
    Packet,
    Pingreq,
    Pingresp,
    Suback,
    Subscribe,
    Will,
)
from flowguard.config import Settings
from flowguard.flow.load.signals import StoreState
from flowguard.node.connect.authentication import Hooks
from flowguard.records import StoreOp
from flowguard.stores import Fenced, MemoryStore, Store
from flowguard.stores.base import StoreLoad
from flowguard.types import MQTT_5, NO_PROPERTIES, Properties, Publish, SubscriptionOptions
from tests.support.patience import HANG_S

P = TypeVar("P")
TEST_S = HANG_S
POLL_S = 0.005
CALM = {"queue_objective_s": 1e9, "loop_objective_s": 1e9, "store_objective_s": 1e9}
"""Objectives that no machine misses, so that the window does not depend on its speed."""


@asynccontextmanager
async def broker(
    settings: dict[str, dict[str, Any]] | None = None,
    *,
    store: Store | None = None,
    hooks: Hooks | None = None,
    checks: IdentityChecks | None = None,
    listener: socket.socket | Sequence[Doorway] | None = None,
    calm: bool = False,
    alone: bool = False,
) -> AsyncIterator[Running]:
    """Yield a broker until the block ends, which drains it. If `calm`, its window does not change.

    If `alone`, it waits for sockets as in a process of its own.
    """
    settings = dict(settings or {})
    if calm:
        settings["flow"] = CALM | settings.get("flow", {})
    start = partial(
        serve,
        bounds_of(Settings.model_validate(settings)),
        store or MemoryStore(),
        listener or listen("127.0.0.1", 0),
        hooks=hooks,
        checks=checks,
        alone=alone,
    )
    with trio.fail_after(TEST_S):
        async with trio.open_nursery() as nursery:
            running: Running = await nursery.start(start)
            try:
                yield running
            finally:
                running.stop.set()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that the broker does by itself."""
    with trio.fail_after(TEST_S):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(POLL_S)


class SlowStore(MemoryStore):
    """A memory store behind a disk that works only while `open` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.immediate = False
        self.state = StoreState.FLOWING
        """The engine's own state."""
        self.open = threading.Event()
        self.open.set()
        self.commits = 0

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        self.open.wait(TEST_S)
        fenced = super().commit(ops)
        self.commits += 1
        return fenced

    def load(self) -> StoreLoad:
        return StoreLoad(self.state)


class Wire:
    """A client's end: packets out, packets in, no rules of its own."""

    def __init__(self, stream: trio.SocketStream, version: int) -> None:
        self.stream = stream
        self.version = version
        self._decoder = PacketDecoder(2**28, version, role="client")

    async def send(self, *packets: Packet) -> None:
        """All packets in one chunk."""
        await self.stream.send_all(b"".join(encode(packet, self.version) for packet in packets))

    async def receive(self) -> Packet | None:
        """Return the next packet, or None if the broker has ended the connection properly."""
        with trio.fail_after(TEST_S):
            while (packet := self._decoder.next()) is None:
                data = await self.stream.receive_some(256 * 1024)
                if not data:
                    return None
                self._decoder.feed(bytes(data))
        return packet

    async def expect(self, kind: Callable[..., P]) -> P:
        """The next packet, which must be of this kind."""
        packet = await self.receive()
        assert type(packet) is kind, f"{packet} is no {kind}"
        return packet  # type: ignore[return-value]

    async def ping(self) -> None:
        """Until everything sent before has been looked at."""
        await self.send(Pingreq())
        await self.expect(Pingresp)

    async def publish(self, topic: str, payload: bytes) -> None:
        """A QoS 0 message."""
        await self.send(Publish(topic, payload))

    async def subscribe(self, filter: str, qos: int) -> None:
        await self.send(Subscribe(1, ((filter, SubscriptionOptions(qos)),)))
        assert (await self.expect(Suback)).reason_codes == (qos,)

    async def close(self) -> None:
        await self.stream.aclose()


async def open_wire(running: Running, version: int = MQTT_5) -> Wire:
    """A connection that has said nothing yet."""
    return Wire(await trio.open_tcp_stream(*running.address), version)


def connect_packet(
    client_id: str,
    version: int = MQTT_5,
    *,
    durable: bool = False,
    keep_alive_s: int = 0,
    will: Will | None = None,
    **properties: Any,
) -> Connect:
    """A CONNECT; `durable`: its session survives the connection."""
    if durable and version == MQTT_5:
        properties["session_expiry_interval"] = 3_600
    return Connect(
        client_id,
        version,
        clean_start=not durable,
        keep_alive_s=keep_alive_s,
        will=will,
        properties=Properties(**properties) if properties else NO_PROPERTIES,
    )


async def connect(running: Running, client_id: str, version: int = MQTT_5, **options: Any) -> Wire:
    """A client that has been accepted."""
    wire = await open_wire(running, version)
    await wire.send(connect_packet(client_id, version, **options))
    connack = await wire.expect(Connack)
    assert connack.reason_code == 0
    return wire


async def offline_subscriber(running: Running, filter: str, client_id: str = "offline") -> None:
    """A durable session with a QoS 2 subscription and no connection: publishing must commit."""
    wire = await connect(running, client_id, durable=True)
    await wire.subscribe(filter, 2)
    await wire.close()
    await until(lambda: running.node.registry.sessions[client_id].outbound is None)


def publishes(topic: str, count: int, qos: int = 1, payload: bytes = b"x") -> list[Publish]:
    """Messages with packet identifiers from 1."""
    return [
        Publish(topic, payload, qos, packet_id=number if qos else 0)
        for number in range(1, count + 1)
    ]
