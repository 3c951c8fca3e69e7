"""A client without a socket: its packets go straight to its connection, and back."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.encoder import encode
from flowguard.codec.packets import (
    Connack,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from flowguard.session.connection import ServerConnection
from flowguard.types import NO_PROPERTIES, Properties, Publish, SubscriptionOptions

P = TypeVar("P")


class Broker(Protocol):
    """The server's side that a client needs: a whole node (`Stage`), or sessions alone."""

    now_s: float

    def opened(self, client: "WiredClient") -> ServerConnection:
        """Return the connection of a new client."""

    def closed(self) -> None:
        """A socket was closed."""

    def settle(self) -> None:
        """Work until nothing moves."""


@dataclass(eq=False)
class WiredClient:
    """The other end of a connection: sends packets or raw bytes, collects what comes."""

    stage: Broker
    version: int
    inbox: list[Packet] = field(default_factory=list)
    raw: bytearray = field(default_factory=bytearray)
    reads: bool = True
    """False: the socket takes nothing, as with a peer that does not read."""
    connack: Connack = field(default_factory=Connack)

    def __post_init__(self) -> None:
        self.connection = self.stage.opened(self)
        self._decoder = PacketDecoder(2**28, self.version, role="client")
        self._packet_id = 0
        self.socket_closed = False

    @property
    def is_closed(self) -> bool:
        """The server has ended the connection."""
        return self.connection.ended

    def carry(self) -> None:
        """Move the server's outbox to the inbox, or refuse it as a full socket would."""
        outbound = self.connection.outbound
        if outbound.outbox.frames:
            data = outbound.outbox.take()
            if not self.reads:
                outbound.outbox.put_back(data)
                return
            self.raw += data
            self._decoder.feed(data)
            while (packet := self._decoder.next()) is not None:
                self.inbox.append(packet)
        if outbound.has_more:
            outbound.pump(self.stage.now_s)
        if self.connection.may_close and not self.socket_closed:
            self.socket_closed = True
            self.stage.closed()

    def read_again(self) -> None:
        """The peer reads: what waited for its socket arrives."""
        self.reads = True
        self.carry()
        self.stage.settle()

    # --- sending -----------------------------------------------------------------------------

    def send_bytes(self, data: bytes) -> None:
        """Raw bytes, in the chunks they are given."""
        self.connection.receive_data(data, self.stage.now_s)
        self.stage.settle()

    def send(self, *packets: Packet) -> None:
        """All packets in one chunk."""
        self.send_bytes(b"".join(encode(packet, self.version) for packet in packets))

    def close(self) -> None:
        """The network connection ends without a word."""
        self.connection.receive_eof(self.stage.now_s)
        self.stage.settle()

    def disconnect(self, reason_code: int = 0, **properties: Any) -> None:
        self.send(Disconnect(reason_code, _properties(properties)))
        self.close()

    def next_packet_id(self) -> int:
        self._packet_id = self._packet_id % 65_535 + 1
        return self._packet_id

    def publish(
        self,
        topic: str,
        payload: bytes = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        **properties: Any,
    ) -> int:
        """Send PUBLISH; its packet identifier."""
        packet_id = self.next_packet_id() if qos else 0
        self.send(
            Publish(
                topic,
                payload,
                qos,
                retain,
                packet_id=packet_id,
                properties=_properties(properties),
            )
        )
        return packet_id

    def subscribe(self, *filters: str, qos: int = 0, identifier: int = 0, **options: Any) -> Suback:
        """SUBSCRIBE and its SUBACK; `options`: no_local, retain_as_published, retain_handling."""
        wanted = SubscriptionOptions(qos=qos, **options)
        properties = Properties(subscription_identifiers=(identifier,)) if identifier else None
        self.send(
            Subscribe(
                self.next_packet_id(),
                tuple((filter, wanted) for filter in filters),
                properties or NO_PROPERTIES,
            )
        )
        return self.expect(Suback)

    def unsubscribe(self, *filters: str) -> Unsuback:
        self.send(Unsubscribe(self.next_packet_id(), filters))
        return self.expect(Unsuback)

    # --- receiving ---------------------------------------------------------------------------

    def expect(self, kind: Callable[..., P]) -> P:
        """Take the first packet of this kind out of the inbox; fails when there is none."""
        for position, packet in enumerate(self.inbox):
            if type(packet) is kind:
                del self.inbox[position]
                return packet  # type: ignore[return-value]
        raise AssertionError(f"no {kind.__name__} among {self.inbox}")  # type: ignore[attr-defined]

    def take(self) -> list[Packet]:
        """Everything received since the last time."""
        inbox, self.inbox = self.inbox, []
        return inbox

    def publishes(self, *, acknowledge: bool = True) -> list[Publish]:
        """Take the PUBLISH packets out of the inbox, by default completing their exchanges."""
        found = [packet for packet in self.inbox if isinstance(packet, Publish)]
        self.inbox = [packet for packet in self.inbox if not isinstance(packet, Publish)]
        if acknowledge:
            for packet in found:
                if packet.qos == 1:
                    self.send(Puback(packet.packet_id))
                elif packet.qos == 2:
                    self.send(Pubrec(packet.packet_id))
                    self.expect(Pubrel)
                    self.send(Pubcomp(packet.packet_id))
            if found:
                found += self.publishes()
        return found


def _properties(values: dict[str, Any]) -> Properties:
    return Properties(**values) if values else NO_PROPERTIES
