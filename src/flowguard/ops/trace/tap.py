"""Tap: the stream of a traced connection; what passes it becomes lines."""

from collections.abc import Callable
from typing import Final, final

from flowguard.broker.sockets.link import Link
from flowguard.errors import PeerError
from flowguard.ops.trace.decisions import DecisionLooks
from flowguard.ops.trace.heads import Head, PacketHeads
from flowguard.ops.trace.lines import TraceLines
from flowguard.ops.trace.words import fields_of, name_of, packet_of
from flowguard.session.connection import ServerConnection
from flowguard.types import Publish

ALIASES_MAX: Final = 64
"""Topic aliases of each direction that are remembered, to show their topics."""


@final
class Tap:
    """Takes the place of `Link.sock`, and passes everything on to it."""

    def __init__(
        self, connection: ServerConnection, link: Link[ServerConnection], clock: Callable[[], float]
    ) -> None:
        """Bytes that were received and wait are shown at once."""
        self.connection = connection
        self.client_id = connection.client_id or ""
        self.decisions = DecisionLooks()
        self.traces: list[TraceLines] = []
        self._link = link
        self._stream = stream = link.sock
        self._clock = clock
        version = connection.version
        self._received = _Direction("received", version, from_client=True)
        self._sent = _Direction("sent", version, from_client=False)
        self._is_aligned = not connection.outbound.outbox.blocked
        """False while the next byte to be sent may lie within a packet."""
        self.shutdown = stream.shutdown
        self.getsockopt = stream.getsockopt
        self.getpeername = stream.getpeername
        self.getsockname = stream.getsockname
        self.fileno = stream.fileno
        self.close = stream.close
        link.sock = self

    def remove(self) -> None:
        """Give the connection its own stream back."""
        self._link.sock = self._stream

    @property
    def is_closed(self) -> bool:
        return self._link.fd < 0

    def recv(self, size_bytes: int, flags: int = 0, /) -> bytes:
        data = self._stream.recv(size_bytes, flags)
        self.show_received(data)
        return data

    def send(self, data: bytes, flags: int = 0, /) -> int:
        sent_bytes = self._stream.send(data, flags)
        if self._is_aligned:
            self._show(self._sent, data[:sent_bytes])
        elif sent_bytes == len(data):
            self._is_aligned = True
        return sent_bytes

    def show_received(self, data: bytes) -> None:
        self._show(self._received, data)

    def tell(self, event: str, fields: dict[str, object]) -> None:
        """Add a line to all traces of the connection."""
        for trace in self.traces:
            if trace.has_room():
                trace.put(self._clock(), event, self.client_id, fields)

    def _show(self, way: "_Direction", data: bytes) -> None:
        try:
            for head in way.feed(data):
                for trace in self.traces:
                    if trace.has_room():
                        fields = way.fields(head, trace.payload_max)
                        trace.put(self._clock(), way.event, self.client_id, fields)
        except PeerError as error:
            way.is_broken = True
            self.tell(way.event, {"error": error.why})
        except Exception as error:  # The connection of a client does not end with its trace.
            for trace in self.traces:
                trace.error = error


@final
class _Direction:
    def __init__(self, event: str, version: int, *, from_client: bool) -> None:
        self.event = event
        self.is_broken = False
        """True if what follows cannot be split into packets."""
        self._version = version
        self._from_client = from_client
        self._heads = PacketHeads(version)
        self._topics: dict[int, str] = {}

    def feed(self, data: bytes) -> list[Head]:
        return [] if self.is_broken else self._heads.feed(data)

    def fields(self, head: Head, payload_max: int) -> dict[str, object]:
        """Return the description of a packet with at most `payload_max` bytes of its payload."""
        named: dict[str, object] = {"packet": name_of(head.data[0]), "bytes": head.size_bytes}
        try:
            packet = packet_of(head, self._version, from_client=self._from_client)
        except PeerError as error:
            return {**named, "error": error.why}
        if packet is not None:
            named |= fields_of(packet, payload_max)
        if isinstance(packet, Publish):
            named |= self._topic(packet)
        return named

    def _topic(self, packet: Publish) -> dict[str, object]:
        """Return the topic of an alias, if it is known."""
        alias = packet.properties.topic_alias
        if alias is None:
            return {}
        if packet.topic:
            if len(self._topics) < ALIASES_MAX:
                self._topics[alias] = packet.topic
            return {}
        return {"topic": self._topics.get(alias, "")}
