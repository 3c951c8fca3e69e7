"""All links of one node: bytes of connections in, bytes and calls of a host out, without IO.

A node dials each peer once. The connection that A dials to B carries, from A: messages for B's
sessions, confirmations of B's filters, A's pressure; from B: B's filters and the answers "durable
up to n". So all that A needs to forward to B is on one connection.

The host is the broker's node: it routes and commits. It asks for output whenever a connection can
be written; the mesh keeps no encoded bytes. If a call raises `PeerError`, or a connection ends, the
host closes it and calls `lost`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol, final

from flowguard.cluster.frames import (
    NOT_OWED,
    FilterChange,
    FiltersConfirmed,
    Frame,
    FrameDecoder,
    LinkHello,
    LinkMessage,
    MessageBatch,
    OwedAddress,
    StreamDurable,
    StreamOpen,
    StreamRejected,
    Unnumbered,
    encode_frame,
)
from flowguard.cluster.links import IncomingStream, OutgoingStream, Then
from flowguard.cluster.members import Members
from flowguard.cluster.pressure import PressureRecord
from flowguard.cluster.routes import FilterFeed, OwnFilters, PeerFilters
from flowguard.errors import ProtocolViolation

OUTPUT_BYTES: Final = 65_536
"""Output of a connection ends with the frame that reaches it."""


class LinkHost(Protocol):
    """The node that the links belong to."""

    def opened(self, peer: str) -> None:
        """A connection to a peer can carry messages now."""

    def take(
        self,
        peer: str,
        messages: list[LinkMessage],
        mark: OwedAddress,
        then: Then,
        now_s: float,
    ) -> None:
        """Route messages of a peer to sessions of this node, and commit them with the mark.

        `then` is called after the commit. Commits end in the order of these calls.
        """

    def take_unnumbered(self, peer: str, messages: tuple[bytes, ...], now_s: float) -> None:
        """Route QoS 0 messages of a peer to sessions of this node."""

    def rejection(self) -> str:
        """Return why no message can be taken now, or ""."""

    def filters_changed(self, peer: str, added: list[str], removed: list[str]) -> None:
        """The filters of a peer have changed."""

    def filters_confirmed(self, now_s: float) -> None:
        """A peer has confirmed filters of this node, or has died: a SUBACK may leave now."""

    def delivered(self, peer: str, address: OwedAddress) -> None:
        """A message that this node owed to a peer is durable there."""

    def answered(self, peer: str) -> None:
        """Messages to a peer are durable: its link may have capacity."""

    def pressure_received(self, record: PressureRecord, now_s: float) -> None:
        """A peer has sent its load."""


@final
class LinkConnection:
    def __init__(self, peer: str, bytes_max: int) -> None:
        """`peer` is the node that was dialled, or "" if the connection was accepted."""
        self.is_dialled = bool(peer)
        self.peer = peer
        self.incarnation = 0
        """The peer's, or 0 before its hello."""
        self.decoder = FrameDecoder(bytes_max)
        self.control: list[Frame] = []
        """Frames that are sent before all others."""
        self.durable: StreamDurable | None = None
        self.confirmed: FiltersConfirmed | None = None
        self.pressure: PressureRecord | None = None
        self.sends_unnumbered = False
        """True if QoS 0 messages are sent next, and then others."""
        self.feed: FilterFeed | None = None
        """Filters of this node for a peer that dialled it, or None on a connection to a peer."""


@final
class _Taken:
    """Messages of one batch, until they are committed."""

    def __init__(self, mesh: "Mesh", peer: str, incarnation: int, number: int) -> None:
        self._mesh = mesh
        self._peer = peer
        self._incarnation = incarnation
        self._number = number

    def committed(self, now_s: float) -> None:
        self._mesh.committed(self._peer, self._incarnation, self._number)


def _sleep_on() -> None:
    """Nothing has to be woken."""


class Mesh:
    def __init__(
        self,
        members: Members,
        host: LinkHost,
        outgoing: Mapping[str, OutgoingStream],
        incoming: Mapping[str, IncomingStream],
        frame_bytes_max: int,
    ) -> None:
        """`outgoing` and `incoming` have a stream for each peer."""
        self.members = members
        self.outgoing = outgoing
        self.own_filters = OwnFilters()
        self.peer_filters = PeerFilters(members.peers)
        self.wake: Callable[[], None] = _sleep_on
        """Called if a connection may have new output."""
        self._host = host
        self._incoming = incoming
        self._frame_bytes_max = frame_bytes_max
        self._dialled: dict[str, LinkConnection] = {}
        self._accepted: dict[str, LinkConnection] = {}
        """The newest connection from each peer: frames of all others are rejected."""

    # --- connections -----------------------------------------------------------------------------

    def undialled(self) -> list[str]:
        """Return the peers that this node must dial."""
        return [name for name in self.members.peers if name not in self._dialled]

    def linked(self) -> set[str]:
        """Return the peers that have answered the hello of this node."""
        return {name for name, each in self._dialled.items() if each.incarnation}

    def dial(self, peer: str) -> LinkConnection:
        assert peer not in self._dialled
        connection = LinkConnection(peer, self._frame_bytes_max)
        connection.control.append(self._hello())
        self._dialled[peer] = connection
        return connection

    def accept(self) -> LinkConnection:
        return LinkConnection("", self._frame_bytes_max)

    def lost(self, connection: LinkConnection) -> None:
        """The connection has ended, or is closed."""
        peer = connection.peer
        if self._dialled.get(peer) is connection:
            del self._dialled[peer]
            self.outgoing[peer].end()
            self.outgoing[peer].lose_unnumbered()
            self.peer_filters.forget_snapshot(peer)
        elif self._accepted.get(peer) is connection:
            del self._accepted[peer]
            self._incoming[peer].end()

    def died(self, peer: str, incarnation: int, now_s: float) -> None:
        if self.members.died(peer, incarnation):
            connection = self._accepted.get(peer)
            if connection is not None:
                self.lost(connection)
            self._host.filters_confirmed(now_s)

    # --- filters, pressure -----------------------------------------------------------------------

    def subscribe(self, filter: str) -> None:
        """Count a subscription of an own session; its SUBACK waits until `is_confirmed`."""
        if self.own_filters.add(filter):
            self._note(filter, True)

    def unsubscribe(self, filter: str) -> None:
        if self.own_filters.remove(filter):
            self._note(filter, False)

    def is_confirmed(self, number: int) -> bool:
        """True if each peer that may be alive forwards by the change `number` of filters.

        A suspect peer may be alive. It may have acknowledged a PUBLISH that it read before this
        change, so a SUBACK waits until it answers or is dead.
        """
        return self.own_filters.is_confirmed(number, self.members.living())

    def targets(self, matched: Iterable[str]) -> set[str]:
        """Return the peers that get a message; `matched` are those with a filter that matches."""
        return self.peer_filters.unknown.union(matched)

    def send_pressure(self, record: PressureRecord) -> None:
        """Send the load of this node to all peers, in place of an older record."""
        for connection in self._dialled.values():
            connection.pressure = record
        self.wake()

    # --- messages --------------------------------------------------------------------------------

    def reopen(self) -> None:
        """Every 100 ms: start the streams again that a peer has rejected."""
        for peer, connection in self._dialled.items():
            if connection.incarnation and not self.outgoing[peer].is_open:
                connection.control.append(self.outgoing[peer].open())
                self.wake()

    def reject(self, reason: str) -> None:
        """End all streams to this node; their messages come again after a while."""
        for peer, connection in self._accepted.items():
            if self._incoming[peer].is_open:
                self._reject(connection, reason)

    def committed(self, peer: str, incarnation: int, number: int) -> None:
        """All messages of an incarnation of a peer up to `number` are committed."""
        durable = self._incoming[peer].committed(incarnation, number)
        connection = self._accepted.get(peer)
        if connection is not None and durable is not None:
            connection.durable = durable
            self.wake()

    # --- bytes -----------------------------------------------------------------------------------

    def output(self, connection: LinkConnection) -> bytes:
        """Return the next bytes to send, or b"" if there are none."""
        output = bytearray()
        while len(output) < OUTPUT_BYTES:
            frame = self._next_frame(connection)
            if frame is None:
                break
            output += encode_frame(frame)
        return bytes(output)

    def receive(self, connection: LinkConnection, data: bytes, now_s: float) -> None:
        for frame in connection.decoder.feed(data):
            if isinstance(frame, LinkHello):
                self._meet(connection, frame, now_s)
            elif not connection.incarnation:
                raise ProtocolViolation("a frame before the hello")
            elif connection.is_dialled:
                self._answered(connection, frame, now_s)
            else:
                self._asked(connection, frame, now_s)
        if connection.incarnation:
            self.members.received(connection.peer, now_s)

    def _next_frame(self, connection: LinkConnection) -> Frame | None:
        if connection.control:
            return connection.control.pop(0)
        if not connection.incarnation:
            return None
        if (durable := connection.durable) is not None:
            connection.durable = None
            return durable
        if (confirmed := connection.confirmed) is not None:
            connection.confirmed = None
            return confirmed
        if (pressure := connection.pressure) is not None:
            connection.pressure = None
            return pressure
        if connection.feed is not None:
            return connection.feed.next()
        return self._next_messages(connection)

    def _next_messages(self, connection: LinkConnection) -> Frame | None:
        """Messages of QoS 0 and others take turns."""
        stream = self.outgoing[connection.peer]
        connection.sends_unnumbered = not connection.sends_unnumbered
        if connection.sends_unnumbered:
            return stream.next_unnumbered() or stream.next_batch()
        return stream.next_batch() or stream.next_unnumbered()

    def _meet(self, connection: LinkConnection, hello: LinkHello, now_s: float) -> None:
        if connection.incarnation or (connection.is_dialled and hello.name != connection.peer):
            raise ProtocolViolation(f"an unexpected hello of {hello.name!r}")
        rejection = self.members.meet(hello.name, hello.incarnation, now_s)
        if rejection:
            raise ProtocolViolation(rejection)
        connection.peer = hello.name
        connection.incarnation = hello.incarnation
        if connection.is_dialled:
            connection.control.append(self.outgoing[hello.name].open())
            self._host.opened(hello.name)
            return
        self._incoming[hello.name].meet(hello.incarnation)
        self._accepted[hello.name] = connection
        connection.control.append(self._hello())
        connection.feed = FilterFeed(self.own_filters)

    def _asked(self, connection: LinkConnection, frame: Frame, now_s: float) -> None:
        """Handle a frame of a peer that dialled this node."""
        peer = connection.peer
        if self._accepted.get(peer) is not connection:
            raise ProtocolViolation(
                f"{peer!r} has a newer link, or incarnation {connection.incarnation} died"
            )
        if isinstance(frame, MessageBatch):
            self._take(connection, frame, now_s)
        elif isinstance(frame, Unnumbered):
            self._host.take_unnumbered(peer, frame.messages, now_s)
        elif isinstance(frame, FiltersConfirmed):
            self.own_filters.confirmed(peer, frame.number)
            self._host.filters_confirmed(now_s)
        elif isinstance(frame, StreamOpen):
            connection.durable = self._incoming[peer].open(frame)
            self._reject_if_needed(connection)
        elif isinstance(frame, PressureRecord) and frame.node == peer:
            self._host.pressure_received(frame, now_s)
        else:
            raise ProtocolViolation(f"an unexpected frame of {peer!r}: {type(frame).__name__}")

    def _answered(self, connection: LinkConnection, frame: Frame, now_s: float) -> None:
        """Handle a frame of a peer that this node dialled."""
        peer = connection.peer
        if isinstance(frame, StreamDurable):
            for forwarded in self.outgoing[peer].answered(frame):
                if forwarded.message.owed != NOT_OWED:
                    self._host.delivered(peer, forwarded.message.owed)
                if forwarded.then is not None:
                    forwarded.then(now_s)
            self._host.answered(peer)
        elif isinstance(frame, FilterChange):
            changes = self.peer_filters.receive(peer, frame)
            if changes is not None:
                self._host.filters_changed(peer, changes[0], changes[1])
                connection.confirmed = FiltersConfirmed(frame.number)
        elif isinstance(frame, StreamRejected):
            self.outgoing[peer].end()
        else:
            raise ProtocolViolation(f"an unexpected frame of {peer!r}: {type(frame).__name__}")

    def _take(self, connection: LinkConnection, batch: MessageBatch, now_s: float) -> None:
        if self._reject_if_needed(connection):
            return
        peer, stream = connection.peer, self._incoming[connection.peer]
        before = stream.taken
        messages = stream.take(batch)
        if stream.taken > before:
            taken = _Taken(self, peer, stream.incarnation, stream.taken)
            self._host.take(peer, messages, stream.mark, taken.committed, now_s)

    def _reject_if_needed(self, connection: LinkConnection) -> bool:
        """Reject the stream if the host can take no message; True if the stream has ended."""
        if self._incoming[connection.peer].is_open and (reason := self._host.rejection()):
            self._reject(connection, reason)
        return not self._incoming[connection.peer].is_open

    def _reject(self, connection: LinkConnection, reason: str) -> None:
        self._incoming[connection.peer].end()
        connection.control.append(StreamRejected(reason))

    def _note(self, filter: str, is_added: bool) -> None:
        for connection in self._accepted.values():
            if connection.feed is not None:
                connection.feed.note(filter, is_added)
        self.wake()

    def _hello(self) -> LinkHello:
        return LinkHello(self.members.name, self.members.incarnation)
