"""LocalClient: a client in the broker's own process, with the usual back-pressure.

It speaks MQTT 5.0 over a pair of sockets. So it has a window, a queue, a session and a CONNECT at
the gate like any other client, and hooks are called for it. Publishing waits while the broker does
not read. Undelivered messages of QoS 1 and 2 stay in the broker (Receive Maximum). Those of QoS 0
wait in the client, limited in number and bytes; messages beyond these limits are dropped and
counted.
"""

from collections import deque
from collections.abc import AsyncIterator
from typing import Final, final

import trio

from flowguard.broker.local.local_packets import (
    publish_packet,
    subscribe_packet,
    unsubscribe_packet,
)
from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.encoder import encode, publish_frame
from flowguard.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from flowguard.config import KIB, MIB, PACKET_SIZE_MAX
from flowguard.errors import FlowguardError
from flowguard.types import (
    MQTT_5,
    NO_PROPERTIES,
    Properties,
    Publish,
    ReasonCode,
)

INBOX_MESSAGES: Final = 100
"""Maximum number of untaken messages of QoS 1 and 2 (Receive Maximum), and of QoS 0."""
INBOX_BYTES: Final = MIB
"""Maximum size of untaken QoS 0 payloads, bytes."""
OUTGOING_BYTES: Final = 64 * KIB
"""Encoded packets that may wait for the broker, bytes; above it publishing waits."""
READ_BYTES: Final = 64 * KIB
FAILURE: Final = 0x80
"""Reason codes from this value on are failures."""


class NotAcceptedError(FlowguardError):
    """The broker has rejected a CONNECT, a message or a subscription."""

    def __init__(self, reason_code: int, retry_after_s: float = 0.0) -> None:
        name = ReasonCode(reason_code).name.lower() if reason_code in list(ReasonCode) else ""
        super().__init__(f"refused by the broker: 0x{reason_code:02X} {name}".rstrip())
        self.reason_code = reason_code
        self.retry_after_s = retry_after_s
        """Retry-after hint of the broker, seconds, or 0 without one."""


class EndedError(FlowguardError):
    """The connection has ended: the client was closed, or the broker has ended it."""


@final
class _Exchange:
    """A request that the broker will answer."""

    __slots__ = ("answer", "done")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.answer: Packet | None = None


@final
class _Inbox:
    """Received messages that were not taken."""

    def __init__(self) -> None:
        self.messages: deque[Publish] = deque()
        self.came = trio.Event()
        self.dropped = 0
        self._qos_0 = 0
        self._bytes = 0
        """Size of the QoS 0 payloads."""

    def put(self, message: Publish) -> None:
        """Keep a message, or drop one of QoS 0 beyond the limits."""
        if not message.qos:
            size_bytes = self._bytes + len(message.payload)
            if self._qos_0 >= INBOX_MESSAGES or (self._qos_0 and size_bytes > INBOX_BYTES):
                self.dropped += 1
                return
            self._bytes = size_bytes
            self._qos_0 += 1
        self.messages.append(message)
        self.wake()

    def take(self) -> Publish:
        """Remove the oldest message."""
        message = self.messages.popleft()
        if not message.qos:
            self._qos_0 -= 1
            self._bytes -= len(message.payload)
        return message

    def wake(self) -> None:
        """Wake the tasks that wait for a message."""
        self.came.set()
        self.came = trio.Event()


@final
class LocalClient:
    """One connection; `connect` it, `run` its tasks, `close` it."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._decoder = PacketDecoder(PACKET_SIZE_MAX, MQTT_5, role="client")
        self._outgoing = bytearray()
        self._to_write = trio.Event()
        self._written = trio.Event()
        self._exchanges: dict[int, _Exchange] = {}
        self._packet_id = 0
        self._quota = trio.Semaphore(0)
        """Quota of unacknowledged messages of QoS 1 and 2 (Receive Maximum)."""
        self._packet_size_max = PACKET_SIZE_MAX
        self._qos_max = 2
        self._retain_available = True
        self._keep_alive_s = 0
        """Keep-alive that the broker requires (`session.keep_alive_max_s`), or 0 without one."""
        self._inbox = _Inbox()
        self._taken: Publish | None = None
        """The message taken last, which is acknowledged when the next one is requested."""
        self.ended = False
        self.client_id = ""

    async def connect(self, packet: Connect) -> None:
        """Send CONNECT; raises `NotAcceptedError` and `EndedError`."""
        try:
            await self._stream.send_all(encode(packet, MQTT_5))
            connack = await self._next()
        except trio.BrokenResourceError:
            connack = None
        if not isinstance(connack, Connack):
            raise EndedError("the broker has closed the connection")
        properties = connack.properties
        if connack.reason_code:
            after_ms = dict(properties.user_properties).get("retry-after-ms", "0")
            raise NotAcceptedError(connack.reason_code, float(after_ms) / 1_000)
        self._packet_size_max = properties.maximum_packet_size or PACKET_SIZE_MAX
        self._qos_max = 2 if properties.maximum_qos is None else properties.maximum_qos
        self._keep_alive_s = properties.server_keep_alive or 0
        self._retain_available = properties.retain_available != 0
        self.client_id = properties.assigned_client_identifier or packet.client_id
        for _ in range(properties.receive_maximum or 65_535):
            self._quota.release()

    async def run(self) -> None:
        """Transfer bytes until the client is closed or the broker ends the connection."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            if self._keep_alive_s:
                nursery.start_soon(self._ping)
            try:
                while (packet := await self._next()) is not None:
                    self._handle(packet)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # The client or the broker has ended the connection.
            finally:
                self._end()
                await trio.aclose_forcefully(self._stream)
            nursery.cancel_scope.cancel()

    async def close(self) -> None:
        """Send DISCONNECT; safe to repeat, and after the end of the broker."""
        try:
            if not self.ended:
                self._put(Disconnect())
                with trio.move_on_after(1):
                    while self._outgoing and not self.ended:
                        await self._written.wait()
        finally:
            self._end()
            await trio.aclose_forcefully(self._stream)

    # --- publishing --------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        *,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        """Publish a message; for QoS 1 and 2, wait until the broker has stored it.

        Raises TypeError and ValueError for a wrong argument, before anything is sent. Raises
        `NotAcceptedError` if the broker rejects the message, and `EndedError` if its outcome is
        unknown.
        """
        packet = publish_packet(topic, payload, qos, retain, properties)
        self._check(packet)
        if not qos:
            await self._have_room()
            self._put(packet)
            return
        await self._quota.acquire()
        try:
            await self._have_room()
            exchange = self._ask(packet)
        except BaseException:
            self._quota.release()
            raise
        await exchange.done.wait()
        answer = exchange.answer
        if answer is None:
            raise EndedError("the connection has ended before the message was acknowledged")
        assert isinstance(answer, Puback | Pubrec | Pubcomp)
        if answer.reason_code >= FAILURE:
            raise NotAcceptedError(answer.reason_code)

    async def subscribe(self, *filters: str, qos: int = 2) -> None:
        """Subscribe to all of these filters; messages come through `receive`.

        Raises TypeError and ValueError for a wrong argument, `NotAcceptedError`, and `EndedError`.
        """
        await self._request(subscribe_packet(filters, qos))

    async def unsubscribe(self, *filters: str) -> None:
        """Unsubscribe from all of these; raises as `subscribe`."""
        await self._request(unsubscribe_packet(filters))

    async def _request(self, packet: Subscribe | Unsubscribe) -> None:
        self._check(packet)
        await self._have_room()
        exchange = self._ask(packet)
        await exchange.done.wait()
        answer = exchange.answer
        if answer is None:
            raise EndedError("the connection has ended before the request was answered")
        assert isinstance(answer, Suback | Unsuback)
        for reason_code in answer.reason_codes:
            if reason_code >= FAILURE:
                raise NotAcceptedError(reason_code)

    async def _have_room(self) -> None:
        while len(self._outgoing) >= OUTGOING_BYTES and not self.ended:
            await self._written.wait()
        if self.ended:
            raise EndedError("the connection has ended")

    def _check(self, packet: Publish | Subscribe | Unsubscribe) -> None:
        """Raise ValueError if the broker has announced that it takes no such packet."""
        if isinstance(packet, Publish):
            size_bytes = self._checked_size(packet)
        else:
            size_bytes = len(encode(packet, MQTT_5))
        if size_bytes > self._packet_size_max:
            raise ValueError(
                f"a packet of {size_bytes:,} bytes; the broker takes {self._packet_size_max:,} "
                "at most (session.packet_size_max)"
            )

    def _checked_size(self, packet: Publish) -> int:
        """Return its size on the wire, bytes, even if it exceeds the limit."""
        if packet.qos > self._qos_max:
            raise ValueError(
                f"qos is {packet.qos}; the broker takes {self._qos_max} at most "
                "(session.maximum_qos)"
            )
        if packet.retain and not self._retain_available:
            raise ValueError("retain: the broker keeps no message (session.retain_available)")
        head, tail = publish_frame(packet, MQTT_5, packet.qos, packet.retain, packet.properties)
        return len(head) + len(tail) + (2 if packet.qos else 0)

    def _ask(self, packet: Publish | Subscribe | Unsubscribe) -> _Exchange:
        """Send a request; one that cannot be sent takes no identifier."""
        while True:  # The quota, and one request per task, leave some of 65,535 free.
            self._packet_id = self._packet_id % 65_535 + 1
            if self._packet_id not in self._exchanges:
                break
        packet.packet_id = self._packet_id
        self._put(packet)
        exchange = self._exchanges[self._packet_id] = _Exchange()
        return exchange

    # --- receiving ---------------------------------------------------------------------------

    async def receive(self) -> Publish:
        """Return the next message and acknowledge the one before. Raises `EndedError` at the
        end."""
        self._acknowledge()
        inbox = self._inbox
        while not inbox.messages:
            if self.ended:
                raise EndedError("the connection has ended")
            await inbox.came.wait()
        message = self._taken = inbox.take()
        return message

    @property
    def dropped(self) -> int:
        """Number of QoS 0 messages dropped because the inbox was full."""
        return self._inbox.dropped

    async def __aiter__(self) -> AsyncIterator[Publish]:
        """Yield messages until the connection ends."""
        while True:
            try:
                message = await self.receive()
            except EndedError:
                return
            yield message

    def _acknowledge(self) -> None:
        message, self._taken = self._taken, None
        if message is not None and message.qos and not self.ended:
            kind = Puback if message.qos == 1 else Pubrec
            self._put(kind(message.packet_id))

    # --- packets -----------------------------------------------------------------------------

    def _handle(self, packet: Packet) -> None:
        match packet:
            case Publish():
                self._inbox.put(packet)
            case Pubrec() if packet.reason_code < FAILURE:
                self._put(Pubrel(packet.packet_id))
            case Puback() | Pubrec() | Pubcomp():
                self._quota.release()
                self._finish(packet.packet_id, packet)
            case Suback() | Unsuback():
                self._finish(packet.packet_id, packet)
            case Pubrel():
                self._put(Pubcomp(packet.packet_id))
            case _:
                pass  # DISCONNECT: the end of the stream follows.

    def _finish(self, packet_id: int, answer: Packet) -> None:
        exchange = self._exchanges.pop(packet_id, None)
        if exchange is not None:
            exchange.answer = answer
            exchange.done.set()

    def _end(self) -> None:
        self.ended = True
        for exchange in self._exchanges.values():
            exchange.done.set()
        self._exchanges.clear()
        self._quota.release()  # The next publisher finds the end, and releases the one after it.
        self._inbox.wake()
        self._written.set()
        self._to_write.set()

    # --- bytes -------------------------------------------------------------------------------

    def _put(self, packet: Packet) -> None:
        """Queue a packet. Packets other than acknowledgements must wait for `_have_room` first."""
        self._outgoing += encode(packet, MQTT_5)
        self._to_write.set()

    async def _write(self) -> None:
        try:
            while not self.ended:
                await self._to_write.wait()
                self._to_write = trio.Event()
                data = bytes(self._outgoing)
                await self._stream.send_all(data)
                del self._outgoing[: len(data)]
                self._written.set()
                self._written = trio.Event()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # The reader gets the same error.

    async def _ping(self) -> None:
        while True:
            await trio.sleep(self._keep_alive_s / 2)
            if not self._outgoing:  # Pending output also keeps the connection alive.
                self._put(Pingreq())

    async def _next(self) -> Packet | None:
        """Return the next packet, or None at the end."""
        while (packet := self._decoder.next()) is None:
            data = await self._stream.receive_some(READ_BYTES)
            if not data:
                return None
            self._decoder.feed(bytes(data))
        return packet
