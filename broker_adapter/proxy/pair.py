"""ProxyPair: one client and its connection to the upstream broker, without sockets.

While its window has no capacity, a client's packets are held, in order. PINGREQ and
acknowledgements that were read ahead overtake held packets (the control lane). All other bytes pass
unchanged in both directions, and acknowledgements come from the upstream.

A PUBLISH of QoS 1 and 2, a SUBSCRIBE and an UNSUBSCRIBE are in process until the upstream has
acknowledged them; a PUBLISH of QoS 0 until the upstream's socket has taken it.

A client that has stopped sending or receiving is leaving. The pair forwards what it has sent, then
its end, and returns further answers if it still receives. The time for this is limited and restarts
with any progress. While its CONNECT waits, the connect timeout applies as to any client.
"""

from collections import deque
from typing import final

from broker_adapter.proxy.connect import ReadConnect, connect_size_bytes, refusal
from broker_adapter.proxy.frames import FrameHead, FrameSplitter, is_control, is_counted
from broker_adapter.proxy.host import PairHost
from broker_adapter.proxy.life import Life
from broker_adapter.proxy.outgoing import OUT_BYTES, Outgoing
from broker_adapter.proxy.packets import Awaiting, HeldPacket, Outstanding, Unanswered
from broker_adapter.proxy.states import CONNECTED, CONNECTING, DIALING, ENDED, OFFERED, OPENED
from broker_adapter.proxy.upstream import Upstream
from flowguard.codec import tables
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Disconnect
from flowguard.errors import PeerError
from flowguard.flow import Admission, AdmissionWindow, Reason, Verdict
from flowguard.types import MQTT_5, MQTT_311, ReasonCode


@final
class ProxySide:
    """One of the two connections of a pair (`flowguard.broker.sockets.link.Carried`)."""

    __slots__ = (
        "is_upstream", "last_received_s", "outbox", "pair", "said_last", "sent_bytes",
        "transport", "waited_s",
    )  # fmt: skip

    def __init__(self, pair: "ProxyPair", now_s: float, waited_s: float = 0.0) -> None:
        self.pair = pair
        self.is_upstream = False
        self.outbox = Outgoing()
        """Bytes to send on this connection."""
        self.transport: object | None = None
        """The link, or None if the connection is not open."""
        self.said_last, self.sent_bytes = False, 0
        self.waited_s = waited_s
        self.last_received_s = now_s

    @property
    def ended(self) -> bool:
        return self.pair.state is ENDED

    @property
    def may_close(self) -> bool:
        return self.ended

    @property
    def wants_read(self) -> bool:
        """True if it may be read; False is back-pressure."""
        return self.pair.wants_upstream if self.is_upstream else self.pair.wants_client

    def end(self, reason: ReasonCode | None, now_s: float) -> None:
        """End the pair without a packet."""
        self.pair.life.is_lost = self.pair.life.is_lost or not self.is_upstream
        self.pair.end(now_s)


@final
class ProxyPair:
    """One client and its connection. The owner sends the bytes in `to_upstream` and `to_client`."""

    __slots__ = (
        "_awaiting", "_connect", "_core", "_end_passed", "_from_client", "_from_upstream", "_held",
        "held_bytes", "_unanswered", "passed_bytes", "_sent_bytes", "_sink", "_unacknowledged",
        "_weight_bytes", "broker", "client", "client_eof", "connect_bytes", "is_deaf", "is_dirty",
        "life", "offered_s", "opened_s", "queued", "state", "tenant", "to_client", "to_upstream",
        "upstream", "version", "window",
    )  # fmt: skip

    def __init__(self, core: "PairHost[ProxyPair]", now_s: float, waited_s: float = 0.0) -> None:
        self._core = core
        self.state = OPENED
        self.opened_s = self.offered_s = now_s
        self.version = MQTT_311
        self.tenant = ""
        self.life = Life()
        self.window: AdmissionWindow | None = None
        self.connect_bytes = b""
        self.client = ProxySide(self, now_s, waited_s)
        self.upstream = ProxySide(self, now_s)
        self.upstream.is_upstream = True
        self.to_client = self.client.outbox
        self.to_upstream = self.upstream.outbox
        self.broker: Upstream | None = None
        """The upstream to which it is connected or connecting, or None."""
        self.is_dirty = False
        """True if it is in its host's `dirty`."""
        self.queued = False
        """True if it is in its host's `runnable`, or in the round made of it."""
        self.client_eof = False
        """True if the client has stopped sending."""
        self.is_deaf = False
        """True if the client has stopped receiving."""
        self._end_passed = False
        """True if the end of the client's stream was forwarded."""
        self._connect = bytearray()
        self._from_client = FrameSplitter()
        self._from_upstream = FrameSplitter()
        self._held: deque[HeldPacket] = deque()
        self.held_bytes = 0
        self._sink: HeldPacket | None = None
        """The held packet that gets the rest of the client's current packet, or None to forward
        it."""
        self._awaiting = Awaiting()
        self._unacknowledged: deque[tuple[int, Outstanding]] = deque()
        """QoS 0 packets in process, each until this number of bytes has been sent."""
        self._unanswered = Unanswered()
        self.passed_bytes = 0
        """Total bytes ever put into `to_upstream`."""
        self._sent_bytes = 0
        self._weight_bytes = 0

    # --- what its owner asks -----------------------------------------------------------------

    @property
    def ended(self) -> bool:
        return self.state is ENDED

    @property
    def flows(self) -> bool:
        """True if it holds nothing, and both sides may be read: the common case."""
        return not (
            self.to_client.size_bytes
            or self.to_upstream.size_bytes
            or self._held
            or self._weight_bytes
            or self.client_eof
            or self._from_client.kept
            or self._from_upstream.kept
        ) and (self.state is CONNECTED)

    @property
    def wants_client(self) -> bool:
        """True if the client may be read; False is back-pressure."""
        core = self._core
        if self.ended or self.client_eof:
            return False
        if self.state is OPENED:
            return not (core.is_tight and self._connect)
        if core.is_tight:
            return not self.held_bytes and not self.to_upstream.size_bytes
        return self.held_bytes < core.lookahead_bytes and self.to_upstream.size_bytes < OUT_BYTES

    @property
    def wants_upstream(self) -> bool:
        """True if the upstream may be read."""
        most_bytes = 1 if self._core.is_tight else OUT_BYTES
        return not self.ended and self.to_client.size_bytes < most_bytes

    @property
    def held_count(self) -> int:
        """Number of the client's held packets."""
        return len(self._held)

    def soil(self) -> None:
        """Note that there is something to send or to close."""
        if not self.is_dirty:
            self.is_dirty = True
            self._core.dirty.append(self)

    # --- the client --------------------------------------------------------------------------

    def client_data(self, data: bytes, now_s: float) -> None:
        """Handle bytes from the client."""
        self.soil()
        try:
            if self.state is OPENED:
                self._await_connect(data, now_s)
            elif not self.ended:
                self._take(data, now_s)
        except PeerError:
            self.life.by_proxy = ReasonCode.MALFORMED_PACKET
            self.end(now_s)  # The boundaries of packets are lost.

    def client_ended(self, now_s: float) -> None:
        """Handle the end of the client's stream; earlier data are still forwarded.

        A client whose CONNECT waits, with no work behind it, has given up.
        """
        self.client_eof = self.life.is_lost = True
        if self._from_client.rest_bytes:
            self._unanswered.cut()
        self.soil()
        if self.state is CONNECTED or any(self._is_wanted(packet) for packet in self._held):
            self.progressed(now_s)
        else:
            self.end(now_s)

    def _is_wanted(self, packet: HeldPacket) -> bool:
        """Return True if it is work. A DISCONNECT is, if the upstream has the CONNECT."""
        kind = packet.head.kind
        is_work = is_counted(kind) or (kind == tables.DISCONNECT and self.state is CONNECTING)
        return is_work and packet.is_whole

    def client_deafened(self, now_s: float) -> None:
        """Handle a client that has stopped receiving; its data are still read."""
        self.is_deaf = self.life.is_lost = True
        self.to_client.clear()
        self.progressed(now_s)

    def progressed(self, now_s: float) -> None:
        """Note progress, which restarts the time of a leaving client."""
        if (self.client_eof or self.is_deaf) and self.state in (CONNECTING, CONNECTED):
            self._core.leaving(self, now_s)

    def _await_connect(self, data: bytes, now_s: float) -> None:
        connect = self._connect
        connect += data
        size_bytes = connect_size_bytes(connect, self._core.connect_bytes_max)
        if not size_bytes:
            return
        self.connect_bytes = bytes(connect[:size_bytes])
        rest = bytes(connect[size_bytes:])
        self._connect = bytearray()
        read = ReadConnect(self.connect_bytes, self.client.waited_s)
        self.version, self.tenant = read.version, read.tenant
        self.state = OFFERED
        self.offered_s = now_s
        self._core.offer(self, read.arrival, now_s)
        if rest and not self.ended:
            self._take(rest, now_s)

    def _take(self, data: bytes, now_s: float) -> None:
        """Forward what may pass, hold the rest; runs of forwarded packets are not split."""
        data, heads = self._from_client.scan(data)
        begin = 0
        for head in heads:
            sink = self._sink_of(head, begin, now_s)
            if sink is not None or self._sink is not None:
                self._put(data[begin : head.start])
                begin = head.start
                self._sink = sink
        self._put(data[begin:])
        if self._held and self.state is CONNECTED:
            self._rest_and_wait(now_s)

    def _sink_of(self, head: FrameHead, begin: int, now_s: float) -> HeldPacket | None:
        """Return None to forward a packet, or the held packet that takes it."""
        kind = head.kind
        self._unanswered.asked(head)
        if kind == tables.PUBLISH:
            self._core.counters.publish_received += 1
        elif kind == tables.DISCONNECT:
            self.life.by_client = head.reason
        if self.state is not CONNECTED:
            passes = kind == tables.AUTH and self.state is CONNECTING
        elif is_control(kind):
            passes = True
        elif self._held:
            passes = False
        elif is_counted(kind):
            before = head.start - begin if self._sink is None else 0
            passes = self._admit(head, self.passed_bytes + before, now_s)
        else:
            passes = True
        if passes:
            return None
        if not self._held:
            self._core.paused_count += 1
        held = HeldPacket(head)
        self._held.append(held)
        return held

    def _put(self, data: bytes) -> None:
        if self._sink is None:
            self.to_upstream.put(data)
            self.passed_bytes += len(data)
        else:
            self._sink.data += data
            self.held_bytes += len(data)

    # --- admission ---------------------------------------------------------------------------

    def _admit(self, head: FrameHead, at_bytes: int, now_s: float) -> bool:
        """Count a packet against the window; return False without capacity. `at_bytes`: its
        position in all bytes forwarded to the upstream."""
        window = self.window
        if window is None:
            return False
        size_bytes = head.size_bytes
        cost = 1 + size_bytes // self._core.cost_bytes
        if not window.room() or not window.fits(cost):
            return False
        window.admit(cost, size_bytes)
        window.worked(cost)
        packet = Outstanding(cost, size_bytes, now_s)
        assert self.broker is not None
        self.broker.in_process[packet] = None
        if head.packet_id:
            self._awaiting.add(head, packet)
        else:
            self._unacknowledged.append((at_bytes + size_bytes, packet))
        return True

    def run(self, now_s: float) -> None:
        """Forward held packets in order while there is capacity."""
        held = self._held
        if self.state is not CONNECTED:
            return
        while held:
            first = held[0]
            counts = is_counted(first.head.kind) and (first.is_whole or not self.client_eof)
            if counts and not self._admit(first.head, self.passed_bytes, now_s):
                break
            held.popleft()
            self._core.paused_count -= int(not held)
            self.held_bytes -= len(first.data)
            self.to_upstream.put(bytes(first.data))
            self.passed_bytes += len(first.data)
            self.soil()
            if self._sink is first:
                self._sink = None
        self._rest_and_wait(now_s)

    def _rest_and_wait(self, now_s: float) -> None:
        window = self.window
        assert window is not None
        if self.queued:
            return  # `run` is still to come in this slice.
        window.rest(bool(self._held))
        if self._held and window.room():
            self.schedule()  # The limit has risen.
        elif self._held:
            self._core.paused(self, now_s)

    def schedule(self) -> None:
        """Ask to be run in the next turn (`flowguard.flow.guard.Guarded`)."""
        if not self.queued:
            self.queued = True
            self._core.runnable.append(self)

    def _settle(self, packet: Outstanding, now_s: float) -> None:
        assert self.window is not None
        self.window.settle(packet.cost, packet.size_bytes)
        assert self.broker is not None
        del self.broker.in_process[packet]
        core = self._core
        core.finished += 1
        core.response_sum_s += now_s - packet.since_s
        if self._held:
            self.schedule()

    # --- the upstream ------------------------------------------------------------------------

    def decided(self, admission: Admission, now_s: float) -> None:
        """Follow the gate's decision on its CONNECT."""
        if admission.verdict is Verdict.ADMIT:
            self.state = DIALING
            self._core.dial(self, now_s)
        elif admission.verdict is Verdict.REJECT:
            self.refuse(ReasonCode.SERVER_BUSY, admission.retry_after_s, now_s, admission.reason)
        elif admission.verdict is Verdict.DROP:
            self.end(now_s)  # The client has sent another CONNECT.

    def refuse(
        self, reason: ReasonCode, retry_after_s: float, now_s: float, why: Reason | None = None
    ) -> None:
        """Send CONNACK 0x89 or 0x88, to MQTT 5 clients with a retry-after hint."""
        self._core.refused(self, reason, why)
        if not self.is_deaf:
            self.to_client.put(refusal(self.version, reason, retry_after_s))
        self.end(now_s)

    def upstream_opened(self, now_s: float) -> None:
        """Send the CONNECT on the open connection to the upstream."""
        assert self.state is DIALING
        self.state = CONNECTING
        self.to_upstream.put(self.connect_bytes)
        self.passed_bytes += len(self.connect_bytes)
        self.connect_bytes = b""
        self.progressed(now_s)
        self.soil()

    def upstream_data(self, data: bytes, now_s: float) -> None:
        """Handle bytes from the upstream; all of them are forwarded."""
        if self.ended:
            return
        try:
            data, heads = self._from_upstream.scan(data)
        except PeerError:
            self.end(now_s)
            return
        if not self.is_deaf:
            self.to_client.put(data)
            self.progressed(now_s)
        self.soil()
        for head in heads:
            if self._unanswered.answered(head.kind):
                packet = self._awaiting.answered(head)
                if packet is not None:
                    if head.kind <= tables.PUBREC:
                        self._core.acknowledged.observe(now_s - packet.since_s)
                    self._settle(packet, now_s)
                    self.progressed(now_s)
            else:
                self._note(head, now_s)

    def _note(self, head: FrameHead, now_s: float) -> None:
        if head.kind == tables.PUBLISH:
            self._core.counters.publish_sent += 1
        elif head.kind == tables.CONNACK and self.state is CONNECTING:
            self._connected(head.reason, now_s)
        elif head.kind == tables.DISCONNECT:
            self.life.by_broker = head.reason

    def _connected(self, reason: int, now_s: float) -> None:
        self._core.answered(self, reason, now_s)
        if reason:
            return  # The upstream closes the connection next.
        self.state = CONNECTED
        self.progressed(now_s)
        self.window = AdmissionWindow(self._core.node_window)
        self.schedule()

    def sent_upstream(self, size_bytes: int, now_s: float) -> None:
        """Note the number of bytes of `to_upstream` that the upstream's socket has taken."""
        self._sent_bytes += size_bytes
        waiting = self._unacknowledged
        while waiting and waiting[0][0] <= self._sent_bytes:
            self._settle(waiting.popleft()[1], now_s)

    # --- the end -----------------------------------------------------------------------------

    def pass_end(self, now_s: float, *, half_closes: bool) -> bool:
        """Return True, once, if the end of the client's stream must be forwarded now.

        `half_closes`: whether the connection can be half-closed and still return answers. If not,
        the pair ends with the last acknowledgement. If the client does not receive answers, the
        pair ends at once.
        """
        if not (self.client_eof and self.state is CONNECTED):
            return False
        if self._held or self.to_upstream.size_bytes:
            return False  # There are bytes to forward first.
        if self.is_deaf or not (
            half_closes or self._unanswered.count or self._from_upstream.is_within
        ):
            self.end(now_s)
            return False
        if self._end_passed or not half_closes:
            return False
        self._end_passed = True
        return True

    def end(self, now_s: float) -> None:
        """Release everything but last bytes that are being sent. Safe to repeat."""
        if self.ended:
            return
        self.state = ENDED
        self._core.paused_count -= int(bool(self._held))
        self._held.clear()
        self.held_bytes = 0
        self._sink = None
        self._connect = bytearray()
        self._from_client, self._from_upstream = FrameSplitter(), FrameSplitter()
        self.connect_bytes = b""
        packets = [*self._awaiting.take_all(), *(packet for _, packet in self._unacknowledged)]
        self._unacknowledged.clear()
        for packet in packets:
            self._settle(packet, now_s)
        self._core.gone(self, now_s)
        self.soil()
        self.weigh()

    def weigh(self) -> None:
        """Update its share of the held bytes, after a slice, when most bytes have been sent."""
        weight_bytes = (
            self.held_bytes
            + self.to_upstream.size_bytes
            + self.to_client.size_bytes
            + len(self._connect)
            + len(self.connect_bytes)
            + len(self._from_client.kept)
            + len(self._from_upstream.kept)
        )
        self._core.held_bytes += weight_bytes - self._weight_bytes
        self._weight_bytes = weight_bytes


def dismiss(pair: ProxyPair, reason: ReasonCode, now_s: float) -> None:
    """End a connected client; one of MQTT 5 gets DISCONNECT, unless a packet is incomplete."""
    if pair.version == MQTT_5 and not (pair.is_deaf or pair._from_upstream.is_within):
        pair.to_client.put(encode(Disconnect(reason), MQTT_5))
    pair.life.by_proxy = reason
    pair.end(now_s)
