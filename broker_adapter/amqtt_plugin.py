"""A plugin for amqtt: gate, windows and rejections of flowguard, by a few lines of configuration.

    plugins:
      amqtt.plugins.authentication.AnonymousAuthPlugin:
        allow_anonymous: true
      broker_adapter.amqtt_plugin.OverloadProtection:
        flow:
          window_max: 50

amqtt acknowledges a PUBLISH of QoS 1 before it handles it, and its queues are unlimited. So a
packet counts as in process until the queue to subscribers, which this plugin limits, has taken it.
Beyond the window of a client, its connection is not read.

amqtt notifies plugins of packets, but does not let them delay packets. So this plugin replaces the
streams of each connection when amqtt 0.12 takes them over (`Broker._client_connected`).
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, Protocol, final

from amqtt.plugins.base import BasePlugin

from broker_adapter.asyncio_guard import AsyncioBell, Ticking
from broker_adapter.host_guard import GuardedClient, GuardedPacket, HostGuard
from broker_adapter.proxy.frames import FrameSplitter
from broker_adapter.waits import AsyncGuard, RefusedError
from flowguard.codec import tables
from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connack, Connect
from flowguard.config import MIB, FlowSettings
from flowguard.errors import PeerError
from flowguard.flow import Verdict
from flowguard.types import MQTT_5, MQTT_311, NO_PROPERTIES, Properties, ReasonCode

BROADCASTS_MAX: Final = 100
"""Maximum number of messages in the queue to subscribers; above it publishers wait."""
CONNECT_BYTES_MAX: Final = MIB
COUNTED: Final = frozenset((tables.PUBLISH, tables.SUBSCRIBE, tables.UNSUBSCRIBE))


class Reader(Protocol):
    """amqtt's ReaderAdapter."""

    async def read(self, n: int = -1) -> bytes:
        """Read `n` bytes; fewer at the end of the stream."""

    def feed_eof(self) -> None:
        """End the stream."""


class OverloadProtection(BasePlugin):
    """The plugin; `config.flow` has the keys of flowguard's section `flow`."""

    @dataclass
    class Config:
        """The plugin's part of amqtt's configuration."""

        flow: dict[str, Any] = field(default_factory=dict)

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        settings = FlowSettings.model_validate(self.config.flow)
        self._timeout_s = settings.connect_timeout_s
        self.guard = HostGuard(settings, patience_s=inf)  # A paused client is only not read.
        self._host: AsyncGuard | None = None
        self._ticking: Ticking | None = None
        broker = context._broker_instance
        broker._broadcast_queue = FairQueue()
        self._connected: Callable[..., Awaitable[None]] = broker._client_connected
        self._deliver: Callable[..., Awaitable[bool]] = broker._handle_message_delivery
        broker._client_connected = self._on_connected
        broker._handle_message_delivery = self._on_delivery

    async def close(self) -> None:
        """Stop the ticks at the end of the broker."""
        if self._ticking is not None:
            self._ticking.stop()

    def _begin(self) -> AsyncGuard:
        loop = asyncio.get_running_loop()
        self._ticking = Ticking(self.guard, loop)
        self._host = AsyncGuard(self.guard, loop.time, AsyncioBell)
        return self._host

    async def _on_connected(self, listener_name: str, reader: Reader, writer: Any) -> None:
        """Serve a connection if its CONNECT is admitted."""
        host = self._host or self._begin()
        splitter = GuardedReader(host, reader)
        try:
            async with asyncio.timeout(self._timeout_s):
                connect = await splitter.read_connect()
            entry = host.connecting(splitter.client, len(connect))
            await entry.__aenter__()
        except RefusedError as refused:
            await _refuse(writer, splitter.version, refused)
            return
        except (TimeoutError, EOFError, OSError, PeerError):
            await _close(writer)
            return
        try:
            await self._connected(listener_name, splitter, GuardedWriter(splitter, writer))
        finally:
            splitter.end()

    async def _on_delivery(self, session: Any, handler: Any, waiter: Any) -> bool:
        """Handle a PUBLISH; it is done when the queue to subscribers has taken it."""
        try:
            return await self._deliver(session, handler, waiter)
        finally:
            reader, message = handler.reader, waiter.result()
            if isinstance(reader, GuardedReader) and message is not None:
                reader.published(message.packet_id if message.qos else 0)


@final
class FairQueue(asyncio.Queue[dict[str, Any]]):
    """The queue to subscribers, with slots in order of request. In an `asyncio.Queue`, a newcomer
    may take a slot as soon as it is free, so that a flood starves waiting publishers.
    """

    def __init__(self) -> None:
        super().__init__()
        self._places = asyncio.Semaphore(BROADCASTS_MAX)

    async def put(self, item: dict[str, Any]) -> None:
        """Wait for a slot, and take it."""
        await self._places.acquire()
        self.put_nowait(item)

    def get_nowait(self) -> dict[str, Any]:
        """Return the next message, and free its slot."""
        item = super().get_nowait()
        self._places.release()
        return item


@final
class GuardedReader:
    """The stream of a connection that amqtt reads, packet by packet within the client's window.

    amqtt cancels a read when a keep-alive ends, and reads again; no data are lost.
    """

    def __init__(self, host: AsyncGuard, reader: Reader) -> None:
        self._host = host
        self._reader = reader
        self._partial = bytearray()
        """An incomplete fixed header."""
        self._frame = b""
        """A packet that waits for capacity."""
        self._waiting: tuple[GuardedPacket, int] | None = None
        """The waiting packet as the guard has it, and its identifier."""
        self._room = asyncio.Event()
        self._readable = bytearray()
        """Bytes that amqtt may read."""
        self._by_id: dict[int, list[GuardedPacket]] = {}
        """Packets in process by identifier; several if a client repeats one before it is done."""
        self._qos_0: deque[GuardedPacket] = deque()
        self.client: GuardedClient = host.client()
        self.version = MQTT_311

    async def read_connect(self) -> bytes:
        """Read the CONNECT and keep it for amqtt; raises `PeerError`, `EOFError`."""
        frame = await self._read_frame(CONNECT_BYTES_MAX)
        decoder = PacketDecoder(CONNECT_BYTES_MAX)
        decoder.feed(frame)
        packet = decoder.next()
        assert isinstance(packet, Connect)
        self.version = packet.version
        self.client = self._host.client(packet.client_id, packet.username or "")
        if not packet.client_id and packet.clean_start:
            packet.client_id = f"auto-{secrets.token_hex(12)}"
            frame = encode(packet, packet.version)
        self._readable += frame
        return frame

    async def read(self, n: int = -1) -> bytes:
        """Read `n` bytes of admitted packets; fewer at the end."""
        try:
            while len(self._readable) < n or (n < 0 and not self._readable):
                await self._admit_next()
        except EOFError:
            n = len(self._readable)
        n = len(self._readable) if n < 0 else n
        data = bytes(self._readable[:n])
        del self._readable[:n]
        return data

    def feed_eof(self) -> None:
        """End the stream."""
        self._reader.feed_eof()

    async def _admit_next(self) -> None:
        if not self._frame:
            self._frame = await self._read_frame(None)
            _, heads = FrameSplitter().scan(self._frame)
            if heads and heads[0].kind in COUNTED:
                self._start(heads[0].packet_id)
        if self._waiting is not None:
            await self._room.wait()
            self._count(*self._waiting)
            self._waiting = None
        self._readable += self._frame
        self._frame = b""

    def _start(self, packet_id: int) -> None:
        host = self._host
        self._room = asyncio.Event()
        packet = host.guard.start(
            self.client, host.clock(), size_bytes=len(self._frame), told=self._on_told
        )
        if packet.admission.verdict is Verdict.DELAY:
            self._waiting = packet, packet_id
        elif packet.admission.verdict is Verdict.REJECT:
            raise EOFError  # The maximum number of packets waits already.
        else:
            self._count(packet, packet_id)

    def _count(self, packet: GuardedPacket, packet_id: int) -> None:
        """Count a packet as in process until amqtt has handled its identifier."""
        if packet_id:
            self._by_id.setdefault(packet_id, []).append(packet)
        else:
            self._qos_0.append(packet)

    def _on_told(self, packet: GuardedPacket) -> None:
        self._room.set()

    async def _read_frame(self, bytes_max: int | None) -> bytes:
        partial = self._partial
        while len(partial) < 2 or (partial[-1] >= 0x80 and len(partial) < 5):
            partial += await self._exactly(1)
        length = sum((byte & 0x7F) << 7 * at for at, byte in enumerate(partial[1:]))
        if bytes_max is not None and length > bytes_max:
            raise EOFError
        frame = bytes(partial) + (await self._exactly(length) if length else b"")
        partial.clear()
        return frame

    async def _exactly(self, n: int) -> bytes:
        try:
            data = await self._reader.read(n)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise EOFError from error
        if not data or len(data) < n:
            raise EOFError
        return data

    # --- what is done ------------------------------------------------------------------------

    def published(self, packet_id: int) -> None:
        """A PUBLISH was handled; `packet_id` 0: the oldest of QoS 0."""
        if packet_id:
            self.answered(packet_id)
        elif self._qos_0:
            self._host.guard.done(self._qos_0.popleft(), self._host.clock())

    def answered(self, packet_id: int) -> None:
        """All packets with this identifier are done."""
        for packet in self._by_id.pop(packet_id, ()):
            self._host.guard.done(packet, self._host.clock())

    def accepted(self) -> None:
        """CONNACK was sent."""
        self._host.guard.answered(self.client, self._host.clock())

    def end(self) -> None:
        """End the connection: none of its packets is in process any more."""
        if self._waiting is not None:
            # It may have been admitted, but amqtt has not read it.
            self._host.guard.done(self._waiting[0], self._host.clock())
            self._waiting = None
        for packet_id in list(self._by_id):
            self.answered(packet_id)
        while self._qos_0:
            self.published(0)
        self._host.gone(self.client)


@final
class GuardedWriter:
    """amqtt's writer, observed: CONNACK, SUBACK and UNSUBACK complete a packet."""

    def __init__(self, reader: GuardedReader, writer: Any) -> None:
        self._reader = reader
        self._writer = writer

    def write(self, data: bytes) -> None:
        """Write one packet of the broker."""
        kind = data[0] >> 4 if data else 0
        if kind in (tables.CONNACK, tables.SUBACK, tables.UNSUBACK):
            _, heads = FrameSplitter().scan(bytes(data))
            if kind == tables.CONNACK:
                self._reader.accepted()
            elif heads:
                self._reader.answered(heads[0].packet_id)
        self._writer.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


async def _refuse(writer: Any, version: int, refused: RefusedError) -> None:
    """Send CONNACK 0x89 (Server busy) with a retry-after hint; MQTT 3.1.1: code 3."""
    properties = NO_PROPERTIES
    if version == MQTT_5:
        after_ms = round(1_000 * refused.retry_after_s)
        properties = Properties(user_properties=(("retry-after-ms", str(after_ms)),))
    writer.write(encode(Connack(False, ReasonCode.SERVER_BUSY, properties), version))
    await _close(writer)


async def _close(writer: Any) -> None:
    """Send pending data, and close; the peer may have disconnected."""
    with suppress(OSError):
        await writer.drain()
        await writer.close()
