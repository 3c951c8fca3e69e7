"""LayerGate: limits the TLS and WebSocket handshakes in process, before any CONNECT is read.

A handshake costs more than the rest of a connection's start, so the CONNECT gate acts too late for
a crowd of them. This gate uses the same rule with another unit: a handshake is in process from its
admission until our part of it is done. Time that the peer takes does not count. A connection
without a slot stays unread: its first bytes wait in the kernel and cost no cryptography. If its
client disconnects meanwhile, it is closed without a handshake. Handshakes run in slices between the
reactor's turns, and those that have begun run first.
"""

from collections import deque
from collections.abc import Callable, Mapping
from select import POLLRDHUP, poll
from typing import Final, Generic, TypeVar, final

from flowguard.bounds import CONNECTION_BYTES, TLS_BYTES
from flowguard.broker.sockets.link import Carried, Link
from flowguard.config import FlowSettings
from flowguard.flow.gate.connect_gate import ConnectGate
from flowguard.flow.load.signals import Pressure, Sample
from flowguard.flow.load.time_share import TimeShare
from flowguard.flow.policy import Arrival
from flowguard.flow.verdict import Verdict
from flowguard.node.connect.accept_state import Door, LayerFault

TURN_S: Final = 0.0003
"""Minimum time for handshakes per turn, seconds; at least one step."""
OFFERS_S: Final = 0.00025
"""Maximum time per turn for noting links with new data, seconds."""
WAITING_MAX: Final = 1_024
"""Maximum number of unread links before listeners leave further ones in the kernel's backlog."""
PATIENCE_S: Final = 60.0
"""Maximum wait of a peer, seconds. The gate checks if it is still connected before its handshake.
Closing a connected peer would not help, because it would connect again."""
PLACE_BYTES: Final = CONNECTION_BYTES + TLS_BYTES
"""Memory of each socket that uses TLS (`flowguard.bounds`)."""
FREE_BYTES: Final = 1024 * 1024
"""Memory for unfinished TLS handshakes that counts for no socket."""
SILENT_S: Final = 1.0
"""Time after which an unfinished handshake may be ended for another."""
MEMORY: Final = "TLS handshake: it did not end, and another one needed its memory"
CLOSING_S: Final = 0.00005
"""Cost of closing a connection whose handshake has not begun, seconds."""


C = TypeVar("C", bound=Carried)


@final
class LayerGate(Generic[C]):
    """The unfinished handshakes of one reactor."""

    def __init__(
        self,
        settings: FlowSettings,
        clock: Callable[[], float],
        door: Door,
        step: Callable[[Link[C], float], None],
        close: Callable[[Link[C]], None],
        begun: Callable[[C, float], None],
        links: Mapping[int, Link[C]],
    ) -> None:
        """`step` reads a link once and watches it again; `close` closes it without any packet;
        `begun` is called when our part of a handshake is done; `links`: all connections."""
        patient = settings.model_copy(update={"connect_patience_s": PATIENCE_S})
        self.gate: ConnectGate[Link[C]] = ConnectGate(patient)
        self._clock = clock
        self._share = TimeShare(TURN_S)
        self._door = door
        self._step = step
        self._close = close
        self._begun = begun
        self._arrived: deque[Link[C]] = deque()
        """Links with first bytes that the gate has not seen."""
        self._admitted: deque[Link[C]] = deque()
        """Links whose bytes may be read."""
        self._links = links
        self._unfinished: dict[Link[C], tuple[float, int]] = {}
        """Links that have our TLS answer, with its time and the memory that each may take."""
        self._waits_for_memory = False
        """True while the next handshake would exceed the memory for handshakes."""
        door.handshakes = self.gate

    @property
    def has_work(self) -> bool:
        """True if `run` has something to do."""
        if self._waits_for_memory:
            return len(self._arrived) > 0
        return bool(self._arrived or self._admitted) or self.gate.is_ready

    @property
    def places(self) -> int:
        """Number of sockets whose memory equals that of the unfinished handshakes."""
        return _places_of(self._door.handshake_bytes)

    @property
    def is_crowded(self) -> bool:
        """True if further connections should wait in the kernel's backlog."""
        return len(self._arrived) + self.gate.buffered >= WAITING_MAX

    def heard(self, link: Link[C]) -> None:
        """Note that a link with an unfinished handshake has data to read."""
        layer = link.layer
        assert layer is not None
        if layer.begun:
            self._admitted.appendleft(link)  # Our part of the work is done.
            self._waits_for_memory = False
        else:
            self._arrived.append(link)

    def run(self) -> None:
        """Accept connections, then work on handshakes in order of admission, for their share."""
        began_s = now_s = self._offer(self._clock())
        until_s = now_s + self._share.begin(now_s)
        while now_s < until_s:
            if not self._admitted and not self._admit(now_s):
                break
            if self._admitted:
                if not self._has_memory(self._admitted[0], now_s):
                    self._waits_for_memory = True
                    break
                self._take(self._admitted.popleft(), now_s)
            now_s = self._clock()
        self._share.end(now_s - began_s)

    def _offer(self, now_s: float) -> float:
        """Offer the links with new data to the gate, for `OFFERS_S`; return the time then."""
        until_s = now_s + OFFERS_S
        while self._arrived and now_s < until_s:
            link = self._arrived.popleft()
            if link.fd < 0 or link.connection.ended or self.gate.holds(link):
                continue
            verdict = self.gate.offer(link, Arrival("", 1, waited_s=link.waited_s()), now_s)
            if verdict is Verdict.ADMIT:
                self._admitted.append(link)
            elif verdict is Verdict.REJECT:
                self._turn_away(link, now_s)
            now_s = self._clock()
        return now_s

    def _has_memory(self, link: Link[C], now_s: float) -> bool:
        """Return True if a handshake may continue; close a stalled one that blocks its memory."""
        layer, places = link.layer, self._door.places
        size_bytes = 0 if link.doorway is None else link.doorway.handshake_bytes
        if not size_bytes or layer is None or layer.begun or places is None:
            return True
        while taken := _places_of(self._door.handshake_bytes + size_bytes):
            if len(self._links) + taken <= places:
                break
            oldest, (since_s, _) = next(iter(self._unfinished.items()))
            if now_s - since_s < SILENT_S:
                return False
            self._door.fault(LayerFault.LATE, oldest.sock, MEMORY)
            self._turn_away(oldest, now_s)
        return True

    def _finished(self, link: Link[C]) -> None:
        _, size_bytes = self._unfinished.pop(link, (0.0, 0))
        self._door.handshake_bytes -= size_bytes
        self._waits_for_memory = False

    def _take(self, link: Link[C], now_s: float) -> None:
        if link.fd < 0 or link.connection.ended:
            self.gate.settle(link, now_s)
            return
        layer = link.layer
        assert layer is not None
        had_begun = layer.begun
        if not had_begun and has_left(link.fd):
            self.gate.settle(link, now_s)
            self._door.fault(LayerFault.LEFT, link.sock, "")
            self._turn_away(link, now_s)
            return
        self._step(link, now_s)
        done_s = self._clock()
        self.gate.settle(link, done_s)
        if layer.begun and not had_begun:
            self._begun(link.connection, done_s)
            if link.fd >= 0 and link.doorway is not None:
                size_bytes = link.doorway.handshake_bytes
                self._unfinished[link] = done_s, size_bytes
                self._door.handshake_bytes += size_bytes
        if layer.established:
            self._finished(link)
            # The connect timeout began when the client connected, not when the broker found time.
            link.connection.waited_s += now_s - link.connection.last_received_s

    def _admit(self, now_s: float) -> bool:
        """Admit the next link or reject an expired one; return False if there is no link or
        slot."""
        waiting = self.gate.admit_next(now_s)
        if waiting is None:
            return False
        link, verdict = waiting
        if verdict is Verdict.ADMIT:
            self._admitted.append(link)
        else:
            self._turn_away(link, now_s)
        return True

    def tick(self, now_s: float, pressure: Pressure) -> None:
        """Every `TICK_S`: adapt the limit and reject expired links."""
        self._waits_for_memory = False
        self.gate.tick(Sample(now_s), pressure)
        for _ in range(self.gate.buffered):
            if not self._admit(now_s):
                break

    def left(self, link: Link[C]) -> None:
        """Note that a link is closed, which frees its slot."""
        self._finished(link)
        if self.gate.holds(link):
            self.gate.settle(link, self._clock())

    def _turn_away(self, link: Link[C], now_s: float) -> None:
        """Close a link before it uses resources."""
        if link.fd >= 0:
            link.connection.end(None, now_s)
            self._close(link)
        self.gate.spent(CLOSING_S, now_s)


def _places_of(handshake_bytes: int) -> int:
    return max(0, handshake_bytes - FREE_BYTES + PLACE_BYTES - 1) // PLACE_BYTES


def has_left(fd: int) -> bool:
    """True if the peer has closed the connection or its sending half; its data remain readable."""
    asked = poll()
    asked.register(fd, POLLRDHUP)
    return bool(asked.poll(0))
