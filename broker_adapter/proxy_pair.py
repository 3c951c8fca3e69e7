"""ProxyPair: one client and its connection to the upstream broker, without sockets.

    OPENED --CONNECT--> OFFERED --place--> DIALING --opened--> CONNECTING --CONNACK--> CONNECTED
       \\__________________\\___________________\\_____________________\\__________________/
                refused (137, 136), too late, closed by either side ---> ENDED

What the client sends is held back as long as its window has no room, in order; PINGREQ and
acknowledgements in what was read ahead pass those that wait (the control lane). Everything else
passes as it came, and all that the upstream says passes: the acknowledgements are the upstream's.

A PUBLISH of QoS 1 and 2, a SUBSCRIBE and an UNSUBSCRIBE are in process until the upstream has
acknowledged them; a PUBLISH of QoS 0 until the upstream's socket has taken it.
"""

from collections import deque
from enum import Enum
from typing import Final, Protocol, final

from broker_adapter.proxy_frames import FrameHead, FrameSplitter
from broker_adapter.proxy_packets import HeldPacket, Outstanding
from flowguard.codec import tables
from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connack, Connect
from flowguard.codec.primitives import remaining_length
from flowguard.config import KIB
from flowguard.errors import MalformedPacket, PeerError
from flowguard.flow import (
    Admission,
    AdmissionWindow,
    Arrival,
    NodeWindow,
    Resumption,
    Verdict,
)
from flowguard.types import MQTT_5, MQTT_311, NO_PROPERTIES, Properties, ReasonCode

COUNTED: Final = frozenset((tables.PUBLISH, tables.SUBSCRIBE, tables.UNSUBSCRIBE))
LANE: Final = frozenset(
    (tables.PUBACK, tables.PUBREC, tables.PUBREL, tables.PUBCOMP, tables.PINGREQ)
)
ANSWERS: Final = frozenset((tables.PUBACK, tables.PUBREC, tables.SUBACK, tables.UNSUBACK))
LOOKAHEAD_BYTES: Final = 64 * KIB
"""So far a client without room is read ahead, for the control lane."""
OUT_BYTES: Final = 256 * KIB
"""From here on nothing more is read for a socket that takes nothing."""
BUSY: Final = frozenset((3, 0x88, 0x89, 0x97))
"""CONNACK codes by which an upstream says that it cannot now."""


class PairState(Enum):
    OPENED = "opened"
    OFFERED = "offered"
    DIALING = "dialing"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    ENDED = "ended"


class PairHost(Protocol):
    """The proxy, as far as a pair needs it."""

    connect_bytes_max: int
    """The largest CONNECT."""
    cost_bytes: int
    """A packet weighs one unit more for each so many bytes."""
    held_bytes: int
    """All that pairs hold; each tells its part."""
    lookahead_bytes: int
    """The bytes of a client without room that may be held."""
    dirty: "dict[ProxyPair, None]"
    """Pairs with something to send, or to close."""
    runnable: "dict[ProxyPair, None]"
    """Pairs to be run in the next turn."""

    @property
    def node_window(self) -> NodeWindow:
        """The packets that all pairs together have in process."""

    @property
    def is_tight(self) -> bool:
        """Whether all pairs hold so much that only who holds nothing is read."""

    def offer(self, pair: "ProxyPair", arrival: Arrival, now_s: float) -> None:
        """A CONNECT has come; `decided` follows."""

    def dial(self, pair: "ProxyPair", now_s: float) -> None:
        """It has a place: its connection to the upstream is to be opened."""

    def answered(self, pair: "ProxyPair", now_s: float, *, is_busy: bool) -> None:
        """The upstream's CONNACK has come."""

    def started(self, packet: Outstanding) -> None:
        """A packet is in process."""

    def done(self, packet: Outstanding, now_s: float) -> None:
        """It is no more."""

    def paused(self, pair: "ProxyPair", now_s: float) -> None:
        """It has packets and no room."""

    def gone(self, pair: "ProxyPair", now_s: float) -> None:
        """It has ended: nothing is remembered of it."""


@final
class ProxyPair:
    """Its owner moves bytes: `to_upstream` and `to_client` are what is to be sent."""

    __slots__ = (
        "_by_id",
        "_connect",
        "_core",
        "_from_client",
        "_from_upstream",
        "_held",
        "_held_bytes",
        "_passed_bytes",
        "_sent_bytes",
        "_sink",
        "_unacknowledged",
        "_weight_bytes",
        "client_eof",
        "connect_bytes",
        "offered_s",
        "opened_s",
        "state",
        "tenant",
        "to_client",
        "to_upstream",
        "transport",
        "version",
        "window",
    )

    def __init__(self, core: PairHost, now_s: float) -> None:
        self._core = core
        self.state = PairState.OPENED
        self.opened_s = now_s
        self.offered_s = now_s
        self.version = MQTT_311
        self.tenant = ""
        self.window: AdmissionWindow | None = None
        self.connect_bytes = b""
        self.to_client = bytearray()
        self.to_upstream = bytearray()
        self.client_eof = False
        self.transport: object = None
        """Its owner's."""
        self._connect = bytearray()
        self._from_client = FrameSplitter()
        self._from_upstream = FrameSplitter()
        self._held: deque[HeldPacket] = deque()
        self._held_bytes = 0
        self._sink: HeldPacket | None = None
        """Where the rest of the client's packet under way belongs; None: to the upstream."""
        self._by_id: dict[int, Outstanding] = {}
        self._unacknowledged: deque[tuple[int, Outstanding]] = deque()
        """QoS 0: in process until so many bytes have been sent."""
        self._passed_bytes = 0
        """All that was ever put into `to_upstream`."""
        self._sent_bytes = 0
        self._weight_bytes = 0

    # --- what its owner asks -----------------------------------------------------------------

    @property
    def ended(self) -> bool:
        return self.state is PairState.ENDED

    @property
    def flows(self) -> bool:
        """Whether it holds nothing at all, and both sides may be read: the common case."""
        return not (
            self.to_client
            or self.to_upstream
            or self._held
            or self._weight_bytes
            or self.client_eof
            or self._from_client.kept
            or self._from_upstream.kept
        ) and (self.state is PairState.CONNECTED)

    @property
    def wants_client(self) -> bool:
        """Whether the client is to be read; False is back-pressure."""
        core = self._core
        if self.ended or self.client_eof:
            return False
        if self.state is PairState.OPENED:
            return not (core.is_tight and self._connect)
        if core.is_tight:
            return not self._held_bytes and not self.to_upstream
        return self._held_bytes < core.lookahead_bytes and len(self.to_upstream) < OUT_BYTES

    @property
    def wants_upstream(self) -> bool:
        return not self.ended and len(self.to_client) < (1 if self._core.is_tight else OUT_BYTES)

    @property
    def held_count(self) -> int:
        """Packets of the client that wait."""
        return len(self._held)

    # --- the client --------------------------------------------------------------------------

    def client_data(self, data: bytes, now_s: float) -> None:
        self._core.dirty[self] = None
        try:
            if self.state is PairState.OPENED:
                self._await_connect(data, now_s)
            elif not self.ended:
                self._take(data, now_s)
        except PeerError:
            self.end(now_s)  # No packet can be told from another any more.

    def client_ended(self, now_s: float) -> None:
        """The client sends no more; what it sent before is still forwarded."""
        self.client_eof = True
        if not self._held or self.state is not PairState.CONNECTED:
            self.end(now_s)

    def _await_connect(self, data: bytes, now_s: float) -> None:
        connect = self._connect
        connect += data
        if connect[0] >> 4 != tables.CONNECT:
            raise MalformedPacket("the first packet is no CONNECT")
        try:
            length, body = remaining_length(connect, 0, MQTT_311)
        except IndexError:
            return
        size_bytes = body + length
        if size_bytes > self._core.connect_bytes_max:
            raise MalformedPacket("a CONNECT that is too large")
        if len(connect) < size_bytes:
            return
        self.connect_bytes = bytes(connect[:size_bytes])
        rest = bytes(connect[size_bytes:])
        self._connect = bytearray()
        self.state = PairState.OFFERED
        self.offered_s = now_s
        self._core.offer(self, self._arrival(), now_s)
        if rest and not self.ended:
            self._take(rest, now_s)

    def _arrival(self) -> Arrival:
        """The CONNECT as the gate sees it; one that we cannot read is the upstream's to refuse."""
        decoder = PacketDecoder(self._core.connect_bytes_max)
        decoder.feed(self.connect_bytes)
        try:
            packet = decoder.next()
        except PeerError:
            self.version = decoder.version or MQTT_311
            return Arrival("", len(self.connect_bytes))
        assert isinstance(packet, Connect)
        self.version = packet.version
        self.tenant = packet.username or ""
        resumption = Resumption.NEW if packet.clean_start else Resumption.ELSEWHERE
        return Arrival(packet.client_id, len(self.connect_bytes), resumption)

    def _take(self, data: bytes, now_s: float) -> None:
        """Pass what may pass, hold back the rest; runs of packets that pass are not cut up."""
        data, heads = self._from_client.scan(data)
        begin = 0
        for head in heads:
            sink = self._sink_of(head, begin, now_s)
            if sink is not None or self._sink is not None:
                self._put(data[begin : head.start])
                begin = head.start
                self._sink = sink
        self._put(data[begin:])
        if self._held and self.state is PairState.CONNECTED:
            self._rest_and_wait(now_s)

    def _sink_of(self, head: FrameHead, begin: int, now_s: float) -> HeldPacket | None:
        """Where a packet belongs: to the upstream (None), or among those that wait."""
        kind = head.kind
        if self.state is not PairState.CONNECTED:
            passes = kind == tables.AUTH and self.state is PairState.CONNECTING
        elif kind in LANE:
            passes = True
        elif self._held:
            passes = False
        elif kind in COUNTED:
            before = head.start - begin if self._sink is None else 0
            passes = self._admit(head, self._passed_bytes + before, now_s)
        else:
            passes = True
        if passes:
            return None
        held = HeldPacket(head)
        self._held.append(held)
        return held

    def _put(self, data: bytes | bytearray) -> None:
        if self._sink is None:
            self.to_upstream += data
            self._passed_bytes += len(data)
        else:
            self._sink.data += data
            self._held_bytes += len(data)

    # --- admission ---------------------------------------------------------------------------

    def _admit(self, head: FrameHead, at_bytes: int, now_s: float) -> bool:
        """Count it against the window, if there is room; `at_bytes`: where it begins in all that
        passes to the upstream."""
        window = self.window
        if window is None:
            return False
        size_bytes = head.size_bytes
        cost = 1 + size_bytes // self._core.cost_bytes
        if not window.room() or not window.fits(cost):
            return False
        if head.packet_id and head.packet_id in self._by_id:
            return True  # The same again: the upstream's to judge.
        window.admit(cost, size_bytes)
        packet = Outstanding(cost, size_bytes, now_s)
        self._core.started(packet)
        if head.packet_id:
            self._by_id[head.packet_id] = packet
        else:
            self._unacknowledged.append((at_bytes + size_bytes, packet))
        return True

    def run(self, now_s: float) -> None:
        """There may be room: forward what waits, in order."""
        held = self._held
        if self.state is not PairState.CONNECTED:
            return
        while held:
            first = held[0]
            if first.head.kind in COUNTED and not self._admit(
                first.head, self._passed_bytes, now_s
            ):
                break
            held.popleft()
            self._held_bytes -= len(first.data)
            self.to_upstream += first.data
            self._passed_bytes += len(first.data)
            self._core.dirty[self] = None
            if self._sink is first:
                self._sink = None
        self._rest_and_wait(now_s)
        if self.client_eof and not held:
            self.end(now_s)

    def _rest_and_wait(self, now_s: float) -> None:
        window = self.window
        assert window is not None
        if self in self._core.runnable:
            return  # Its turn is still to come in this slice.
        window.rest(bool(self._held))
        if self._held and window.room():
            self.schedule()  # The limit has risen.
        elif self._held:
            self._core.paused(self, now_s)

    def schedule(self) -> None:
        """Be run again in the next turn (`flowguard.flow.guard.Guarded`)."""
        self._core.runnable[self] = None

    def _settle(self, packet: Outstanding, now_s: float) -> None:
        assert self.window is not None
        self.window.settle(packet.cost, packet.size_bytes)
        self._core.done(packet, now_s)
        if self._held:
            self.schedule()

    # --- the upstream ------------------------------------------------------------------------

    def decided(self, admission: Admission, now_s: float) -> None:
        """Follow what the gate says of its CONNECT, at once or later."""
        if admission.verdict is Verdict.ADMIT:
            self.state = PairState.DIALING
            self._core.dial(self, now_s)
        elif admission.verdict is Verdict.REJECT:
            self.refuse(ReasonCode.SERVER_BUSY, admission.retry_after_s, now_s)
        elif admission.verdict is Verdict.DROP:
            self.end(now_s)  # Its client has asked again.

    def refuse(self, reason: ReasonCode, retry_after_s: float, now_s: float) -> None:
        """CONNACK with 137 or 136, and the time to come back for those who understand it."""
        properties = NO_PROPERTIES
        after_ms = round(1_000 * retry_after_s)
        if self.version == MQTT_5 and after_ms:
            properties = Properties(user_properties=(("retry-after-ms", str(after_ms)),))
        self.to_client += encode(Connack(False, reason, properties), self.version)
        self.end(now_s)

    def upstream_opened(self, now_s: float) -> None:
        """The connection to the upstream is there."""
        assert self.state is PairState.DIALING
        self.state = PairState.CONNECTING
        self.to_upstream += self.connect_bytes
        self._passed_bytes += len(self.connect_bytes)
        self.connect_bytes = b""
        self._core.dirty[self] = None

    def upstream_data(self, data: bytes, now_s: float) -> None:
        """Bytes from the upstream: all of them pass."""
        if self.ended:
            return
        try:
            data, heads = self._from_upstream.scan(data)
        except PeerError:
            self.end(now_s)
            return
        self.to_client += data
        self._core.dirty[self] = None
        for head in heads:
            if head.packet_id:
                packet = self._by_id.pop(head.packet_id, None) if head.kind in ANSWERS else None
                if packet is not None:
                    self._settle(packet, now_s)
            elif head.kind == tables.CONNACK and self.state is PairState.CONNECTING:
                self._connected(head.reason, now_s)

    def _connected(self, reason: int, now_s: float) -> None:
        self._core.answered(self, now_s, is_busy=reason in BUSY)
        if reason:
            return  # Its end follows.
        self.state = PairState.CONNECTED
        self.window = AdmissionWindow(self._core.node_window)
        self.schedule()

    def sent_upstream(self, size_bytes: int, now_s: float) -> None:
        """The upstream's socket has taken so much of `to_upstream`."""
        del self.to_upstream[:size_bytes]
        self._sent_bytes += size_bytes
        waiting = self._unacknowledged
        while waiting and waiting[0][0] <= self._sent_bytes:
            self._settle(waiting.popleft()[1], now_s)

    def sent_client(self, size_bytes: int) -> None:
        """The client's socket has taken so much of `to_client`."""
        del self.to_client[:size_bytes]

    # --- the end -----------------------------------------------------------------------------

    def end(self, now_s: float) -> None:
        """Nothing is held for it any more but last bytes on their way. Safe to repeat."""
        if self.ended:
            return
        self.state = PairState.ENDED
        self._held.clear()
        self._held_bytes = 0
        self._sink = None
        self._connect = bytearray()
        self._from_client, self._from_upstream = FrameSplitter(), FrameSplitter()
        self.connect_bytes = b""
        packets = [*self._by_id.values(), *(packet for _, packet in self._unacknowledged)]
        self._by_id.clear()
        self._unacknowledged.clear()
        for packet in packets:
            self._settle(packet, now_s)
        self._core.gone(self, now_s)
        self._core.dirty[self] = None
        self.weigh()

    def discard(self, *, to_upstream: bool) -> None:
        """Nobody is there any more for what is to be sent on one side."""
        (self.to_upstream if to_upstream else self.to_client).clear()
        self.weigh()

    def weigh(self) -> None:
        """Tell what it holds: after a slice, in which most of what came has left again."""
        weight_bytes = (
            self._held_bytes
            + len(self.to_upstream)
            + len(self.to_client)
            + len(self._connect)
            + len(self.connect_bytes)
            + len(self._from_client.kept)
            + len(self._from_upstream.kept)
        )
        self._core.held_bytes += weight_bytes - self._weight_bytes
        self._weight_bytes = weight_bytes
